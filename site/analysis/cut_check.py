"""Checks that where the time went adds up, to the nanosecond: each TTFT, each token gap, and both together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.attribution import TtftCuts, all_cuts
from cbtrace.site.analysis.gaps import GapCuts
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.traces.columns import Bools, Ints
from cbtrace.traces.errors import declare
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import Finding
from cbtrace.traces.schema import Severity


@dataclass
class _Doubts:
    """By request, whether something of its cut does not add up."""

    differs: Bools
    """The pieces are not the whole, or one of them is negative."""
    unexplained: Bools
    """Some time has no piece."""

    def add(self, cut: TtftCuts | GapCuts) -> None:
        """Look at some requests."""
        wrong = (cut.pieces.sum(axis=1) != cut.total_ns) | (cut.pieces < 0).any(axis=1)
        self.differs[cut.request[wrong]] = True
        self.unexplained[cut.request[cut.pieces[:, COLUMN["unattributed"]] > 0]] = True


def check_cuts(trace: Trace) -> list[Finding]:
    """Findings about the attribution of time in ``trace``; none when all of it adds up."""
    size = len(trace.requests.id)
    doubts = {name: _Doubts(np.zeros(size, np.bool_), np.zeros(size, np.bool_)) for name in ("TTFT", "token gap")}
    gaps, lasted = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    of: list[Ints] = []
    for ttft, gap in all_cuts(trace):
        doubts["TTFT"].add(ttft)
        doubts["token gap"].add(gap)
        of.append(ttft.request)
        gaps += np.bincount(gap.request, minlength=size)
        for part in (ttft, gap):
            np.add.at(lasted, part.request, part.pieces.sum(axis=1))
    found: list[Finding] = []
    for name, doubt in doubts.items():
        found += _finding("cuts-not-conserved", doubt.differs, f"the pieces of a {name} are not its whole")
    cut = np.concatenate([*of, np.zeros(0, dtype=np.int64)])
    found += _finding(
        "cuts-not-conserved", _differ(trace, cut, gaps, lasted), "its TTFT and gaps do not lead to its last token"
    )
    if trace.recovery.whole:
        for name, doubt in doubts.items():
            found += _finding("time-unattributed", doubt.unexplained, f"time of a {name} could not be attributed")
    return found


def _differ(trace: Trace, cut: Ints, gaps: Ints, lasted: Ints) -> Bools:
    """TTFT and gaps together lead from the submit to the last token, wherever every token, the last too, is known."""
    requests = trace.requests
    counted = (gaps == requests.generated - 1) & (requests.last_token_ns >= 0)
    wrong = np.zeros(len(counted), dtype=np.bool_)
    wrong[cut] = (counted & (lasted != requests.last_token_ns - requests.submit_ns))[cut]
    return wrong


def _finding(slug: str, wrong: Bools, what: str) -> Iterator[Finding]:
    rows = np.flatnonzero(wrong)
    if rows.size:
        count = f"Of {rows.size} requests, first of request {rows[0]}:" if rows.size > 1 else f"Of request {rows[0]}:"
        yield Finding(slug, _SEVERITY[slug], f"request {rows[0]}", f"{count} {what}.")


_MESSAGES = [
    declare(
        "cuts-not-conserved",
        Severity.BROKEN,
        "The pieces that a TTFT or a token gap was cut into do not add up to it.",
        "Report it with the trace: this is an error in cbtrace itself.",
    ),
    declare(
        "time-unattributed",
        Severity.INFO,
        "The trace is whole, and still some time of a request has no reason.",
        "Use the figures: what is unattributed is shown as such, and spread over nothing. Report it with the trace.",
    ),
]
_SEVERITY = {message.slug: message.severity for message in _MESSAGES}
