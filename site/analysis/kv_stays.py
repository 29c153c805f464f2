"""What each request held of the KV cache: one row a stay, from an admission to the end, soft reset or offload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.kv import blocks_for
from cbtrace.traces.columns import Ints
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


def kv_stays(trace: Trace) -> KvStays:
    """The stays of all requests of ``trace``."""
    admissions = trace.admissions
    order = np.lexsort((admissions.step, admissions.request))
    request, step = admissions.request[order], admissions.step[order]
    reached = np.maximum(
        _reached(trace, request, step), np.where(admissions.start[order] > 0, admissions.start[order], -1)
    )
    groups = trace.geometry.groups if trace.geometry else []
    blocks, size = _held(groups, reached)
    left, recorded = _left(trace, request, step)
    return KvStays(
        request=request,
        time_ns=admissions.time_ns[order],
        start=admissions.start[order],
        prefix_hit=admissions.prefix_hit[order],
        reached=reached,
        blocks=blocks,
        bytes=size,
        left=left,
        recorded_blocks=recorded,
    )


def _row_of(request: Ints, step: Ints, of_request: Ints, of_step: Ints) -> Ints:
    """The last stay (``request``, ``step``: sorted) of each other request that began by its step; -1 without one."""
    width = int(max(step.max(initial=0), of_step.max(initial=0))) + 2
    row = np.searchsorted(request * width + step, of_request * width + of_step, side="right") - 1
    found: Ints = np.where((row >= 0) & (np.append(request, -1)[row] == of_request), row, -1)
    return found


def _reached(trace: Trace, request: Ints, step: Ints) -> Ints:
    """By stay: the most tokens that its steps lead to."""
    members = trace.step_requests
    kept = (members.position >= 0) & ~members.wasted
    end = (members.position + members.prefill + members.decode + members.recompute)[kept]
    row = _row_of(request, step, members.request[kept], members.step[kept])
    reached = np.full(len(request), -1, dtype=np.int64)
    np.maximum.at(reached, row[row >= 0], end[row >= 0])
    return reached


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
