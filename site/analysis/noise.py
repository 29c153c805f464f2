"""Is a difference between two groups of runs more than their noise? A pure function of run-level values.

The interval of the difference of means is the wider of two at 95 %: Welch's, and Student's with pooled variance. For
sides of equal size that is always Welch's. For unequal sizes Welch's alone is too narrow (2 runs against 10 of the same
setting would give 10 % false alarms), and the pooled one alone is wrong when one side is noisier. Values are taken as
they are, not as logarithms: a difference then has the unit of its metric, counts may be zero, exchanging A and B turns
the sign and nothing else, and at the few per cent by which runs differ both give the same.

Two rules besides:

* Fewer than :data:`LEAST_RUNS` runs in all give no verdict. Noise often comes in two modes (another clock, another
  place in memory). If runs fell into two modes like heads and tails, both sides would be pure and opposite in 2 of 2^n
  cases, which is more than 5 % below six runs.
* *Within noise* needs evidence that a difference is small: the whole interval lies inside the band. The band is by how
  much a single run of A and one of B would differ without a true difference (95 %), and never more than
  :data:`BAND_LIMIT` of the mean: great noise is no licence to call a change small. Otherwise one *cannot tell*.

The browser computes the same in ``templates/assets``; tests compare both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cbtrace.site.analysis.catalogue import Better
from cbtrace.site.analysis.student import student_quantile

LEVEL = 0.05
"""Two-sided level of an interval; the false-alarm rate of each verdict taken alone."""
HEADLINE_LEVEL = 0.01
""":data:`LEVEL` shared by the five numbers of the headline (Bonferroni): the false-alarm rate of all together."""
LEAST_RUNS = 6
"""Runs of both sides together, with at least two a side."""
BAND_LIMIT = 0.05
"""The noise band is at most this share of the smaller mean."""

Word = Literal["better", "worse", "changed", "within_noise", "cannot_tell"]
"""``changed`` is beyond noise where no direction is better."""
Why = Literal[
    "unknown",
    "one_run",
    "few_runs",
    "beyond_noise",
    "equal",
    "inside_band",
    "wide_interval",
    "same_settings",
    "mixed",
    "predicted",
]


@dataclass(frozen=True)
class Judgement:
    """A difference, B less A, in the unit of its metric; ``None`` where it is unknown or takes more runs."""

    runs_a: int
    """Runs of A with a value."""
    runs_b: int
    mean_a: float | None
    mean_b: float | None
    difference: float | None
    low: float | None
    """The interval of the difference, from here to ``high``."""
    high: float | None
    band: float | None
    """Half the width of the noise band around zero."""
    word: Word
    why: Why

    def relative(self, amount: float | None) -> float | None:
        """``amount`` as a share of A's mean, which is taken as exact; ``None`` when that is zero or unknown."""
        return None if amount is None or not self.mean_a else amount / abs(self.mean_a)

    @property
    def change(self) -> float | None:
        """The difference as a share of A's mean."""
        return self.relative(self.difference)

    def as_same_settings(self) -> Judgement:
        """The same numbers where both sides are repeats of one setting: what they differ by is noise by definition."""
        if self.why in ("unknown", "equal"):
            return self
        return replace(self, word="within_noise", why="same_settings")


def judge(
    a: Sequence[float | None], b: Sequence[float | None], better: Better = "lower", level: float = LEVEL
) -> Judgement:
    """Judge the values of the runs of A (baseline) and B (candidate). Unknown values are left out.

    ``level`` is :data:`LEVEL` or :data:`HEADLINE_LEVEL`.
    """
    left, right = _Sample.of(a), _Sample.of(b)
    if left is None or right is None:
        return Judgement(
            left.runs if left else 0,
            right.runs if right else 0,
            left.mean if left else None,
            right.mean if right else None,
            *(None, None, None, None),
            "cannot_tell",
            "unknown",
        )
    difference = right.mean - left.mean
    if min(left.runs, right.runs) < 2:
        return Judgement(
            left.runs, right.runs, left.mean, right.mean, difference, None, None, None, "cannot_tell", "one_run"
        )
    half = _half_width(left, right, level)
    band = _band(left, right, level)
    word, why = _word(difference, half, band, better, left.runs + right.runs)
    return Judgement(
        left.runs,
        right.runs,
        left.mean,
        right.mean,
        difference,
        difference - half,
        difference + half,
        band,
        word,
        why,
    )


@dataclass(frozen=True)
class _Sample:
    """The known values of one side."""

    runs: int
    mean: float
    variance: float
    """Of one run: with n - 1 below; zero for one run."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> _Sample | None:
        known = [float(value) for value in values if value is not None and math.isfinite(value)]
        if not known:
            return None
        # Counted from the first value, so that equal values have exactly that mean and no variance.
        first, n = known[0], len(known)
        mean = first + math.fsum(value - first for value in known) / n
        squares = math.fsum((value - mean) ** 2 for value in known)
        return cls(n, mean, squares / (n - 1) if n > 1 else 0.0)


def _half_width(a: _Sample, b: _Sample, level: float) -> float:
    """Half of the wider of Welch's and the pooled interval."""
    if a.variance == 0 and b.variance == 0:
        return 0.0
    of_a, of_b = a.variance / a.runs, b.variance / b.runs
    welch = student_quantile(level, _welch_df(a, b)) * math.sqrt(of_a + of_b)
    df = a.runs + b.runs - 2
    variance = ((a.runs - 1) * a.variance + (b.runs - 1) * b.variance) / df
    pooled = student_quantile(level, df) * math.sqrt(variance * (1 / a.runs + 1 / b.runs))
    return max(welch, pooled)


def _welch_df(a: _Sample, b: _Sample) -> float:
    # As shares of the sum: the squares of very small variances would be zero.
    total = a.variance / a.runs + b.variance / b.runs
    share_a, share_b = a.variance / a.runs / total, b.variance / b.runs / total
    return 1 / (share_a**2 / (a.runs - 1) + share_b**2 / (b.runs - 1))


def _band(a: _Sample, b: _Sample, level: float) -> float:
    if a.variance == 0 and b.variance == 0:
        return 0.0
    single = student_quantile(level, a.runs + b.runs - 2) * math.sqrt(a.variance + b.variance)
    return min(single, BAND_LIMIT * min(abs(a.mean), abs(b.mean)))


def _word(difference: float, half: float, band: float, better: Better, runs: int) -> tuple[Word, Why]:
    if runs < LEAST_RUNS:
        return "cannot_tell", "few_runs"
    if difference == 0 and half == 0:
        return "within_noise", "equal"
    if abs(difference) > half:
        if better == "neither":
            return "changed", "beyond_noise"
        return ("worse" if (difference > 0) == (better == "lower") else "better"), "beyond_noise"
    if abs(difference) + half <= band:
        return "within_noise", "inside_band"
    return "cannot_tell", "wide_interval"
