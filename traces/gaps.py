"""Where steps are missing or only partly known, and what can still be counted across them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Bools, Ints

_NEVER = np.iinfo(np.int64).max - 1  # one less, so that its distance from -1 is a number too


@dataclass(frozen=True)
class Gaps:
    """Stretches of steps that are missing: ``lost[i]`` is the first missing index, ``resumed[i]`` the next there."""

    lost: Ints
    resumed: Ints

    @classmethod
    def of(cls, index: Ints, known: Bools | None = None) -> Gaps:
        """Gaps in ``index``; steps that are not ``known`` count as missing too. The last gap follows the last step."""
        there = index if known is None else index[known]
        before = np.append(-1, there)
        after = np.append(there, _NEVER)
        gap = after - before > 1
        return cls(before[gap] + 1, after[gap])

    def any_before(self, step: Ints) -> bool:
        """Whether a step before one of these is missing."""
        return bool(self.lost[0] < step.max(initial=-1))

    def since(self, begin: Ints, step: Ints) -> Bools:
        """Whether a step at or after ``begin`` and before ``step`` is missing."""
        return np.searchsorted(self.lost, step) > np.searchsorted(self.resumed, begin, side="right")

    def until(self, step: Ints, end: Ints) -> Bools:
        """Whether a step after ``step`` and before ``end`` is missing."""
        return np.searchsorted(self.lost, end) > np.searchsorted(self.resumed, step + 1, side="right")

    def first_after(self, begin: Ints) -> Ints:
        """The first step that follows a gap which reaches beyond ``begin``; the largest number when there is none."""
        return np.append(self.resumed, _NEVER)[np.searchsorted(self.resumed, begin, side="right")]
