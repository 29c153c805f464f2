"""The packed parts of a step: instants, decode bits and chunks; packed one by one, unpacked in bulk."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .schema import CHUNK_FIELDS, CHUNK_FORMAT

CHUNK_DTYPE = np.dtype([(name, kind) for name, kind in CHUNK_FIELDS])
CHUNK = struct.Struct(CHUNK_FORMAT)
"""One row of chunks, packed one by one."""
ORDINAL_DTYPE = np.dtype("<u4")
INSTANTS = 6
"""start, scheduled, prepared, launched, ready, done."""

_NARROW = 1 << 24
_MIDDLE = 1 << 32
_START = struct.Struct("<Q")
_MIDDLE_TIMES = struct.Struct("<Q5I")
_WIDE_TIMES = struct.Struct("<6Q")


def pack_times(start: int, scheduled: int, prepared: int, launched: int, ready: int, done: int) -> bytes:
    """:attr:`Step.times` of six instants in nanoseconds. Each is stored as its distance from the one before.

    Raises:
        ValueError: an instant is earlier than the one before it, or negative.
    """
    a, b, c = scheduled - start, prepared - scheduled, launched - prepared
    d, e = ready - launched, done - ready
    if start < 0 or a < 0 or b < 0 or c < 0 or d < 0 or e < 0:
        raise ValueError("The instants of a step must not run backwards.")
    longest = max(a, b, c, d, e)
    if longest < _NARROW:
        return (start | a << 64 | b << 88 | c << 112 | d << 136 | e << 160).to_bytes(23, "little")
    if longest < _MIDDLE:
        return _MIDDLE_TIMES.pack(start, a, b, c, d, e)
    return _WIDE_TIMES.pack(start, a, b, c, d, e)


def instants_of(times: bytes) -> tuple[int, int, int, int, int, int] | None:
    """The instants of one step; None where :attr:`Step.times` has no valid length."""
    width = (len(times) - 8) // 5
    if width not in (3, 4, 8) or len(times) != 8 + 5 * width:
        return None
    distances = [int.from_bytes(times[at : at + width], "little") for at in range(8, len(times), width)]
    start, scheduled, prepared, launched, ready, done = accumulate((int.from_bytes(times[:8], "little"), *distances))
    return start, scheduled, prepared, launched, ready, done


def unpack_times(packed: Sequence[bytes]) -> NDArray[np.int64]:
    """The instants of many steps, shape (steps, 6), in nanoseconds; -1 where the packed form is not valid."""
    out = np.full((len(packed), INSTANTS), -1, dtype=np.int64)
    lengths = np.fromiter(map(len, packed), dtype=np.int64, count=len(packed))
    for width in (3, 4, 8):
        size = 8 + 5 * width
        rows = np.flatnonzero(lengths == size)
        if not rows.size:
            continue
        joined = b"".join(packed if rows.size == len(packed) else [packed[row] for row in rows.tolist()])
        raw = np.frombuffer(joined, dtype=np.uint8).reshape(rows.size, size)
        bytes8 = np.zeros((rows.size, INSTANTS, 8), dtype=np.uint8)
        bytes8[:, 0] = raw[:, :8]
        bytes8[:, 1:, :width] = raw[:, 8:].reshape(rows.size, 5, width)
        out[rows] = np.cumsum(bytes8.view("<i8")[:, :, 0], axis=1)
    # A hostile file can hold distances that overflow; they are as unknown as a wrong length.
    out[(out < 0).any(axis=1) | (np.diff(out, axis=1) < 0).any(axis=1)] = -1
    return out


def pack_slots(slots: Iterable[int]) -> bytes:
    """:attr:`Step.decode` of a collection of slots: bit i of byte i // 8, without trailing zero bytes."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unpack_slots(packed: Sequence[bytes]) -> NDArray[np.bool_]:
    """The decode bits of many steps as a matrix, shape (steps, slots), as wide as the longest of them needs."""
    width = max(map(len, packed), default=0)
    joined = b"".join([bits.ljust(width, b"\0") for bits in packed])
    raw = np.frombuffer(joined, dtype=np.uint8).reshape(len(packed), width)
    return np.unpackbits(raw, axis=1, bitorder="little").view(np.bool_)


def pack_chunks(rows: Iterable[tuple[int, int, int, int]]) -> bytes | None:
    """:attr:`StepDetail.chunks` of rows (request, prefill, recompute, flags); None when there are none."""
    return b"".join([CHUNK.pack(*row) for row in rows]) or None


def pack_ordinals(requests: Iterable[int]) -> bytes | None:
    """:attr:`StepDetail.wasted` or ``starved`` of request ordinals; None when there are none."""
    ordinals = list(requests)
    return struct.pack(f"<{len(ordinals)}I", *ordinals) if ordinals else None
