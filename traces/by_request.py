"""Joins steps with stays request by request: every step of a few requests at a time, in bounded memory.

The bits of a slot are read only where a stay says whose they are, so that nothing has to be sorted: a stay's steps come
in their order. :mod:`.attribution` gives the same pairs step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Bools, Ints
from .pairs import GROUP, Block, RequestBlock, Span, ranges, stable_order
from .residency import Residencies
from .schema import ChunkFlag
from .stepstore import StepColumns

PART_PAIRS = 1 << 18
"""About so many pairs are in memory at once; those of one request always are."""


@dataclass(frozen=True)
class JoinInputs:
    """What is joined, requests as rows of the table of requests."""

    steps: StepColumns
    stays: Residencies
    stay_request: Ints
    chunk_request: Ints
    wasted_request: Ints
    lost_from: Ints
    """By stay: the step from which on its positions are not known. One more entry, for no stay."""
    requests: int
    width: int
    """Slots from here on decode nothing."""


@dataclass(frozen=True)
class _Stretches:
    """Rows of steps in which a slot belongs to a stay; ordered by request, then by row."""

    stay: Ints
    slot: Ints
    begin: Ints
    end: Ints

    def take(self, order: Ints) -> _Stretches:
        return _Stretches(*(getattr(self, name)[order] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Merged:
    """Pairs of a part before they are counted; ``chunk`` says which chunk of the trace one is, -1 for a decode."""

    row: Ints
    request: Ints
    stay: Ints
    chunk: Ints


class RequestJoin:
    """See the module."""

    def __init__(self, given: JoinInputs) -> None:
        self._given = given
        self._index = given.steps.numbers["index"]
        self._data = np.frombuffer(given.steps.decode.data, dtype=np.uint8)
        begin = np.searchsorted(self._index, given.stays.begin)
        end = np.searchsorted(self._index, given.stays.end)
        self._end_row = end
        everything = _Stretches(np.arange(len(begin)), given.stays.slot, begin, end)
        decoding = everything.take(np.flatnonzero((given.stays.slot < given.width) & (begin < end)))
        decoding = _without_overlaps(decoding, len(self._index))
        request = given.stay_request[decoding.stay]
        order = np.lexsort((decoding.slot, decoding.begin, request))
        self._stretches, self._stretch_request = decoding.take(order), request[order]
        self._chunk_order = np.lexsort((given.steps.chunks.row, given.chunk_request))
        self._chunk_sorted = given.chunk_request[self._chunk_order]
        self._stay_order = np.lexsort((begin, given.stay_request))
        self._stay_keys = (given.stay_request * (len(self._index) + 1) + begin)[self._stay_order]
        self._start = np.append(given.stays.start, -1)

    def part(self, span: Span) -> RequestBlock:
        """The pairs of some requests, ordered by request, then by step."""
        return self._counted(*span, self._merged(*span))

    def bounds(self) -> list[Span]:
        """The requests of each part that is in memory at once."""
        count = self._given.requests
        cells = np.zeros(count + 1, dtype=np.int64)
        lengths = self._stretches.end - self._stretches.begin
        np.add.at(cells, self._stretch_request + 1, lengths)
        np.add.at(cells, self._chunk_sorted[self._chunk_sorted >= 0] + 1, 1)
        before, found = np.cumsum(cells), []
        first = 0
        while first < count:
            end = int(np.searchsorted(before, before[first] + PART_PAIRS, side="right")) - 1
            whole = end // GROUP * GROUP
            end = count if end >= count else max(whole if whole > first else end, first + 1)
            found.append((first, end))
            first = end
        return found

    def _merged(self, first: int, end: int) -> _Merged:
        row, stretch = self._decodes(first, end)
        request, stay = self._stretch_request[stretch], self._stretches.stay[stretch]
        place = self._chunk_order[slice(*np.searchsorted(self._chunk_sorted, (first, end)))]
        chunk_row, chunk_request = self._given.steps.chunks.row[place], self._given.chunk_request[place]
        chunk_stay = self._stay_at(chunk_request, chunk_row)
        width = len(self._index) + 1
        key, chunk_key = request * width + row, chunk_request * width + chunk_row
        if (np.diff(key) < 0).any():  # two stays of a request at a time: damage
            order = np.argsort(key, kind="stable")
            row, request, stay, key = row[order], request[order], stay[order], key[order]
        at = np.searchsorted(key, chunk_key, side="right") + np.arange(len(place))
        decodes = np.ones(len(key) + len(place), dtype=np.bool_)
        decodes[at] = False
        size = len(decodes)
        columns = [np.empty(size, dtype=np.int64) for _ in range(3)]
        merged = _Merged(columns[0], columns[1], columns[2], np.full(size, -1, dtype=np.int64))
        for name, of_decodes, of_chunks in (
            ("row", row, chunk_row),
            ("request", request, chunk_request),
            ("stay", stay, chunk_stay),
        ):
            column = getattr(merged, name)
            column[decodes], column[at] = of_decodes, of_chunks
        merged.chunk[at] = place
        return merged

    def _decodes(self, first: int, end: int) -> tuple[Ints, Ints]:
        """Rows of the plain decodes of these requests, and which stretch each is in."""
        part = slice(*np.searchsorted(self._stretch_request, (first, end)))
        begin, slot = self._stretches.begin[part], self._stretches.slot[part]
        length = self._stretches.end[part] - begin
        row, bits = ranges(begin, length), self._given.steps.decode
        byte = np.repeat(slot >> 3, length)
        there = byte < bits.length[row]
        byte += bits.offset[row]
        byte[~there] = 0
        set_bits = (self._data[byte] >> np.repeat((slot & 7).astype(np.uint8), length)) & 1 if len(row) else row
        at = np.flatnonzero(there & (set_bits == 1))
        stretch = np.repeat(np.arange(part.start, part.stop), length)
        return row[at], stretch[at]

    def _stay_at(self, request: Ints, row: Ints) -> Ints:
        """The stay of each request at a row; -1 where none is known."""
        if not len(self._stay_keys):
            return np.full(len(request), -1, dtype=np.int64)
        at = np.searchsorted(self._stay_keys, request * (len(self._index) + 1) + row, side="right") - 1
        stay = self._stay_order[np.maximum(at, 0)]
        fits = (at >= 0) & (self._given.stay_request[stay] == request) & (row < self._end_row[stay])
        return np.where(fits, stay, -1)

    def _counted(self, first: int, end: int, merged: _Merged) -> RequestBlock:
        chunks, size = self._given.steps.chunks, len(merged.row)
        at = np.flatnonzero(merged.chunk >= 0)
        place = merged.chunk[at]
        prefill, recompute = (np.zeros(size, dtype=np.int64) for _ in range(2))
        decode, new = np.ones(size, dtype=np.int64), np.ones(size, dtype=np.bool_)
        prefill[at], recompute[at] = chunks.prefill[place], chunks.recompute[place]
        decode[at] = (chunks.flags[place] & ChunkFlag.DECODE) > 0
        new[at] = (chunks.flags[place] & ChunkFlag.NEW_TOKEN) > 0
        wasted = self._wasted(first, end, merged)
        position = self._positions(merged, prefill + recompute + decode)
        new &= ~wasted
        pairs = Block(merged.row, merged.request, prefill, decode, recompute, position, new, wasted)
        return RequestBlock(first, end, pairs, at)

    def _wasted(self, first: int, end: int, merged: _Merged) -> Bools:
        given = self._given
        part = (given.wasted_request >= first) & (given.wasted_request < end)
        if not part.any():
            return np.zeros(len(merged.row), dtype=np.bool_)
        keys = given.steps.wasted.row[part] * given.requests + given.wasted_request[part]
        return np.isin(merged.row * given.requests + merged.request, keys)

    def _positions(self, merged: _Merged, tokens: Ints) -> Ints:
        """KV entries of each request before its step."""
        stay = merged.stay
        if not len(stay):
            return stay
        order = None
        starts = np.flatnonzero(np.diff(stay, prepend=-2))
        if len(np.unique(stay[starts])) < len(starts):  # stays interleave: damage, or chunks without one
            order = stable_order(stay)
            stay, tokens = stay[order], tokens[order]
            starts = np.flatnonzero(np.diff(stay, prepend=-2))
        length = np.diff(np.append(starts, len(stay)))
        before = np.cumsum(tokens) - tokens
        whose = stay[starts]
        position: Ints = before + np.repeat(self._start[whose] - before[starts], length)
        unknown = np.repeat(self._start[whose] < 0, length)
        row = merged.row if order is None else merged.row[order]
        lost = self._given.lost_from[whose]
        if (lost <= self._index[-1]).any():
            unknown |= self._index[row] >= np.repeat(lost, length)
        position[unknown] = -1
        if order is None:
            return position
        found = np.empty_like(position)
        found[order] = position
        return found


def _without_overlaps(stretches: _Stretches, rows: int) -> _Stretches:
    """Stretches of which no two have a slot at the same time: where they did, the later stay has it.

    Only rosters of a damaged trace make stays overlap.
    """
    order = np.lexsort((stretches.stay, stretches.begin, stretches.slot))
    slot, begin, end = stretches.slot[order], stretches.begin[order], stretches.end[order]
    # The furthest end so far in the slot: a stretch may reach over more than the next one.
    reach = np.maximum.accumulate(end + slot * (rows + 1))
    overlapping = (slot[1:] == slot[:-1]) & (begin[1:] + slot[1:] * (rows + 1) < reach[:-1])
    if not overlapping.any():
        return stretches
    doubtful = np.unique(slot[1:][overlapping])
    parts = [stretches.take(np.flatnonzero(~np.isin(stretches.slot, doubtful)))]
    for one in doubtful.tolist():
        parts.append(_painted(stretches.take(np.flatnonzero(stretches.slot == one)), one, rows))
    return _Stretches(*(np.concatenate(column) for column in zip(*(_columns(part) for part in parts), strict=True)))


def _painted(stretches: _Stretches, slot: int, rows: int) -> _Stretches:
    """The stretches of one slot, later ones over earlier ones."""
    occupant = np.full(rows + 1, -1, dtype=np.int64)
    for stay, begin, end in zip(
        *(part.tolist() for part in (stretches.stay, stretches.begin, stretches.end)), strict=True
    ):
        occupant[begin:end] = stay
    starts = np.flatnonzero(np.diff(occupant, prepend=-2))
    ends = np.append(starts[1:], rows)
    there = occupant[starts] >= 0
    stay = occupant[starts][there]
    return _Stretches(stay, np.full(len(stay), slot), starts[there], ends[there])


def _columns(stretches: _Stretches) -> list[Ints]:
    return [getattr(stretches, name) for name in stretches.__dataclass_fields__]
