"""Where steps are missing or only partly known, and what can still be counted across them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Bools, Ints


@dataclass(frozen=True)
class Gaps:
    """Stretches of steps that are missing: ``lost[i]`` is the first missing index, ``resumed[i]`` the next there."""

    lost: Ints
    resumed: Ints

    @classmethod
    def of(cls, index: Ints, known: Bools | None = None) -> Gaps:
        """Gaps in ``index``; steps that are not ``known`` count as missing too. The end of the trace is no gap."""
        there = index if known is None else index[known]
        after = np.flatnonzero(np.diff(there, prepend=-1) > 1)
        return cls(np.append(-1, there)[after] + 1, there[after])

    def since(self, begin: Ints, step: Ints) -> Bools:
        """Whether a step at or after ``begin`` and before ``step`` is missing."""
        upto = np.searchsorted(self.resumed, step, side="right")
        return upto > np.searchsorted(self.resumed, begin, side="right")

    def until(self, step: Ints, end: Ints) -> Bools:
        """Whether a step after ``step`` and before ``end`` is missing."""
        upto = np.searchsorted(self.lost, end, side="left")
        return upto > np.searchsorted(self.lost, step, side="right")

    def first_after(self, begin: Ints) -> Ints:
        """The first step that follows a gap which reaches beyond ``begin``; the largest number when there is none."""
        resumed = np.append(self.resumed, np.iinfo(np.int64).max)
        return resumed[np.searchsorted(resumed, begin, side="right")]
