"""The compact form of a step that most steps are: one packed record instead of a msgpack array.

A step in which nothing happens but decoding and chunks of prompts has only small numbers. The first byte of its record,
its *form*, says how wide its parts are, and starts no msgpack array, so the two cannot be taken for one another:

======== ==========================================================================================
bytes    content, little-endian
======== ==========================================================================================
1        form
3 or 4   index
6        start
3 or 4   each of the distances of the other five instants, from the one before
3 or 4   device time plus one; 0 for unknown
4        from the lowest bit: waiting (13 bits), active (11), stop (3), flags (5)
1        graph
2, 2     kv_free, kv_cached
0 or 1   number of bytes of decode, when there are chunks
rest     decode, nothing when the requests that decode are those in the slots from 0 to active - 1
         (*dense*); then the rows of chunks, when there are any
======== ==========================================================================================

Forms 160 to 171 are 160 plus a sum: 1 if dense; 2 if there are chunks, in rows of 9 bytes (request 4, prefill 2,
recompute 2, flags 1); 4 if launching takes 4 bytes, 8 if waiting for the results does. The index takes 3 bytes, and the
device time as many as the widest distance.

Forms 0 to 127 are for what does not fit into these, and all that version 2 had: a sum of 2 to the power of n for each
distance n (0 to 4) that takes 4 bytes, 32 if dense, 64 if there are chunks, in rows of 13 bytes
(:data:`~.schema.CHUNK_FIELDS`). Index and device time take 4 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .schema import Step, StepDetail
from .stepcode import CHUNK, INSTANTS, instants_of, pack_times

STEP_NUMBERS = ("index", "gpu_ns", "kv_free", "kv_cached", "waiting", "active", "stop", "flags", "graph")
"""The plain numbers of a step, in the order in which they are taken here and in the table of steps."""
numbers_of: Callable[[Step], tuple[int, int, int, int, int, int, int, int, int]] = attrgetter(*STEP_NUMBERS)
PACKED_SINCE = 2
"""The format version that has packed steps."""
NARROW_CHUNK_DTYPE = np.dtype([("request", "<u4"), ("prefill", "<u2"), ("recompute", "<u2"), ("flags", "<u1")])
"""A row of chunks in compact forms, packed without padding: 9 bytes."""
_NARROW_CHUNK = struct.Struct("<IHHB")


@dataclass(frozen=True)
class Form:
    """How a packed step is laid out. Widths are in bytes."""

    index: int
    distances: tuple[int, ...]
    device: int
    dense: bool
    chunk: int
    """Of a row of chunks; 0 when there are none."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Of what has a fixed length, in order, without the form itself."""
        return (self.index, 6, *self.distances, self.device, 4, 1, 2, 2)


_COMPACT, _DENSE, _CHUNKS, _WIDE_LAUNCH, _WIDE_READY = 160, 1, 2, 4, 8
_GENERAL_DENSE, _GENERAL_CHUNKS = 32, 64
_LAUNCHED, _READY = 1 << 2, 1 << 3
"""The wide distances that have compact forms, as bits by number of the distance."""


def _compact(number: int) -> Form:
    wide = _LAUNCHED * (number & _WIDE_LAUNCH > 0) | _READY * (number & _WIDE_READY > 0)
    chunk = _NARROW_CHUNK.size if number & _CHUNKS else 0
    return Form(3, _widths(wide), 4 if wide else 3, number & _DENSE > 0, chunk)


def _general(form: int) -> Form:
    chunk = CHUNK.size if form & _GENERAL_CHUNKS else 0
    return Form(4, _widths(form), 4, form & _GENERAL_DENSE > 0, chunk)


def _widths(wide: int) -> tuple[int, ...]:
    return tuple(4 if wide >> at & 1 else 3 for at in range(INSTANTS - 1))


FORMS = {form: _general(form) for form in range(128)} | {_COMPACT + number: _compact(number) for number in range(12)}
PACKED_SIZE = {form: 1 + sum(layout.widths) for form, layout in FORMS.items()}
"""Bytes of a packed step without what has no fixed length, by the payload's first byte."""
_SMALLEST = PACKED_SIZE[_COMPACT]


def pack_step(
    index: int,
    start: int,
    scheduled: int,
    prepared: int,
    launched: int,
    ready: int,
    done: int,
    gpu_ns: int,
    decode: int,
    kv_free: int,
    kv_cached: int,
    waiting: int,
    active: int,
    stop: int,
    flags: int,
    graph: int,
    chunks: bytes = b"",
) -> bytes | None:
    """The payload of a step without details but chunks, ``decode`` as an integer; None if it is not as most steps are.

    It is what :func:`~.codec.encode` makes of the same step (:class:`~.schema.Step`), without the objects between: a
    recorder writes every step while the engine waits, and finds little of this code in the processor's caches.
    """
    a, b, c = scheduled - start, prepared - scheduled, launched - prepared
    d, e = ready - launched, done - ready
    device, longest = gpu_ns + 1, a | b | c | d | e
    # What is left of each is 0 unless it, or one of several, is too large, or negative.
    if (longest | index | device) >> 32 or start >> 48 or (kv_free | kv_cached) >> 16:
        return None
    if waiting >> 13 or active >> 11 or stop >> 3 or flags >> 5 or graph >> 8:
        return None
    narrow = _narrowed(chunks) if chunks else b""
    word = waiting | active << 13 | stop << 24 | flags << 27
    rest = word | graph << 32 | kv_free << 40 | kv_cached << 56
    if not (longest | index | device) >> 24 and narrow is not None:  # nearly always
        form, size = _COMPACT, _SMALLEST
        record = (
            index << 8 | start << 32 | a << 80 | b << 104 | c << 128 | d << 152 | e << 176 | device << 200 | rest << 224
        )
    else:
        form = _form_of((a, b, c, d, e), index, narrow is not None)
        record, at = 0, 8
        for value, width in zip((index, start, a, b, c, d, e, device), FORMS[form].widths, strict=False):
            record |= value << at
            at += 8 * width
        record, size = record | rest << at, PACKED_SIZE[form]
    dense = decode == (1 << active) - 1
    if dense:
        form |= _DENSE if form >= _COMPACT else _GENERAL_DENSE
    if chunks:
        bits = b"" if dense else _as_bytes(decode)
        rows = narrow if form >= _COMPACT and narrow is not None else chunks
        return _with_chunks(form, record.to_bytes(size, "little"), bits, rows)
    if not dense:
        record |= decode << 8 * size
        size += (decode.bit_length() + 7) // 8
    return (record | form).to_bytes(size, "little")


def _form_of(distances: tuple[int, ...], index: int, narrow: bool) -> int:
    """The form that fits, without what the rest adds to it."""
    wide = sum(1 << at for at, distance in enumerate(distances) if distance >> 24)
    if not narrow or index >> 24:
        return wide
    if wide == _LAUNCHED:
        return _COMPACT | _WIDE_LAUNCH
    if wide == _READY:
        return _COMPACT | _WIDE_READY
    return wide


def _with_chunks(form: int, record: bytes, bits: bytes, rows: bytes) -> bytes | None:
    if len(bits) > 255:
        return None
    form |= _CHUNKS if form >= _COMPACT else _GENERAL_CHUNKS
    return b"%c%b%c%b%b" % (form, record[1:], len(bits), bits, rows)


def _narrowed(chunks: bytes) -> bytes | None:
    """The rows of chunks in 9 bytes instead of 13; None if one does not fit, or they are not whole."""
    if len(chunks) % CHUNK.size:
        return None
    try:
        return b"".join([_NARROW_CHUNK.pack(*row) for row in CHUNK.iter_unpack(chunks)])
    except struct.error:
        return None


def _as_bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


@lru_cache(maxsize=2048)
def _first_slots(count: int) -> bytes:
    """Decode bits of the first slots."""
    return _as_bytes((1 << count) - 1)


def pack(step: Step) -> bytes | None:
    """The payload of a step; None if it must be an array, so as to come back as it is."""
    detail = step.detail
    chunks = b"" if detail is None else detail.chunks
    if detail is not None and (not chunks or detail != StepDetail(chunks)):
        return None
    instants = instants_of(step.times)
    if not instants or pack_times(*instants) != step.times or step.decode[-1:] == b"\0":
        return None
    numbers = numbers_of(step)
    bits = int.from_bytes(step.decode, "little")
    return pack_step(numbers[0], *instants, numbers[1], bits, *numbers[2:], chunks or b"")


def unpack(payload: bytes) -> Step:
    """The step of a payload whose first byte is one of :data:`FORMS`.

    Raises:
        msgspec.DecodeError: it is too short, or its chunks are not whole.
    """
    layout = FORMS[payload[0]]
    if len(payload) < PACKED_SIZE[payload[0]]:
        raise msgspec.DecodeError("a packed step is too short")
    at, numbers = 1, []
    for width in layout.widths:
        numbers.append(int.from_bytes(payload[at : at + width], "little"))
        at += width
    index, start, *distances, device, word, graph, kv_free, kv_cached = numbers
    bits, chunks = unpack_rest(payload)
    if layout.chunk == _NARROW_CHUNK.size:
        if len(chunks) % _NARROW_CHUNK.size:
            raise msgspec.DecodeError("the chunks of a packed step are not whole")
        chunks = b"".join([CHUNK.pack(*row) for row in _NARROW_CHUNK.iter_unpack(chunks)])
    times = pack_times(*accumulate((start, *distances)))
    waiting, active, stop, flags = _words(word)
    detail = StepDetail(chunks) if chunks else None
    return Step(index, times, device - 1, bits, kv_free, kv_cached, waiting, active, stop, flags, graph, detail)


def _words(word: Any) -> tuple[Any, Any, Any, Any]:
    """Waiting, active, stop and flags: of a number, or of an array."""
    return word & 0x1FFF, word >> 13 & 0x7FF, word >> 24 & 7, word >> 27


def unpack_rest(payload: bytes) -> tuple[bytes, bytes]:
    """Decode bits and rows of chunks, as wide as the form says, of a packed step that is at least
    :data:`PACKED_SIZE` long."""
    layout, size = FORMS[payload[0]], PACKED_SIZE[payload[0]]
    begin = end = len(payload)
    if layout.chunk:
        begin = size + 1
        end = begin + (payload[size] if len(payload) > size else 0)
    elif not layout.dense:
        begin = size
    if layout.dense:
        active = int.from_bytes(payload[size - 9 : size - 5], "little") >> 13 & 0x7FF
        return _first_slots(active), payload[end:]
    return payload[begin:end], payload[end:]


def unpack_steps(form: int, payloads: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Many packed steps of one form at once, each at least :data:`PACKED_SIZE` long.

    Returns:
        :data:`STEP_NUMBERS`, shape (steps, 9).
        The instants, shape (steps, 6); see :func:`~cbtrace.traces.stepcode.unpack_times`.
    """
    layout, size = FORMS[form], PACKED_SIZE[form]
    raw = np.frombuffer(b"".join([payload[:size] for payload in payloads]), dtype=np.uint8).reshape(-1, size)
    at, columns = 1, []
    for width in layout.widths:
        wide = np.zeros((len(raw), 8), dtype=np.uint8)
        wide[:, :width] = raw[:, at : at + width]
        columns.append(wide.view("<i8")[:, 0])
        at += width
    index, start, *distances, device, word, graph, kv_free, kv_cached = columns
    numbers = (index, device - 1, kv_free, kv_cached, *_words(word), graph)
    return np.stack(numbers, axis=1), np.cumsum(np.stack((start, *distances), axis=1), axis=1)
