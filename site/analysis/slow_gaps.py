"""The slowest token gaps of a run, each with the steps it spans and what was in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.captures import captures_within
from cbtrace.site.analysis.gaps import GapCuts, GapPlaces
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Ints
from cbtrace.traces.pairs import Block
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind

SLOWEST = 50
"""How many are kept."""


@dataclass(frozen=True)
class SlowGap:
    """One gap, from token ``position - 1`` to token ``position`` of a request, and the steps after the former."""

    request: int
    position: int
    start_ns: int
    duration_ns: int
    pieces: Ints
    """What it was spent on, ns; shape (len(PIECES),)."""
    first_step: int
    last_step: int
    steps: int
    steps_with_request: int
    """Steps of the gap in which the request itself had tokens."""
    prefill_tokens: int
    decode_tokens: int
    recompute_tokens: int
    own_recompute: int
    """Tokens of the request itself that were computed again."""
    captures: int
    """CUDA graphs that were captured meanwhile."""
    soft_reset: bool
    offloaded: bool
    longest_step: int
    longest_step_ns: int


@dataclass(frozen=True)
class _Kept:
    """Gaps that may be among the slowest, with what is known of them from their request's steps alone."""

    cuts: GapCuts
    own_steps: Ints
    own_recompute: Ints

    def take(self, rows: Ints) -> _Kept:
        return _Kept(self.cuts.take(rows), self.own_steps[rows], self.own_recompute[rows])


class Slowest:
    """Keeps the slowest of gaps that come in order of request and position; of equal ones, the first."""

    def __init__(self, trace: Trace, limit: int = SLOWEST) -> None:
        self._trace, self._limit = trace, limit
        self._kept: _Kept | None = None

    def candidates(self, durations: Ints) -> Ints:
        """Which of the next gaps may be among the slowest."""
        floor = None
        if self._kept is not None and len(self._kept.own_steps) == self._limit:
            floor = self._kept.cuts.total_ns[-1]
        at = np.flatnonzero(durations > floor) if floor is not None else np.arange(len(durations))
        if len(at) > self._limit:
            least = np.partition(durations[at], len(at) - self._limit)[len(at) - self._limit]
            at = at[durations[at] >= least]
            at = np.sort(at[np.argsort(-durations[at], kind="stable")[: self._limit]])
        return at

    def add(self, pairs: Block, places: GapPlaces, cuts: GapCuts, at: Ints) -> None:
        """Take the gaps ``at``, whose cuts are given."""
        if not len(at):
            return
        before, last = places.before[at], places.last[at]
        again = np.array([pairs.recompute[i + 1 : j + 1].sum() for i, j in zip(before, last, strict=True)])
        new = _Kept(cuts, last - before, again.astype(np.int64))
        both = new if self._kept is None else _joined(self._kept, new)
        order = np.lexsort((both.cuts.position, both.cuts.request, -both.cuts.total_ns))[: self._limit]
        self._kept = both.take(order)

    def found(self) -> list[SlowGap]:
        """The slowest ones, slowest first."""
        if self._kept is None:
            return []
        durations = step_durations(self._trace.steps)
        return [_described(self._trace, durations, self._kept, i) for i in range(len(self._kept.own_steps))]


def _joined(first: _Kept, second: _Kept) -> _Kept:
    names = GapCuts.__dataclass_fields__
    cuts = GapCuts(*(np.concatenate([getattr(first.cuts, name), getattr(second.cuts, name)]) for name in names))
    return _Kept(
        cuts,
        np.concatenate([first.own_steps, second.own_steps]),
        np.concatenate([first.own_recompute, second.own_recompute]),
    )


def _described(trace: Trace, durations: Ints, kept: _Kept, i: int) -> SlowGap:
    steps, events, cuts = trace.steps, trace.events, kept.cuts
    request, first, last = int(cuts.request[i]), int(cuts.first_step[i]), int(cuts.last_step[i])
    lo, hi = np.searchsorted(steps.index, (first, last + 1))
    happened = events.kind[(events.request == request) & (events.step >= first) & (events.step <= last)]
    longest = lo + int(np.argmax(durations[lo:hi])) if hi > lo else -1
    return SlowGap(
        request=request,
        position=int(cuts.position[i]),
        start_ns=int(cuts.start_ns[i]),
        duration_ns=int(cuts.total_ns[i]),
        pieces=cuts.pieces[i],
        first_step=first,
        last_step=last,
        steps=int(hi - lo),
        steps_with_request=int(kept.own_steps[i]),
        prefill_tokens=int(steps.prefill_tokens[lo:hi].sum()),
        decode_tokens=int(steps.decode_tokens[lo:hi].sum()),
        recompute_tokens=int(steps.recompute_tokens[lo:hi].sum()),
        own_recompute=int(kept.own_recompute[i]),
        captures=captures_within(events, int(cuts.start_ns[i]), int(cuts.start_ns[i] + cuts.total_ns[i])),
        soft_reset=bool((happened == EventKind.SOFT_RESET).any()),
        offloaded=bool((happened == EventKind.OFFLOAD).any()),
        longest_step=int(steps.index[longest]) if longest >= 0 else -1,
        longest_step_ns=int(durations[longest]) if longest >= 0 else -1,
    )
