"""Collects the steps of a trace into numpy columns, chunk by chunk, so that no Python objects pile up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .codec import unpack_rest, unpack_steps
from .columns import Ints
from .schema import CHUNK_FIELDS, Step, StepDetail
from .stepcode import CHUNK_DTYPE, INSTANTS, ORDINAL_DTYPE, unpack_times

_CHUNK_STEPS = 4096
_NUMBERS = ("index", "gpu_ns", "kv_free", "kv_cached", "waiting", "active", "stop", "flags", "graph", "attempts")


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


class StepStore:
    """Takes steps one by one; see the module."""

    def __init__(self) -> None:
        self._numbers: list[NDArray[np.int64]] = []
        self._instants: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._blobs = bytearray()
        self._details: list[tuple[int, StepDetail]] = []
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
            self._details.append((self._count, step.detail))
        self._plain.append((len(self._decode), step))
        self._decode.append(step.decode)
        self._added()

    def add_packed(self, form: int, payload: bytes) -> None:
        """Take a packed step of a form in :data:`~cbtrace.traces.codec.PACKED_SIZE`."""
        self._places[form].append(len(self._decode))
        self._packed[form].append(payload)
        bits, chunks = unpack_rest(payload)
        if chunks:
            self._details.append((self._count, StepDetail(chunks)))
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
        self._numbers.append(numbers)
        self._instants.append(instants)
        self._lengths.append(np.fromiter(map(len, self._decode), dtype=np.int64, count=size))
        self._blobs += b"".join(self._decode)
        self._start_chunk()

    def finish(self) -> StepColumns:
        """Put the steps in order of index, drop repeats, flatten the sparse parts. The store is empty then."""
        self._flush()
        numbers, self._numbers = np.concatenate(self._numbers), []
        instants, self._instants = np.concatenate(self._instants), []
        lengths, self._lengths = np.concatenate(self._lengths), []
        offsets = np.cumsum(lengths) - lengths
        index, reordered = numbers[:, 0], 0
        if (np.diff(index) > 0).all():
            place = np.arange(self._count)
        else:
            _, order = np.unique(index, return_index=True)  # the first of each index, in order
            reordered = int((np.diff(order) < 0).sum())
            place = np.full(self._count, -1, dtype=np.int64)
            place[order] = np.arange(len(order))
            numbers, instants, offsets, lengths = (part[order] for part in (numbers, instants, offsets, lengths))
        rows = sorted((int(place[row]), at) for at, (row, _) in enumerate(self._details) if place[row] >= 0)
        details = [(row, self._details[at][1]) for row, at in rows]
        chunks, bad = _flatten([(row, detail.chunks) for row, detail in details], CHUNK_DTYPE)
        wasted, bad_wasted = _flatten([(row, detail.wasted) for row, detail in details], ORDINAL_DTYPE)
        starved, bad_starved = _flatten([(row, detail.starved) for row, detail in details], ORDINAL_DTYPE)
        return StepColumns(
            numbers={name: np.ascontiguousarray(numbers[:, at]) for at, name in enumerate(_NUMBERS)},
            instants=instants,
            decode=Blobs(self._blobs, offsets, lengths),
            chunks=Chunks(chunks[0], *(chunks[1][name].astype(np.int64) for name, _ in CHUNK_FIELDS)),
            wasted=Listed(wasted[0], wasted[1].astype(np.int64)),
            starved=Listed(starved[0], starved[1].astype(np.int64)),
            groups={row: detail.groups for row, detail in details if detail.groups},
            repeated=self._count - len(numbers),
            reordered=reordered,
            malformed=bad + bad_wasted + bad_starved,
        )


def _row(step: Step) -> tuple[int, ...]:
    return (
        step.index,
        step.gpu_ns,
        step.kv_free,
        step.kv_cached,
        step.waiting,
        step.active,
        step.stop,
        step.flags,
        step.graph,
        1 if step.detail is None else step.detail.attempts,
    )


def _flatten(parts: Sequence[tuple[int, bytes | None]], dtype: np.dtype[Any]) -> tuple[tuple[Ints, NDArray[Any]], int]:
    """Join packed values of several steps; returns rows and values, and how many parts were of a wrong length."""
    whole = [(row, data) for row, data in parts if data and len(data) % dtype.itemsize == 0]
    wrong = sum(1 for _, data in parts if data) - len(whole)
    value = np.frombuffer(b"".join([data for _, data in whole]), dtype=dtype)
    counts = [len(data) // dtype.itemsize for _, data in whole]
    row = np.repeat(np.array([row for row, _ in whole], dtype=np.int64), counts)
    return (row, value), wrong
