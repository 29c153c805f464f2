"""B against A: what differs, every number judged under that, and one word on the whole.

A is the baseline and B the candidate, everywhere; a difference is B less A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cbtrace.site.analysis.comparability import Comparability, compare_conditions
from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEVEL, Judgement, judge
from cbtrace.site.analysis.run_conditions import RunConditions, run_conditions
from cbtrace.site.analysis.run_values import HEADLINE_KEYS, RUN_VALUES, RunValue
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.traces.reader import Trace

MEMORY = "peak_memory_bytes"

HeadlineWord = Literal["better", "worse", "better_and_worse", "changed", "within_noise", "cannot_tell"]
HeadlineWhy = Literal[
    "numbers", "same_settings", "unlike", "mixed", "predicted", "unanswered", "one_run", "few_runs", "unclear"
]
"""``unanswered``: the side whose numbers look better left more of its requests unanswered. These are in no latency and
took no time, so that the others look better for it."""


@dataclass(frozen=True)
class MeasuredRun:
    """One run of a side."""

    conditions: RunConditions
    values: Mapping[str, float | None]
    """By the keys of :data:`~cbtrace.site.analysis.run_values.RUN_VALUES`."""
    memory_scope: str | None
    """Whose peak memory it is: amounts of different scopes are not compared."""


def measured_run(trace: Trace, summary: RunSummary) -> MeasuredRun:
    """Take from a run what a comparison needs."""
    values = {key: value.of(summary) for key, value in RUN_VALUES.items()}
    return MeasuredRun(run_conditions(trace), values, summary.peak_memory_scope)


@dataclass(frozen=True)
class ComparedValue:
    """One number of both sides, one entry a run, and what is to be thought of the difference."""

    value: RunValue
    a: list[float | None]
    b: list[float | None]
    judgement: Judgement

    @property
    def direction(self) -> str:
        """What B is: ``slower``, ``fewer``, ``equal``, ...; empty where it is unknown."""
        return "" if self.judgement.difference is None else self.value.direction(self.judgement.difference)


@dataclass(frozen=True)
class Headline:
    """One word on the whole, from the few numbers of ``HEADLINE_KEYS`` at a level that all of them share.

    ``better`` lists the numbers that are better beyond noise, ``worse`` and ``changed`` likewise.
    """

    word: HeadlineWord
    why: HeadlineWhy
    better: list[str]
    worse: list[str]
    changed: list[str]


@dataclass(frozen=True)
class Comparison:
    """All of it."""

    comparability: Comparability
    values: list[ComparedValue]
    headline: Headline


def compare(a: Sequence[MeasuredRun], b: Sequence[MeasuredRun]) -> Comparison:
    """Compare B with A, each one run or more."""
    comparability = compare_conditions([run.conditions for run in a], [run.conditions for run in b])
    return Comparison(
        comparability,
        [_compared(key, a, b, comparability, LEVEL) for key in RUN_VALUES],
        _headline(
            [_compared(key, a, b, comparability, HEADLINE_LEVEL) for key in HEADLINE_KEYS],
            comparability,
            _unanswered(b) - _unanswered(a),
        ),
    )


def values_of(key: str, a: Sequence[MeasuredRun], b: Sequence[MeasuredRun]) -> tuple[list[float | None], ...]:
    """The number of each run of A, and of B; unknown where peak memory is not of one scope."""
    if key == MEMORY and len({run.memory_scope for run in (*a, *b) if run.memory_scope}) > 1:
        return [None] * len(a), [None] * len(b)
    return [run.values.get(key) for run in a], [run.values.get(key) for run in b]


def judge_under(comparability: Comparability, judgement: Judgement) -> Judgement:
    """What a difference means, given what the sides differ by.

    Repeats of one setting differ by noise, whatever their numbers. Runs that are no repeats, or were not measured, tell
    nothing. Where the sides did different work, a difference is no merit of either.
    """
    if comparability.kind == "same":
        return judgement.as_same_settings()
    if comparability.kind in ("mixed", "predicted"):
        return replace(judgement, word="cannot_tell", why=comparability.kind)
    if not comparability.same_work and judgement.word in ("better", "worse"):
        return replace(judgement, word="changed")
    return judgement


def _compared(
    key: str, a: Sequence[MeasuredRun], b: Sequence[MeasuredRun], comparability: Comparability, level: float
) -> ComparedValue:
    value = RUN_VALUES[key]
    left, right = values_of(key, a, b)
    return ComparedValue(value, left, right, judge_under(comparability, judge(left, right, value.better, level)))


def _unanswered(side: Sequence[MeasuredRun]) -> float:
    """Share of the requests of a side that failed or had not ended, over all of its runs."""

    def count(*endings: str) -> float:
        return sum(run.values.get(f"requests.{ending}") or 0.0 for run in side for ending in endings)

    total = count("finished", "failed", "cancelled", "running")
    return count("failed", "running") / total if total else 0.0


def _headline(values: list[ComparedValue], comparability: Comparability, unanswered: float) -> Headline:
    found = {
        word: [it.value.key for it in values if it.judgement.word == word] for word in ("better", "worse", "changed")
    }
    word, why = _headline_word([it.judgement for it in values], comparability)
    if (word == "better" and unanswered > 0) or (word == "worse" and unanswered < 0):
        word, why = "cannot_tell", "unanswered"
    return Headline(word, why, found["better"], found["worse"], found["changed"])


def _headline_word(judgements: list[Judgement], comparability: Comparability) -> tuple[HeadlineWord, HeadlineWhy]:
    kind, words = comparability.kind, {it.word for it in judgements}
    reasons = {it.why for it in judgements if it.why != "unknown"}
    if kind == "mixed" or kind == "predicted":
        return "cannot_tell", kind
    if kind == "same":
        return "within_noise", "same_settings"
    if kind == "unlike" and not comparability.same_work:
        return "cannot_tell", "unlike"
    if {"better", "worse"} <= words:
        return "better_and_worse", "numbers"
    if "better" in words:
        return "better", "numbers"
    if "worse" in words:
        return "worse", "numbers"
    if reasons and all(it.word == "within_noise" for it in judgements if it.why != "unknown"):
        return "within_noise", "numbers"
    if reasons == {"one_run"}:
        return "cannot_tell", "one_run"
    return "cannot_tell", "few_runs" if reasons == {"few_runs"} else "unclear"
