"""Frames to payloads and back: msgpack, and a compact form for the step that most steps are.

A step in which nothing but plain decoding happens has only small numbers. It is written as one packed record instead
of a msgpack array; its first byte (1 or 2) starts no msgpack array, so the two cannot be taken for one another:

====== ============================================================================================
bytes  content, little-endian
====== ============================================================================================
1      1: distances of instants in 3 bytes, 2: in 4 bytes
4      index
6      start
15/20  the other five instants, as in :attr:`Step.times`
4      device time plus one; 0 for unknown
5      from the lowest bit: waiting (13 bits), active (11), stop (3), flags (5), graph (8)
2, 2   kv_free, kv_cached
rest   decode
====== ============================================================================================

A step with details, or with any number that does not fit, is a msgpack array like every other frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from .schema import Frame, Step

PACKED_SINCE = 2
"""The format version that has packed steps."""
_NARROW, _WIDE = 1, 2
_RECORD = {_NARROW: struct.Struct("<BI6s15sIIBHH"), _WIDE: struct.Struct("<BI6s20sIIBHH")}
PACKED_SIZE = {form: record.size for form, record in _RECORD.items()}
"""Bytes of a packed step without its decode bits, by the payload's first byte."""
_FORM = {23: _NARROW, 28: _WIDE}
"""By the length of :attr:`Step.times`."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def encode(frame: Frame) -> bytes:
    """The payload of a frame."""
    if type(frame) is Step and frame.detail is None:
        return _pack(frame) or _encode(frame)
    return _encode(frame)


def decode(payload: bytes) -> Frame:
    """The frame of a payload.

    Raises:
        msgspec.DecodeError: it is none.
        RecursionError: it is none, and nested without end.
    """
    if payload[:1] in (b"\x01", b"\x02"):
        return _unpack(payload)
    frame: Frame = _decode(payload)
    return frame


def _pack(step: Step) -> bytes | None:
    times = step.times
    form = _FORM.get(len(times))
    if form is None or times[6] or times[7]:
        return None
    waiting, active, stop, flags, graph = step.waiting, step.active, step.stop, step.flags, step.graph
    if waiting >> 13 or active >> 11 or stop >> 3 or flags >> 5 or graph >> 8:  # too large, or negative
        return None
    word = waiting | active << 13 | stop << 24 | flags << 27
    pack = _RECORD[form].pack
    try:
        free, cached = step.kv_free, step.kv_cached
        return pack(form, step.index, times[:6], times[8:], step.gpu_ns + 1, word, graph, free, cached) + step.decode
    except struct.error:  # one of the others is too large, or unknown
        return None


def _unpack(payload: bytes) -> Step:
    record = _RECORD[payload[0]]
    try:
        _, index, start, others, gpu, word, graph, kv_free, kv_cached = record.unpack_from(payload)
    except struct.error as error:
        raise msgspec.DecodeError("a packed step is too short") from error
    waiting, active, stop, flags = word & 0x1FFF, word >> 13 & 0x7FF, word >> 24 & 7, word >> 27
    times, bits = start + b"\0\0" + others, payload[record.size :]
    return Step(index, times, gpu - 1, bits, kv_free, kv_cached, waiting, active, stop, flags, graph)


def unpack_steps(form: int, payloads: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Many packed steps of one form at once, each at least :data:`PACKED_SIZE` long.

    Returns:
        index, gpu_ns, kv_free, kv_cached, waiting, active, stop, flags, graph: shape (steps, 9).
        The instants, shape (steps, 6); see :func:`~cbtrace.traces.stepcode.unpack_times`.
    """
    size = PACKED_SIZE[form]
    width = 3 if form == _NARROW else 4
    layout = np.dtype(
        [
            ("form", "u1"),
            ("index", "<u4"),
            ("start", np.uint8, 6),
            ("others", np.uint8, (5, width)),
            ("gpu", "<u4"),
            ("word", "<u4"),
            ("graph", "u1"),
            ("free", "<u2"),
            ("cached", "<u2"),
        ]
    )
    head = np.frombuffer(b"".join([payload[:size] for payload in payloads]), dtype=layout)
    times = np.zeros((len(head), 6, 8), dtype=np.uint8)
    times[:, 0, :6] = head["start"]
    times[:, 1:, :width] = head["others"]
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
