"""Collects the steps of a trace into numpy columns, chunk by chunk, so that no Python objects pile up."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Ints
from .packed_steps import FORMS, NARROW_CHUNK_DTYPE, STEP_NUMBERS, numbers_of, unpack_rest, unpack_steps
from .pairs import ranges
from .schema import CHUNK_FIELDS, Step
from .stepcode import CHUNK_DTYPE, INSTANTS, ORDINAL_DTYPE, unpack_times

_CHUNK_STEPS = 4096
_NUMBERS = (*STEP_NUMBERS, "attempts")


@dataclass(frozen=True)
class Listed:
    """Ordinals that few steps list: ``request[i]`` belongs to the step in row ``row[i]``. Ordered by row."""

    row: Ints
    request: Ints


@dataclass(frozen=True)
class Chunks(Listed):
    """The chunks of all steps, as columns; see :attr:`StepDetail.chunks`."""

    prefill: Ints
    recompute: Ints
    flags: Ints


@dataclass(frozen=True)
class Blobs:
    """Many short byte strings in one."""

    data: bytes | bytearray
    offset: Ints
    length: Ints

    def slice(self, first: int, last: int) -> list[bytes]:
        """The byte strings from one row up to and without another."""
        data = memoryview(self.data)
        bounds = zip(self.offset[first:last].tolist(), self.length[first:last].tolist(), strict=True)
        return [bytes(data[start : start + length]) for start, length in bounds]


@dataclass(frozen=True)
class StepColumns:
    """The steps as stored, ordered by index, without repeats."""

    numbers: dict[str, Ints]
    instants: NDArray[np.int64]
    """Shape (steps, 6)."""
    decode: Blobs
    chunks: Chunks
    wasted: Listed
    starved: Listed
    groups: dict[int, bytes]
    repeated: int
    reordered: int
    """Steps that the file has before the step that precedes them."""
    malformed: int

    def __len__(self) -> int:
        return len(self.instants)


class _Sparse:
    """Packed values that few steps have, in one string of bytes."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._row, self._length, self._data = array("q"), array("q"), bytearray()

    def add(self, row: int, data: bytes | None) -> None:
        """Take the values of a step."""
        if data:
            self._row.append(row)
            self._length.append(len(data))
            self._data += data

    def flat(self, place: Ints) -> tuple[Ints, NDArray[Any], int]:
        """Rows and values in order of rows, and how many strings had a wrong length.

        ``place`` says where each row went; -1 for nowhere.
        """
        row, length = place[np.array(self._row, dtype=np.int64)], np.array(self._length, dtype=np.int64)
        whole = length % self._dtype.itemsize == 0
        wrong = int((~whole & (row >= 0)).sum())
        at = np.flatnonzero(whole & (row >= 0))
        at = at[np.argsort(row[at], kind="stable")]
        data = np.frombuffer(self._data, dtype=np.uint8)
        if len(at) < len(row) or (np.diff(at) < 0).any():
            data = data[ranges((np.cumsum(length) - length)[at], length[at])]
        return np.repeat(row[at], length[at] // self._dtype.itemsize), data.view(self._dtype), wrong


class StepStore:
    """Takes steps one by one; see the module."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[NDArray[Any]]] = {name: [] for name in _NUMBERS}
        self._instants: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._blobs = bytearray()
        self._chunks = {dtype.itemsize: _Sparse(dtype) for dtype in (CHUNK_DTYPE, NARROW_CHUNK_DTYPE)}
        self._wasted, self._starved = _Sparse(ORDINAL_DTYPE), _Sparse(ORDINAL_DTYPE)
        self._groups: list[tuple[int, bytes]] = []
        self._count = 0
        self._start_chunk()

    def _start_chunk(self) -> None:
        self._decode: list[bytes] = []
        self._plain: list[tuple[int, Step]] = []
        self._packed: dict[int, list[bytes]] = defaultdict(list)
        self._places: dict[int, list[int]] = defaultdict(list)

    def add(self, step: Step) -> None:
        """Take a step."""
        if step.detail is not None:
            self._chunks[CHUNK_DTYPE.itemsize].add(self._count, step.detail.chunks)
            self._wasted.add(self._count, step.detail.wasted)
            self._starved.add(self._count, step.detail.starved)
            if step.detail.groups:
                self._groups.append((self._count, step.detail.groups))
        self._plain.append((len(self._decode), step))
        self._decode.append(step.decode)
        self._added()

    def add_packed(self, form: int, payload: bytes) -> None:
        """Take a packed step of a form in :data:`~cbtrace.traces.packed_steps.PACKED_SIZE`."""
        self._places[form].append(len(self._decode))
        self._packed[form].append(payload)
        bits, chunks = unpack_rest(payload)
        if chunks:
            self._chunks[FORMS[form].chunk].add(self._count, chunks)
        self._decode.append(bits)
        self._added()

    def _added(self) -> None:
        self._count += 1
        if len(self._decode) >= _CHUNK_STEPS:
            self._flush()

    def _flush(self) -> None:
        size = len(self._decode)
        numbers = np.empty((size, len(_NUMBERS)), dtype=np.int64)
        instants = np.empty((size, INSTANTS), dtype=np.int64)
        if self._plain:
            at = [place for place, _ in self._plain]
            numbers[at] = [_row(step) for _, step in self._plain]
            instants[at] = unpack_times([step.times for _, step in self._plain])
        for form, payloads in self._packed.items():
            at = self._places[form]
            numbers[at, :-1], instants[at] = unpack_steps(form, payloads)
            numbers[at, -1] = 1  # attempts: a step with more has details
        for column, name in enumerate(_NUMBERS):
            self._numbers[name].append(_narrowed(numbers[:, column]))
        self._instants.append(instants)
        self._lengths.append(np.fromiter(map(len, self._decode), dtype=np.int64, count=size))
        self._blobs += b"".join(self._decode)
        self._start_chunk()

    def finish(self) -> StepColumns:
        """Put the steps in order of index, drop repeats, flatten the sparse parts. The store is empty then."""
        self._flush()
        numbers = {name: np.concatenate(self._numbers.pop(name), dtype=np.int64) for name in _NUMBERS}
        instants, self._instants = np.asfortranarray(np.concatenate(self._instants)), []
        lengths, self._lengths = np.concatenate(self._lengths), []
        offsets = np.cumsum(lengths) - lengths
        index, reordered, place = numbers["index"], 0, np.arange(self._count)
        if not (np.diff(index) > 0).all():
            _, order = np.unique(index, return_index=True)  # the first of each index, in order
            reordered = int((np.diff(order) < 0).sum())
            place = np.full(self._count, -1, dtype=np.int64)
            place[order] = np.arange(len(order))
            numbers = {name: column[order] for name, column in numbers.items()}
            instants, offsets, lengths = (part[order] for part in (instants, offsets, lengths))
        chunks, bad = self._flat_chunks(place)
        wasted, starved = self._wasted.flat(place), self._starved.flat(place)
        return StepColumns(
            numbers=numbers,
            instants=instants,
            decode=Blobs(self._blobs, offsets, lengths),
            chunks=chunks,
            wasted=Listed(wasted[0], wasted[1].astype(np.int64)),
            starved=Listed(starved[0], starved[1].astype(np.int64)),
            groups={int(place[row]): groups for row, groups in self._groups if place[row] >= 0},
            repeated=self._count - len(instants),
            reordered=reordered,
            malformed=bad + wasted[2] + starved[2],
        )

    def _flat_chunks(self, place: Ints) -> tuple[Chunks, int]:
        """The chunks in order of rows, whatever their width, and how many strings had a wrong length."""
        parts = [sparse.flat(place) for sparse in self._chunks.values()]
        row = np.concatenate([part[0] for part in parts])
        order = np.argsort(row, kind="stable")  # no step has rows of two widths
        fields = (np.concatenate([part[1][name] for part in parts], dtype=np.int64)[order] for name, _ in CHUNK_FIELDS)
        return Chunks(row[order], *fields), sum(part[2] for part in parts)


def _narrowed(column: Ints) -> NDArray[Any]:
    """The same numbers in as few bytes as hold them."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    fitting = (
        kind for kind in (np.int8, np.int16, np.int32) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
    )
    narrow: NDArray[Any] = column.astype(next(fitting, np.int64))  # a copy: a view would keep the other columns
    return narrow


def _row(step: Step) -> tuple[int, ...]:
    return (*numbers_of(step), 1 if step.detail is None else step.detail.attempts)
