"""The KV cache of a hybrid model by group of layers: what the requests hold of each, step by step.

A trace has the bytes in use over all groups. How they divide follows from how far each request is: full attention holds
blocks for every position, a sliding window for the newest ones only. The sum is held against the recorded use, and what
the positions do not explain is told apart, never spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.kv import blocks_for
from cbtrace.site.analysis.slack import BlockSlack
from cbtrace.traces.columns import Ints
from cbtrace.traces.pairs import Block
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind, KvGroup

AWAY = (EventKind.SOFT_RESET, EventKind.OFFLOAD)
"""Events by which a request gives up its blocks before it ends."""


@dataclass(frozen=True)
class LayerGroup:
    """Groups of layers with one name, as one: their blocks are given out together."""

    name: str
    layers: int
    block_bytes: int
    """Bytes of one block of each of them."""
    tokens_per_block: int
    window: int
    """In tokens; -1 for full attention."""


@dataclass(frozen=True)
class KvByGroup:
    """Bytes by group and step; shape (groups, steps), rows as ``groups``, columns as the table of steps."""

    groups: list[LayerGroup]
    used: Ints
    written: Ints
    """Of what is used, what tokens fill; the rest is slack inside blocks."""
    cached: Ints
    """Reusable prefixes; -1 where the engine does not tell them apart."""
    stranded: Ints
    """Free blocks inside memory that a group owns: of no use to another one; -1 likewise."""
    unexplained: Ints
    """By step: bytes in use that the positions of requests do not explain (negative where blocks are shared)."""

    @property
    def slack(self) -> BlockSlack | None:
        """Slack inside blocks, over the steps that positions explain wholly; ``None`` without one."""
        used = self.used.sum(axis=0)
        told = (self.unexplained == 0) & (used > 0)
        if not told.any():
            return None
        slack = (used - self.written.sum(axis=0))[told]
        return BlockSlack(float(slack.mean()), float(np.mean(slack / used[told])), len(used), int(told.sum()))

    @property
    def explained(self) -> float:
        """Share of the bytes in use, over all steps, that the groups account for."""
        total = int(self.used.sum()) + int(self.unexplained.sum())
        return 1 - int(np.abs(self.unexplained).sum()) / total if total > 0 else 0.0


def kv_by_group(trace: Trace) -> KvByGroup | None:
    """The division of the KV cache; ``None`` for a model with one kind of layers, or without steps."""
    groups = _merged(trace.geometry.groups) if trace.geometry else []
    if len(groups) < 2 or not len(trace.steps.index) or any(group.tokens_per_block <= 0 for group in groups):
        return None
    holdings = _Holdings(trace, groups)
    for block in trace.by_request():
        holdings.add(block.pairs)
    used, written = holdings.bytes()
    free, cached = _recorded(trace, groups)
    known = trace.steps.kv_used >= 0
    return KvByGroup(groups, used, written, cached, free, np.where(known, trace.steps.kv_used - used.sum(axis=0), 0))


def _merged(groups: list[KvGroup]) -> list[LayerGroup]:
    merged: dict[str, LayerGroup] = {}
    for group in groups:
        before = merged.get(group.name)
        merged[group.name] = LayerGroup(
            name=group.name,
            layers=group.layers + (before.layers if before else 0),
            block_bytes=group.block_bytes + (before.block_bytes if before else 0),
            tokens_per_block=group.tokens_per_block,
            window=group.window,
        )
    return list(merged.values())


class _Holdings:
    """Adds up what requests hold of each group, some requests at a time."""

    def __init__(self, trace: Trace, groups: list[LayerGroup]) -> None:
        self._trace, self._groups = trace, groups
        self._departures = _departures(trace)
        shape = (len(groups), len(trace.steps.index) + 1)
        self._used, self._written = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)

    def add(self, pairs: Block) -> None:
        """Add requests with all of their steps."""
        kept = np.flatnonzero((pairs.position >= 0) & ~pairs.wasted)
        request, row = pairs.request[kept], pairs.row[kept]
        reached = (pairs.position + pairs.prefill + pairs.decode + pairs.recompute)[kept]
        until = _held_until(self._trace, self._departures, request, self._trace.steps.index[row])
        end = np.maximum(np.searchsorted(self._trace.steps.index, until), row)
        for at, group in enumerate(self._groups):
            tokens = np.minimum(reached, group.window) if group.window >= 0 else reached
            blocks = blocks_for(reached, group.tokens_per_block, group.window)
            for changes, amount in ((self._used[at], blocks), (self._written[at], tokens)):
                np.add.at(changes, row, amount)
                np.add.at(changes, end, -amount)

    def bytes(self) -> tuple[Ints, Ints]:
        """By group and step: bytes that requests hold once it was scheduled, and those of them that tokens fill."""
        size = np.array([[group.block_bytes] for group in self._groups])
        width = np.array([[group.tokens_per_block] for group in self._groups])
        used, written = (np.cumsum(changes[:, :-1], axis=1) for changes in (self._used, self._written))
        return used * size, written * size // width


def _held_until(trace: Trace, departures: tuple[Ints, Ints], request: Ints, step: Ints) -> Ints:
    """The step from which each request holds another number of blocks: its next one, or the one that sees it gone."""
    far = np.iinfo(np.int64).max
    again = np.append(request[1:] == request[:-1], False)
    following = np.where(again, np.append(step[1:], far), far)
    gone_request, gone_step = departures
    width = int(trace.steps.index[-1]) + 2
    keys = gone_request * width + np.minimum(gone_step, width - 1)
    at = np.searchsorted(keys, request * width + step, side="right")
    there = np.append(gone_request, -1)[at] == request
    return np.minimum(following, np.where(there, np.append(gone_step, far)[at], far))


def _departures(trace: Trace) -> tuple[Ints, Ints]:
    """Requests that gave up their blocks and the first step that could see it, ordered by both."""
    events, requests, steps = trace.events, trace.requests, trace.steps
    rows = np.isin(events.kind, AWAY) & (events.request >= 0)
    ended = np.flatnonzero(requests.end_ns >= 0)
    at = np.searchsorted(steps.scheduled_ns, requests.end_ns[ended], side="right")
    seen = np.append(steps.index, steps.index[-1] + 1)[at]
    request, step = np.concatenate([events.request[rows], ended]), np.concatenate([events.step[rows], seen])
    order = np.lexsort((step, request))
    return request[order].astype(np.int64), step[order].astype(np.int64)


def _recorded(trace: Trace, groups: list[LayerGroup]) -> tuple[Ints, Ints]:
    """Free and cached bytes inside each group's own memory, as recorded; -1 where the engine does not tell."""
    shape = (len(groups), len(trace.steps.index))
    free, cached = np.full(shape, -1, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    size = np.array([group.block_bytes for group in groups])
    for step, counts in trace.kv_groups().items():
        if counts.shape == (len(groups), 2):
            row = int(np.searchsorted(trace.steps.index, step))
            free[:, row], cached[:, row] = counts[:, 0] * size, counts[:, 1] * size
    return free, cached
