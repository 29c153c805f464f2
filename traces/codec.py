"""Frames to payloads and back: msgpack, and a compact form for the step that most steps are.

A step in which nothing happens but decoding and chunks of prompts has only small numbers. It is written as one packed
record instead of a msgpack array; its first byte, its *form* (0 to 127), starts no msgpack array, so the two cannot be
taken for one another:

======== ==========================================================================================
bytes    content, little-endian
======== ==========================================================================================
1        form, a sum: 2 to the power of n for each distance n (0 to 4) that takes 4 bytes and not 3;
         32 if the requests that decode are those in the slots from 0 to active - 1; 64 if there
         are chunks
4        index
6        start
15 to 20 distances of the other five instants, each from the one before
4        device time plus one; 0 for unknown
4        from the lowest bit: waiting (13 bits), active (11), stop (3), flags (5)
1        graph
2, 2     kv_free, kv_cached
0 or 1   number of bytes of decode, when the form has 64 in it
rest     decode, nothing when the form has 32 in it; then the chunks, when it has 64 in it
======== ==========================================================================================

A step with other details, or with any number that does not fit, is a msgpack array like every other frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from .schema import Frame, Step, StepDetail

PACKED_SINCE = 2
"""The format version that has packed steps."""
_DENSE, CHUNKS = 32, 64
"""Bits of a form."""
_WIDTHS = {form: [4 if form >> at & 1 else 3 for at in range(5)] for form in range(2 * CHUNKS)}
_RECORD = {form: struct.Struct(f"<BI6s{sum(widths)}sIIBHH") for form, widths in _WIDTHS.items()}
PACKED_SIZE = {form: record.size for form, record in _RECORD.items()}
"""Bytes of a packed step without what has no fixed length, by the payload's first byte."""
_AFTER_NARROW_TIMES = 208
"""Bits of form, index and instants, where no distance takes 4 bytes."""
_NARROW_TIMES, _MIDDLE_TIMES = 23, 28
"""Lengths of :attr:`Step.times` with distances of 3 and of 4 bytes."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def encode(frame: Frame | bytes) -> bytes:
    """The payload of a frame; of a step that :func:`pack_plain` packed, itself."""
    if type(frame) is bytes:
        return frame
    if type(frame) is Step:
        return _pack(frame) or _encode(frame)
    return _encode(frame)


def is_step(frame: Frame | bytes) -> bool:
    """Whether a frame is a step, packed already or not."""
    return type(frame) is bytes or type(frame) is Step


def decode(payload: bytes) -> Frame:
    """The frame of a payload.

    Raises:
        msgspec.DecodeError: it is none.
        RecursionError: it is none, and nested without end.
    """
    if payload and payload[0] in _RECORD:
        return _unpack(payload)
    frame: Frame = _decode(payload)
    return frame


def _pack(step: Step) -> bytes | None:
    times, detail = step.times, step.detail
    if len(times) == _NARROW_TIMES:
        form, others = 0, times[8:]
    elif len(times) == _MIDDLE_TIMES:
        form, others = _narrowed(times)
    else:
        return None
    waiting, active, stop, flags, graph = step.waiting, step.active, step.stop, step.flags, step.graph
    if waiting >> 13 or active >> 11 or stop >> 3 or flags >> 5 or graph >> 8:  # too large, or negative
        return None
    if times[6] or times[7]:
        return None
    rest = step.decode
    if rest == _first_slots(active):
        form, rest = form | _DENSE, b""
    if detail is not None:
        chunks = detail.chunks
        if not chunks or len(rest) > 255 or detail != StepDetail(chunks):
            return None
        form, rest = form | CHUNKS, b"%c%b%b" % (len(rest), rest, chunks)
    word = waiting | active << 13 | stop << 24 | flags << 27
    free, cached, gpu = step.kv_free, step.kv_cached, step.gpu_ns + 1
    try:
        return _RECORD[form].pack(form, step.index, times[:6], others, gpu, word, graph, free, cached) + rest
    except struct.error:  # one of the others is too large, or unknown
        return None


def pack_plain(
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
) -> bytes | None:
    """The payload of a step without details, ``decode`` as an integer; None if it is not as most steps are.

    It is what :func:`encode` makes of the same step (:class:`~.schema.Step`), without the objects between: a recorder
    writes every step while the engine waits, and finds little of this code in the processor's caches.
    """
    a, b, c = scheduled - start, prepared - scheduled, launched - prepared
    d, e = ready - launched, done - ready
    device, longest = gpu_ns + 1, a | b | c | d | e
    # What is left of each is 0 unless it, or one of several, is too large, or negative.
    if (longest | index | device) >> 32 or start >> 48 or (kv_free | kv_cached) >> 16:
        return None
    if waiting >> 13 or active >> 11 or stop >> 3 or flags >> 5 or graph >> 8:
        return None
    form, end = 0, _AFTER_NARROW_TIMES
    if not longest >> 24:
        record = index << 8 | start << 40 | a << 88 | b << 112 | c << 136 | d << 160 | e << 184
    else:
        record, end = index << 8 | start << 40, 88
        for at, distance in enumerate((a, b, c, d, e)):
            wide = distance >> 24 > 0
            form |= wide << at
            record |= distance << end
            end += 32 if wide else 24
    word = waiting | active << 13 | stop << 24 | flags << 27
    record |= (device | word << 32 | graph << 64 | kv_free << 72 | kv_cached << 88) << end
    size = PACKED_SIZE[form]
    if decode == (1 << active) - 1:
        form |= _DENSE
    else:
        record |= decode << 8 * size
        size += (decode.bit_length() + 7) // 8
    return (record | form).to_bytes(size, "little")


def _narrowed(times: bytes) -> tuple[int, bytes]:
    """The form and the distances, where some of them need 4 bytes."""
    form, parts = 0, []
    for at, start in enumerate(range(8, _MIDDLE_TIMES, 4)):
        wide = times[start + 3] > 0
        form |= wide << at
        parts.append(times[start : start + 3 + wide])
    return form, b"".join(parts)


@lru_cache(maxsize=2048)
def _first_slots(count: int) -> bytes:
    """Decode bits of the first slots."""
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


def unpack_rest(payload: bytes) -> tuple[bytes, bytes]:
    """Decode bits and chunks of a packed step that is at least :data:`PACKED_SIZE` long."""
    form = payload[0]
    size = PACKED_SIZE[form]
    if form & CHUNKS:
        begin = size + 1
        end = begin + (payload[size] if len(payload) > size else 0)
    else:
        begin, end = size, len(payload)
    if form & _DENSE:
        bits = _first_slots(int.from_bytes(payload[size - 9 : size - 5], "little") >> 13 & 0x7FF)
    else:
        bits = payload[begin:end]
    return bits, payload[end:] if form & CHUNKS else b""


def _unpack(payload: bytes) -> Step:
    form = payload[0]
    try:
        _, index, start, others, gpu, word, graph, kv_free, kv_cached = _RECORD[form].unpack_from(payload)
    except struct.error as error:
        raise msgspec.DecodeError("a packed step is too short") from error
    waiting, active, stop, flags = word & 0x1FFF, word >> 13 & 0x7FF, word >> 24 & 7, word >> 27
    times = start + b"\0\0" + _widened(form, others)
    bits, chunks = unpack_rest(payload)
    detail = StepDetail(chunks) if chunks else None
    return Step(index, times, gpu - 1, bits, kv_free, kv_cached, waiting, active, stop, flags, graph, detail)


def _widened(form: int, others: bytes) -> bytes:
    """The distances, all as wide as the widest."""
    widths = _WIDTHS[form]
    widest = max(widths)
    at, parts = 0, []
    for width in widths:
        parts.append(others[at : at + width].ljust(widest, b"\0"))
        at += width
    return b"".join(parts)


def unpack_steps(form: int, payloads: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Many packed steps of one form at once, each at least :data:`PACKED_SIZE` long.

    Returns:
        index, gpu_ns, kv_free, kv_cached, waiting, active, stop, flags, graph: shape (steps, 9).
        The instants, shape (steps, 6); see :func:`~cbtrace.traces.stepcode.unpack_times`.
    """
    size = PACKED_SIZE[form]
    widths = (6, *_WIDTHS[form])
    layout = np.dtype(
        [
            ("form", "u1"),
            ("index", "<u4"),
            *((f"instant_{at}", np.uint8, width) for at, width in enumerate(widths)),
            ("gpu", "<u4"),
            ("word", "<u4"),
            ("graph", "u1"),
            ("free", "<u2"),
            ("cached", "<u2"),
        ]
    )
    head = np.frombuffer(b"".join([payload[:size] for payload in payloads]), dtype=layout)
    times = np.zeros((len(head), len(widths), 8), dtype=np.uint8)
    for at, width in enumerate(widths):
        times[:, at, :width] = head[f"instant_{at}"]
    word = head["word"].astype(np.int64)
    columns = (
        head["index"],
        head["gpu"].astype(np.int64) - 1,
        head["free"],
        head["cached"],
        word & 0x1FFF,
        word >> 13 & 0x7FF,
        word >> 24 & 7,
        word >> 27,
        head["graph"],
    )
    return np.stack(columns, axis=1, dtype=np.int64), np.cumsum(times.view("<i8")[:, :, 0], axis=1)
