"""The slowest token gaps of a run, alike ones as one, each with the steps it spans and what was in them.

A stalled step is felt by everybody in it: told gap by gap, it would be all that a list of the slowest ones says. So
gaps over the same steps that were spent on the same are told as one, with their number. What is never slow enough for
the list, as a soft reset in a calm night, is found by what it was spent on: of each piece there is a gap that spent
most on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.captures import captures_within
from cbtrace.site.analysis.gaps import GapKinds, alike
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind

SLOWEST = 50
"""How many are told, alike ones counted once."""


@dataclass(frozen=True)
class SlowGap:
    """A gap from token ``position - 1`` to token ``position`` of a request, and the steps after the former.

    It stands for ``count`` gaps over the same steps with the same pieces; its request and position, and what events
    tell of the request, are those of the first.
    """

    request: int
    position: int
    count: int
    start_ns: int
    duration_ns: int
    pieces: Ints
    """What it was spent on, ns; shape (len(PIECES),)."""
    first_step: int
    last_step: int
    steps: int
    absent_steps: int
    """Steps of the gap in which the request had no token."""
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
class SlowGaps:
    """The worst gaps of a run."""

    slowest: list[SlowGap]
    """Slowest first; of equal ones, the first by request and position."""
    most: dict[str, SlowGap]
    """By piece, the gap that spent most on it; that of which it was most first."""


def slow_gaps(trace: Trace, kinds: GapKinds, limit: int = SLOWEST) -> SlowGaps:
    """The ``limit`` slowest of all gaps of a run, alike ones as one, and those that spent most on each piece."""
    found = _worst(kinds, limit)
    durations = step_durations(trace.steps)
    slowest = np.argsort(-found.total_ns, kind="stable")[:limit]
    most = {PIECES[column]: row for column, row in _largest(found.pieces).items()}
    told = {row: _described(trace, durations, found, row) for row in {*slowest.tolist(), *most.values()}}
    order = sorted(most, key=lambda piece: -int(found.pieces[most[piece], PIECES.index(piece)]))
    return SlowGaps([told[row] for row in slowest.tolist()], {piece: told[most[piece]] for piece in order})


def _worst(kinds: GapKinds, limit: int) -> GapKinds:
    """All kinds that may be told, each once and counted whole; few of them, however many there are."""
    order = np.argsort(-kinds.total_ns, kind="stable")
    taken = limit
    while taken < len(order) and len(alike(kinds.rows(order[:taken])).count) < limit:
        taken *= 2
    told = np.concatenate([order[:taken], np.array([*_largest(kinds.pieces).values()], dtype=np.int64)])
    # Gaps begin together only as often as there are requests at once, so what may be like these is little.
    near = np.isin(kinds.first_step, kinds.first_step[told])
    return alike(kinds.rows(np.flatnonzero(near)))


def _largest(pieces: Ints) -> dict[int, int]:
    """By column that is not all zero: the first row with its largest value."""
    return {column: int(pieces[:, column].argmax()) for column in range(pieces.shape[1]) if pieces[:, column].any()}


def _described(trace: Trace, durations: Ints, kinds: GapKinds, i: int) -> SlowGap:
    steps, events = trace.steps, trace.events
    request, first, last = int(kinds.request[i]), int(kinds.first_step[i]), int(kinds.last_step[i])
    lo, hi = (int(at) for at in np.searchsorted(steps.index, (first, last + 1)))
    happened = events.kind[(events.request == request) & (events.step >= first) & (events.step <= last)]
    longest = lo + int(np.argmax(durations[lo:hi])) if hi > lo else -1
    return SlowGap(
        request=request,
        position=int(kinds.position[i]),
        count=int(kinds.count[i]),
        start_ns=int(kinds.start_ns[i]),
        duration_ns=int(kinds.total_ns[i]),
        pieces=kinds.pieces[i],
        first_step=first,
        last_step=last,
        steps=hi - lo,
        absent_steps=int(kinds.absent_steps[i]),
        prefill_tokens=int(steps.prefill_tokens[lo:hi].sum()),
        decode_tokens=int(steps.decode_tokens[lo:hi].sum()),
        recompute_tokens=int(steps.recompute_tokens[lo:hi].sum()),
        own_recompute=_recomputed(trace, request, lo, hi),
        captures=captures_within(events, int(kinds.start_ns[i]), int(kinds.start_ns[i] + kinds.total_ns[i])),
        soft_reset=bool((happened == EventKind.SOFT_RESET).any()),
        offloaded=bool((happened == EventKind.OFFLOAD).any()),
        longest_step=int(steps.index[longest]) if longest >= 0 else -1,
        longest_step_ns=int(durations[longest]) if longest >= 0 else -1,
    )


def _recomputed(trace: Trace, request: int, lo: int, hi: int) -> int:
    """Tokens of a request that were computed again in the rows ``lo`` up to and without ``hi`` of the steps."""
    chunks = trace.chunks
    of = slice(*np.searchsorted(chunks.request, (request, request + 1)))
    return int(chunks.recompute[of][(chunks.row[of] >= lo) & (chunks.row[of] < hi)].sum())
