"""What each request held of the KV cache: one row a stay, from an admission to the end, soft reset or offload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.kv import blocks_for
from cbtrace.traces.columns import Ints
from cbtrace.traces.pairs import Block, RequestBlock
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind, KvGroup

AWAY = {EventKind.SOFT_RESET: 1, EventKind.OFFLOAD: 2}
"""What ends a stay, by number; 0 is the request's end, or that of the recording."""


@dataclass(frozen=True)
class KvStays:
    """One row a stay, ordered by request, then by time."""

    request: Ints
    time_ns: Ints
    """When it was admitted."""
    start: Ints
    """Tokens whose KV was there already: found as a prefix, restored, or inherited by a fork."""
    prefix_hit: Ints
    reached: Ints
    """Tokens whose KV it held in the end; -1 where positions are lost."""
    blocks: Ints
    """Blocks that hold them, over all groups of layers, shared ones included; -1 likewise."""
    bytes: Ints
    left: Ints
    """0, or what ended the stay: see :data:`AWAY`."""
    recorded_blocks: Ints
    """Blocks that the engine took back, as recorded with a soft reset or an offload; -1 elsewhere."""


class Stays:
    """Finds the stays of some requests at a time."""

    def __init__(self, trace: Trace) -> None:
        admissions = trace.admissions
        self._order = np.lexsort((admissions.step, admissions.request))
        self._admissions = admissions
        self._request, self._step = admissions.request[self._order], admissions.step[self._order]
        self._row = np.searchsorted(trace.steps.index, self._step)
        self._left, self._recorded = _left(trace, self._request, self._step)
        self._groups = trace.geometry.groups if trace.geometry else []
        self._width = len(trace.steps.index) + 1

    def of(self, block: RequestBlock) -> KvStays:
        """The stays of the block's requests."""
        part = slice(*np.searchsorted(self._request, (block.first, block.end)))
        admissions, rows = self._admissions, self._order[part]
        start = admissions.start[rows]
        reached = np.maximum(self._reached(block.pairs, part), np.where(start > 0, start, -1))
        blocks, size = _held(self._groups, reached)
        return KvStays(
            request=self._request[part],
            time_ns=admissions.time_ns[rows],
            start=start,
            prefix_hit=admissions.prefix_hit[rows],
            reached=reached,
            blocks=blocks,
            bytes=size,
            left=self._left[part],
            recorded_blocks=self._recorded[part],
        )

    def _reached(self, pairs: Block, part: slice) -> Ints:
        """By stay: the most tokens that its steps lead to, from its admission to the next one of its request."""
        request = self._request[part]
        key = pairs.request * self._width + pairs.row
        begin = np.searchsorted(key, request * self._width + self._row[part])
        end = np.searchsorted(pairs.request, request, side="right")
        again = np.flatnonzero(request[1:] == request[:-1])
        end[again] = begin[again + 1]
        kept = (pairs.position >= 0) & ~pairs.wasted
        tokens = np.where(kept, pairs.position + pairs.prefill + pairs.decode + pairs.recompute, -1)
        if not len(request):
            return request
        bounds = np.stack([begin, end], axis=1).reshape(-1)
        most = np.maximum.reduceat(np.append(tokens, -1), bounds)[::2]
        return np.where(begin < end, most, -1)


def kv_stays(trace: Trace) -> KvStays:
    """The stays of all requests of ``trace``."""
    stays = Stays(trace)
    parts = [stays.of(block) for block in trace.by_request()]
    if not parts:
        return KvStays(*(np.zeros(0, dtype=np.int64) for _ in KvStays.__dataclass_fields__))
    return KvStays(*(np.concatenate([getattr(part, name) for part in parts]) for name in KvStays.__dataclass_fields__))


def _row_of(request: Ints, step: Ints, of_request: Ints, of_step: Ints) -> Ints:
    """The last stay (``request``, ``step``: sorted) of each other request that began by its step; -1 without one."""
    width = int(max(step.max(initial=0), of_step.max(initial=0))) + 2
    row = np.searchsorted(request * width + step, of_request * width + of_step, side="right") - 1
    found: Ints = np.where((row >= 0) & (np.append(request, -1)[row] == of_request), row, -1)
    return found


def _held(groups: list[KvGroup], reached: Ints) -> tuple[Ints, Ints]:
    """Blocks and bytes that hold so many tokens."""
    blocks, size = np.zeros_like(reached), np.zeros_like(reached)
    for group in groups:
        count = blocks_for(reached, group.tokens_per_block, group.window)
        blocks, size = blocks + count, size + count * group.block_bytes
    known = (reached >= 0) & (len(groups) > 0)
    return np.where(known, blocks, -1), np.where(known, size, -1)


def _left(trace: Trace, request: Ints, step: Ints) -> tuple[Ints, Ints]:
    """What ended each stay before the request did, and the blocks recorded with it."""
    events = trace.events
    rows = np.flatnonzero(np.isin(events.kind, list(AWAY)) & (events.request >= 0))
    # The event's step is the first that can see it: the stay began before.
    row = _row_of(request, step, events.request[rows], events.step[rows] - 1)
    there = row >= 0
    left, recorded = np.zeros_like(request), np.full(len(request), -1, dtype=np.int64)
    left[row[there]] = np.array([AWAY[EventKind(kind)] for kind in events.kind[rows][there].tolist()], dtype=np.int64)
    recorded[row[there]] = events.blocks[rows][there]
    return left, recorded
