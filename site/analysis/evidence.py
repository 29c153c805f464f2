"""What the rules of the findings look at: shares and totals of a run, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cbtrace.site.analysis.admission import admission_limits
from cbtrace.site.analysis.attribution import Cuts, TtftCuts, slowest_kinds
from cbtrace.site.analysis.gaps import GapKinds
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.ranks import RankAnalysis
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, Engine

Numbers = Mapping[str, float | int | str]
"""What a rule has to say; the ending of a name is its unit."""
Told = tuple[float, Numbers] | None
"""Weight and numbers of a rule that speaks."""

WAITED = 0.10
"""A reason that stopped admission for this share of the step time is worth a word."""
SLOW_SHARE = 100
"""The slowest hundredth of the gaps is looked at apart, and at least this many of them:"""
SLOW_LEAST = 20


@dataclass(frozen=True)
class Evidence:
    """One run as the rules see it."""

    trace: Trace
    summary: RunSummary
    cuts: Cuts
    origin_ns: int
    ranks: RankAnalysis | None = None
    """All ranks of the run, if it had several."""

    @property
    def engine(self) -> Engine | None:
        """The engine whose settings are looked at."""
        return self.trace.engines[-1] if self.trace.engines else None

    @cached_property
    def token_budget(self) -> int | None:
        """``max_batch_tokens`` as the engine worked with it."""
        value = self.engine.resolved.get("max_batch_tokens") if self.engine else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    @cached_property
    def _stopped(self) -> dict[AdmissionStop, float]:
        limits = admission_limits(self.trace.steps)
        total = sum(limit.duration_ns for limit in limits)
        shares: dict[AdmissionStop, float] = {}
        for limit in limits:
            shares[limit.reason] = shares.get(limit.reason, 0.0) + (limit.duration_ns / total if total else 0.0)
        return shares

    def stop_share(self, reason: AdmissionStop) -> float:
        """Share of the step time in which admission was stopped by ``reason``."""
        return self._stopped.get(reason, 0.0)

    def gap_share(self, piece: str) -> float:
        """Share of all token-gap time that went to ``piece``."""
        return _share(self.cuts.gaps, piece)

    def ttft_share(self, piece: str) -> float:
        """Share of all TTFT time that went to ``piece``."""
        return _share(self.cuts.ttft, piece)

    @cached_property
    def slow(self) -> GapKinds:
        """The slowest gaps, slowest first."""
        gaps = int(self.cuts.gaps.count.sum())
        return slowest_kinds(self.trace, self.cuts.gaps, min(gaps, max(SLOW_LEAST, gaps // SLOW_SHARE)))

    def slow_share(self, piece: str) -> float:
        """Share of the slowest gaps' time that went to ``piece``."""
        return _share(self.slow, piece)


def _share(cut: TtftCuts | GapKinds, piece: str) -> float:
    total = int(cut.count @ cut.total_ns)
    return int(cut.count @ cut.pieces[:, COLUMN[piece]]) / total if total else 0.0
