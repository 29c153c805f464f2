"""What two runs are compared by: numbers of a run, one each, by the keys of the JSON summary (``ttft_ms.p95``).

A run is the unit of every comparison. Requests and steps within a run say nothing of how runs differ, so that only
these numbers enter intervals and verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.site.analysis.catalogue import GROUPS, STATISTICS, Better, Change, Metric, value_of
from cbtrace.site.analysis.summary import RunSummary

DIRECTION_WORDS: dict[Change, tuple[str, str]] = {
    "time": ("faster", "slower"),
    "rate": ("slower", "faster"),
    "count": ("fewer", "more"),
    "amount": ("less", "more"),
}
"""What B is called when its value is smaller, and when it is larger. Each is also the key of the word's text."""


def direction_word(change: Change, difference: float) -> str:
    """What B is called where its value is A's plus ``difference``."""
    return "equal" if difference == 0 else DIRECTION_WORDS[change][difference > 0]


@dataclass(frozen=True)
class RunValue:
    """One number of a run. ``statistic`` is empty for metrics that are no distribution."""

    metric: Metric
    statistic: str

    @property
    def key(self) -> str:
        """As in the JSON summary: ``ttft_ms.p95``, ``soft_resets``."""
        return f"{self.metric.id}.{self.statistic}" if self.statistic else self.metric.id

    @property
    def label_key(self) -> str:
        """Key of the text that names the metric, without its statistic."""
        return f"metric.{self.metric.id}.label"

    @property
    def unit(self) -> str:
        """Unit of the number: ``ms``, ``bytes``; empty for plain counts, ``%`` for shares of one."""
        return self.metric.unit

    @property
    def better(self) -> Better:
        """Which direction is better."""
        return self.metric.better

    def direction(self, difference: float) -> str:
        """What B is where its value is A's plus ``difference``: ``slower``, ``fewer``, ... or ``equal``."""
        return direction_word(self.metric.change, difference)

    def of(self, summary: RunSummary) -> float | None:
        """The number in ``summary``; ``None`` is unknown."""
        return value_of(summary, self.metric, self.statistic or None)

    def over(self, summaries: Sequence[RunSummary]) -> list[float | None]:
        """The number in each run of a side."""
        return [self.of(summary) for summary in summaries]


RUN_VALUES: dict[str, RunValue] = {
    value.key: value
    for group in GROUPS
    for metric in group.metrics
    for value in (RunValue(metric, statistic) for statistic in (STATISTICS if metric.distribution else ("",)))
}
"""All numbers that are compared, by key, in the order of the catalogue."""

HEADLINE_KEYS = (
    "ttft_ms.p95",
    "token_gap_ms.p99",
    "e2e_ms.p95",
    "throughput_generated_tps",
    "peak_memory_bytes",
)
"""What the verdict on the whole rests on. They are few, because each further one would cost the others power."""
