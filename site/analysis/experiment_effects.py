"""How a variant's run-level values differ from its rival's, and what more runs would tell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.site.analysis.comparability import compare_conditions
from cbtrace.site.analysis.experiment import Variant
from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEAST_RUNS, Judgement, judge
from cbtrace.site.analysis.run_values import RUN_VALUES, RunValue

THROUGHPUT = "throughput_generated_tps"
SPEED = (THROUGHPUT, "ttft_ms.p95", "token_gap_ms.p99", "e2e_ms.p95")
"""Keys of the run-level values that decide when correctness and SLOs do not, in the order in which they are told."""
MEMORY = "peak_memory_bytes"

MOST_RUNS = 20
"""Runs a side beyond which no more are asked for: the difference is too small beside the noise."""


@dataclass(frozen=True)
class Effect:
    """The change of one run-level value: rival A, variant B. Judged so that all of the headline together hold 95 %."""

    value: RunValue
    judgement: Judgement

    @property
    def key(self) -> str:
        """Key of the run-level value."""
        return self.value.key

    @property
    def word(self) -> str:
        """``better``, ``worse``, ``within_noise`` or ``cannot_tell``."""
        return self.judgement.word


def effects(rival: Variant, variant: Variant) -> list[Effect]:
    """The changes that decide between two variants. What repeats of one setting differ by is never better or worse."""
    found = [effect(rival.values(key), variant.values(key), key) for key in (*SPEED, MEMORY)]
    if not rival.measured or not variant.measured:
        return found
    if compare_conditions(rival.conditions, variant.conditions).kind != "same":
        return found
    return [Effect(it.value, it.judgement.as_same_settings()) for it in found]


def effect(rival: Sequence[float], variant: Sequence[float], key: str) -> Effect:
    """Judge one run-level value."""
    value = RUN_VALUES[key]
    return Effect(value, judge(rival, variant, value.better, HEADLINE_LEVEL))


def runs_to_tell(rival: Sequence[float], variant: Sequence[float], key: str) -> int | None:
    """How many runs a side would tell, if difference and noise stay as they have been seen; an estimate.

    With a single run on a side there is no noise to go by: then it is the least that any verdict takes. ``None`` when
    it is more than :data:`MOST_RUNS`, or when nothing has been measured.
    """
    least = LEAST_RUNS // 2
    if not rival or not variant:
        return None
    if min(len(rival), len(variant)) < 2:
        return max(least, len(rival), len(variant))
    for runs in range(max(least, min(len(rival), len(variant)) + 1), MOST_RUNS + 1):
        a, b = (_alike(values, max(runs, len(values))) for values in (rival, variant))
        if effect(a, b, key).word != "cannot_tell":
            return runs
    return None


def _alike(values: Sequence[float], runs: int) -> list[float]:
    """As many values of the same mean and variance."""
    mean = statistics.fmean(values)
    pairs = runs // 2
    spread = math.sqrt(statistics.variance(values) * (runs - 1) / (2 * pairs))
    return [mean - spread] * pairs + [mean] * (runs % 2) + [mean + spread] * pairs
