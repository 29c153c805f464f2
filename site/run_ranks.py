"""The other ranks of a run: opens their traces, analyzes all of them, and says what is wrong between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cbtrace.site.analysis.ranks import RankAnalysis, analyze_ranks
from cbtrace.traces import open_trace
from cbtrace.traces.errors import TraceError
from cbtrace.traces.rank_groups import RankGroup, rank_groups, rank_of_trace
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import Finding
from cbtrace.traces.schema import Severity


@dataclass(frozen=True)
class RunRanks:
    """All ranks of a run."""

    group: RankGroup
    analysis: RankAnalysis
    findings: list[Finding]
    """Missing, truncated and unlike ranks."""

    @property
    def complete(self) -> bool:
        """Whether everything that every rank recorded was read."""
        there = [rank.rank for rank in self.analysis.ranks if rank.whole]
        return there == list(self.group.ranks)

    @property
    def doubtful(self) -> bool:
        """Whether there is more to say of the ranks than a remark."""
        return any(finding.severity >= Severity.WARNING for finding in self.findings)


def run_ranks(lead: Trace, group: RankGroup | None) -> RunRanks | None:
    """The ranks of a run, of which ``lead`` was read already; ``group`` tells which files they are, or None when no
    others were looked for. None for a run without others: of one process, or of a model that is not split.

    A file that cannot be read any more counts as missing.
    """
    own = rank_of_trace(lead)
    if own is None:
        return None
    group = group or rank_groups([own])[0]
    if len(group.ranks) < 2:
        return None
    findings = group.findings()
    analysis = analyze_ranks(_traces(lead, group, findings))
    return RunRanks(group, analysis, [*findings, *analysis.join.findings])


def _traces(lead: Trace, group: RankGroup, findings: list[Finding]) -> Iterator[Trace]:
    yield lead
    for file in group.files:
        if file.path == lead.path:
            continue
        try:
            yield open_trace(file.path)
        except TraceError as error:
            name = str(error).replace(str(file.path), file.path.name)
            findings.append(Finding(error.slug, Severity.DATA_LOSS, f"rank {file.rank}", name))
