"""Joins steps with stays: which request got how many tokens in which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .by_request import JoinInputs, RequestJoin
from .columns import Bools, Ints, StepRequests
from .gaps import Gaps
from .pairs import Block, RequestBlock, Span, joined, stable_order, sums_by
from .residency import Residencies
from .schema import ChunkFlag
from .stepcode import unpack_slots
from .stepstore import Listed, StepColumns

_BLOCK_STEPS = 8192
_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""By byte."""
_BLOCK_CELLS = 1 << 20  # steps x slots of a block: bounds its memory to some tens of megabytes


class Ordinals:
    """Maps the ordinals of a trace to rows of the table of requests.

    They are the same in a whole trace, and where damage lost some requests. Only those that occur get a row in a ring,
    which gave up all others, and in a file that names ordinals far beyond the number of requests it knows.
    """

    def __init__(self, seen: Ints, *, ring: bool) -> None:
        top = int(seen[-1]) + 1 if seen.size else 0
        sparse = ring or top > 2 * seen.size + 1024
        self.values: Ints = seen if sparse else np.arange(top, dtype=np.int64)
        """The ordinal of each row."""

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, ordinals: Ints) -> Ints:
        """Rows of ordinals; -1 for those that have none, and for negative ones."""
        if not len(self.values):
            return np.full(len(ordinals), -1, dtype=np.int64)
        found = np.minimum(np.searchsorted(self.values, ordinals), len(self.values) - 1)
        return np.where(self.values[found] == ordinals, found, -1)


@dataclass(frozen=True)
class Totals:
    """Sums over all pairs, by step and by request."""

    kv_read: Ints
    """By step; -1 where a member or its position is unknown."""
    named: Ints
    """By step: members that could be named."""
    delivered: Ints
    first_row: Ints
    """By request: row of the step of its first token, -1 if it has none."""
    last_row: Ints
    prefill: Ints
    recompute: Ints
    wasted: Ints
    chunks: Block
    """The pairs that are anything but one plain decode, ordered by request, then by step."""


@dataclass(frozen=True)
class _Members:
    """Pairs of a block before their positions are known. ``stay`` is -1 where no stay is known."""

    row: Ints
    request: Ints
    stay: Ints
    prefill: Ints
    recompute: Ints
    flags: Ints

    def take(self, order: NDArray[np.intp]) -> _Members:
        return _Members(*(getattr(self, name)[order] for name in self.__dataclass_fields__))


class Attribution:
    """The pairs of a trace, computed block by block in bounded memory.

    Args:
        steps: the steps as stored, their requests as ordinals.
        stays: who was in which slot; ``request`` as ordinals.
        ordinals: maps ordinals to rows of the table of requests.
    """

    def __init__(self, steps: StepColumns, stays: Residencies, ordinals: Ordinals) -> None:
        self._steps = steps
        self._index = steps.numbers["index"]
        self._stays = stays
        self._stay_request = ordinals.rows(stays.request)
        self._requests = len(ordinals)
        self._chunk_request = ordinals.rows(steps.chunks.request)
        self._wasted_request = ordinals.rows(steps.wasted.request)
        self._width = min(int(stays.slot.max(initial=-1)) + 1, int(steps.decode.length.max(initial=0)) * 8)
        # From this step on, how far a stay had got is not known: a step before it is missing.
        self._lost_from = np.append(Gaps.of(self._index).first_after(stays.begin), 0)

    def blocks(self) -> Iterator[Block]:
        """All pairs, ordered by step, then by request."""
        progress = np.append(self._stays.start, -1)  # the last one answers for stays that are not known, -1
        for first, last in self._spans():
            yield self._block(first, last, progress)

    def _spans(self, rows: slice = slice(None)) -> Iterator[tuple[int, int]]:
        """Rows of steps that make a block: from one up to and without the other."""
        size = max(1, min(_BLOCK_STEPS, _BLOCK_CELLS // max(self._width, 1)))
        begin, end, _ = rows.indices(len(self._index))
        for first in range(begin, end, size):
            yield first, min(first + size, end)

    def _there(self, first: int, last: int) -> tuple[Ints, Ints, Ints]:
        """The stays of a block, and between which of its rows each is."""
        index = self._index[first:last]
        here = np.flatnonzero((self._stays.begin <= index[-1]) & (self._stays.end > index[0]))
        return here, np.searchsorted(index, self._stays.begin[here]), np.searchsorted(index, self._stays.end[here])

    @cached_property
    def _join(self) -> RequestJoin:
        return RequestJoin(
            JoinInputs(
                steps=self._steps,
                stays=self._stays,
                stay_request=self._stay_request,
                chunk_request=self._chunk_request,
                wasted_request=self._wasted_request,
                lost_from=self._lost_from,
                requests=self._requests,
                width=self._width,
            )
        )

    def plain_decodes(self, rows: slice = slice(None)) -> Iterator[tuple[int, Ints]]:
        """The pairs that are one plain decode, block by block: the first step of a block, and the requests in it.

        The requests are a matrix, shape (steps, slots); -1 where none decodes, or where it is not known.
        """
        request = np.append(self._stay_request, -1)
        for first, last in self._spans(rows):
            here, begin, end = self._there(first, last)
            yield first, request[self._occupants(first, last, here, begin, end)]

    @property
    def wasted(self) -> Listed:
        """The pairs whose token was dropped, by step."""
        return Listed(self._steps.wasted.row, self._wasted_request)

    def members_of(self, row: int) -> Block:
        """The pairs of one step, ordered by request, without positions."""
        return self._block(row, row + 1, np.full(len(self._stays.start) + 1, -1, dtype=np.int64))

    def request_spans(self) -> list[Span]:
        """The requests of each block of :meth:`by_request`."""
        return self._join.bounds()

    def by_request(self, spans: Sequence[Span] | None = None) -> Iterator[RequestBlock]:
        """The same pairs, ordered by request, then by step; each request is whole in one block."""
        for span in self.request_spans() if spans is None else spans:
            yield self._join.part(span)

    @cached_property
    def totals(self) -> Totals:
        """Sums over all pairs; one pass."""
        rows, requests = len(self._index), self._requests
        kv_read, named, unknown = (np.zeros(rows, dtype=np.int64) for _ in range(3))
        delivered, prefill, recompute, wasted = (np.zeros(requests, dtype=np.int64) for _ in range(4))
        first_row, last_row = (np.full(requests, -1, dtype=np.int64) for _ in range(2))
        chunks = []
        for block in self.by_request():
            pairs, of, given = block.pairs, slice(block.first, block.end), block.given
            chunks.append(pairs.take(block.chunks))
            if not pairs.row.size:
                continue
            _add(kv_read, pairs.row, np.maximum(pairs.position, 0))
            _add(named, pairs.row)
            _add(unknown, pairs.row[pairs.position < 0])
            for sums, amount in ((prefill, pairs.prefill), (recompute, pairs.recompute)):
                sums[of] = sums_by(pairs.request[block.chunks] - block.first, amount[block.chunks], of.stop - of.start)
            wasted[of] = np.bincount(pairs.request[pairs.wasted] - block.first, minlength=of.stop - of.start)
            took, when = pairs.request[given], pairs.row[given]
            delivered[of] = np.bincount(took - block.first, minlength=of.stop - of.start)
            first_row[took[::-1]] = when[::-1]
            last_row[took] = when
        kv_read[(unknown > 0) | (named < self.members)] = -1
        return Totals(kv_read, named, delivered, first_row, last_row, prefill, recompute, wasted, joined(chunks))

    @cached_property
    def decode_bits(self) -> Ints:
        """By step: plain decodes."""
        decode = self._steps.decode
        set_bits = _SET_BITS[np.frombuffer(decode.data, dtype=np.uint8)]
        before = np.append(0, np.cumsum(set_bits, dtype=np.int64))
        counts: Ints = before[decode.offset + decode.length] - before[decode.offset]
        return counts

    @cached_property
    def members(self) -> Ints:
        """By step: requests in the batch, named or not."""
        return self.decode_bits + np.bincount(self._steps.chunks.row, minlength=len(self._index))

    @cached_property
    def token_gaps(self) -> Gaps:
        """Steps of which some tokens are missing, or all: tokens cannot be counted across them."""
        return Gaps.of(self._index, self.totals.named == self.members)

    def _block(self, first: int, last: int, progress: Ints) -> Block:
        here, begin, end = self._there(first, last)
        decodes = self._decodes(first, last, here, begin, end)
        chunks = self._chunks(first, last, here, begin, end)
        both = _Members(*(np.concatenate(pair) for pair in zip(_columns(decodes), _columns(chunks), strict=True)))
        members = both.take(stable_order(both.request, both.row))
        wasted = self._wasted(first, last, members)
        decode = ((members.flags & ChunkFlag.DECODE) > 0).astype(np.int64)
        tokens = members.prefill + members.recompute + decode
        return Block(
            row=members.row,
            request=members.request,
            prefill=members.prefill,
            decode=decode,
            recompute=members.recompute,
            position=self._positions(members, tokens, progress),
            new_token=((members.flags & ChunkFlag.NEW_TOKEN) > 0) & ~wasted,
            wasted=wasted,
        )

    def _decodes(self, first: int, last: int, here: Ints, begin: Ints, end: Ints) -> _Members:
        """Plain decodes: set bits in slots whose occupant is known."""
        occupant = self._occupants(first, last, here, begin, end)
        row, slot = np.nonzero(occupant >= 0)
        stay = occupant[row, slot]
        none = np.zeros(row.size, dtype=np.int64)
        flags = np.full(row.size, ChunkFlag.DECODE | ChunkFlag.NEW_TOKEN, dtype=np.int64)
        return _Members(row + first, self._stay_request[stay], stay, none, none, flags)

    def _occupants(self, first: int, last: int, here: Ints, begin: Ints, end: Ints) -> Ints:
        """By step and slot: the stay that decodes there; -1 where none does, or where it is not known."""
        bits = unpack_slots(self._steps.decode.slice(first, last))[:, : self._width]
        occupant = np.full((last - first, self._width), -1, dtype=np.int64)
        slots = self._stays.slot[here]
        inside = slots < bits.shape[1]
        columns = (here[inside].tolist(), slots[inside].tolist(), begin[inside].tolist(), end[inside].tolist())
        for stay, slot, start, stop in zip(*columns, strict=True):
            occupant[start:stop, slot] = stay
        occupant[:, : bits.shape[1]][~bits] = -1
        return occupant

    def _chunks(self, first: int, last: int, here: Ints, begin: Ints, end: Ints) -> _Members:
        """Everything else: chunks, which name their request themselves."""
        part = _between(self._steps.chunks, first, last)
        chunks = self._steps.chunks
        row, request = chunks.row[part], self._chunk_request[part]
        stay = np.full(row.size, -1, dtype=np.int64)
        if here.size and row.size:
            span = last - first + 1
            keys = self._stay_request[here] * span + begin
            order = np.argsort(keys, kind="stable")
            found = np.searchsorted(keys[order], request * span + (row - first), side="right") - 1
            stay_at = order[np.maximum(found, 0)]
            fits = (found >= 0) & (self._stay_request[here[stay_at]] == request) & (row - first < end[stay_at])
            stay = np.where(fits, here[stay_at], -1)
        return _Members(row, request, stay, chunks.prefill[part], chunks.recompute[part], chunks.flags[part])

    def _wasted(self, first: int, last: int, members: _Members) -> Bools:
        part = _between(self._steps.wasted, first, last)
        if part.start == part.stop:
            return np.zeros(members.row.size, dtype=np.bool_)
        keys = self._steps.wasted.row[part] * self._requests + self._wasted_request[part]
        return np.isin(members.row * self._requests + members.request, keys)

    def _positions(self, members: _Members, tokens: Ints, progress: Ints) -> Ints:
        """KV entries of each member before its step; moves ``progress``, the entries by stay, on behind the block."""
        if not members.row.size:
            return members.row
        order = stable_order(members.stay)
        stay, size = members.stay[order], tokens[order]
        before = np.cumsum(size) - size
        starts = np.flatnonzero(np.diff(stay, prepend=-2))
        group = np.repeat(starts, np.diff(np.append(starts, stay.size)))
        known = (progress[stay] >= 0) & (self._index[members.row[order]] < self._lost_from[stay])
        position = np.empty(stay.size, dtype=np.int64)
        position[order] = np.where(known, progress[stay] + before - before[group], -1)
        ends = np.append(starts[1:], stay.size) - 1
        moved = stay[starts] >= 0
        whose, upto = stay[starts][moved], (before[ends] + size[ends] - before[starts])[moved]
        progress[whose] = np.where(progress[whose] >= 0, progress[whose] + upto, -1)
        return position


def as_step_requests(block: Block, index: Ints) -> StepRequests:
    """A block as a table; ``index`` are the indices of all steps."""
    return StepRequests(
        step=index[block.row],
        request=block.request,
        prefill=block.prefill,
        decode=block.decode,
        recompute=block.recompute,
        position=block.position,
        new_token=block.new_token,
        wasted=block.wasted,
    )


def _columns(members: _Members) -> list[Ints]:
    return [getattr(members, name) for name in members.__dataclass_fields__]


def _between(listed: Listed, first: int, last: int) -> slice:
    low, high = np.searchsorted(listed.row, [first, last])
    return slice(int(low), int(high))


def _add(totals: Ints, rows: Ints, amounts: Ints | None = None) -> None:
    """Add to the total of each row: amounts, whose sums are exact up to 2**53, or one."""
    if rows.size:
        low, high = int(rows.min()), int(rows.max()) + 1
        totals[low:high] += np.bincount(rows - low, weights=amounts, minlength=high - low).astype(np.int64)
