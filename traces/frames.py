"""Bytes to frames and back: marker, length, checksum, payload; and the way back into a damaged file.

A file is a preamble of 16 bytes (magic, version, checksum of both) and frames:

====== ======================================================
bytes  content
====== ======================================================
2      :data:`MARKER`
1 to 4 length of the payload, base 128, least significant first
4      CRC-32 of the length bytes and the payload, little-endian
n      payload
====== ======================================================

After damage the scanner looks for the next marker whose length and checksum hold. The bytes it may checksum in that
search are limited in proportion to the file, so that a hostile file costs time in proportion to its size too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .schema import FORMAT_VERSION, MAGIC

MARKER = b"\xc1\xb7"
"""0xC1 is the byte that msgpack never uses as a type and that UTF-8 never contains, so no text in a payload can look
like the start of a frame."""
PREAMBLE_BYTES = 16
MAX_PAYLOAD = 1 << 24
"""16 MiB: no frame is longer, whatever its length bytes say."""

_CHUNK = 1 << 20
_HEAD_BYTES = 10  # marker, at most four length bytes, checksum
_SEARCH_BASE = 64 << 20
_SEARCH_PER_BYTE = 8
_CANDIDATE_COST = 512  # what looking at one marker costs, in bytes that could be checksummed in the same time


class PayloadTooLargeError(ValueError):
    """The frame is longer than :data:`MAX_PAYLOAD`."""


def preamble(version: int = FORMAT_VERSION) -> bytes:
    """The first 16 bytes of a trace."""
    head = MAGIC + struct.pack("<I", version)
    return head + struct.pack("<I", zlib.crc32(head))


def read_preamble(data: bytes) -> int | None:
    """The format version that the first bytes of a file name; None when they are no intact preamble."""
    head = data[:PREAMBLE_BYTES]
    if len(head) < PREAMBLE_BYTES or not head.startswith(MAGIC):
        return None
    version: int = struct.unpack_from("<I", head, 8)[0]
    return version if head == preamble(version) else None


def nearest_version(data: bytes) -> int | None:
    """The version whose preamble differs from ``data`` in at most three bytes: finds it again after a flipped byte."""
    head = data[:PREAMBLE_BYTES]
    for version in range(1, FORMAT_VERSION + 1):
        same = sum(a == b for a, b in zip(head, preamble(version), strict=False))
        if same >= PREAMBLE_BYTES - 3:
            return version
    return None


def _length_bytes(length: int) -> bytes:
    out = bytearray()
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    out.append(length)
    return bytes(out)


# Nearly all frames are short: their marker and length, and the checksum of the length, are looked up.
_SHORT = [(MARKER + _length_bytes(n), zlib.crc32(_length_bytes(n))) for n in range(1024)]


def seal(payload: bytes) -> bytes:
    """A frame around a payload.

    Raises:
        PayloadTooLargeError: the payload is longer than :data:`MAX_PAYLOAD`.
    """
    length = len(payload)
    if length < 1024:
        head, crc = _SHORT[length]
    elif length <= MAX_PAYLOAD:
        coded = _length_bytes(length)
        head, crc = MARKER + coded, zlib.crc32(coded)
    else:
        raise PayloadTooLargeError(f"A frame of {length} bytes is longer than the {MAX_PAYLOAD} that a trace allows.")
    return head + zlib.crc32(payload, crc).to_bytes(4, "little") + payload


@dataclass(frozen=True)
class Damage:
    """Bytes ``start`` to ``end`` (exclusive) hold no whole frame.

    ``reason``: ``cut`` (the file ends within a frame), ``damaged`` (checksum or length wrong, or no frame at all),
    ``abandoned`` (the search for the next frame was given up: the rest of the file was not looked at).
    """

    start: int
    end: int
    reason: str


class FrameScanner:
    """Reads frames from a stream of bytes that starts behind the preamble.

    Memory: one frame and one chunk of 1 MiB. Iterating yields ``(offset, payload)`` for each whole frame and
    :class:`Damage` for each stretch between them, in order.

    Args:
        read: returns up to n bytes, and no bytes at the end.
        offset: position in the file of the first byte that ``read`` returns.
    """

    def __init__(self, read: Callable[[int], bytes], offset: int = 0) -> None:
        self._read = read
        self._data = b""
        self._at = 0  # where the scan is in _data
        self._base = offset  # file offset of _data[0]
        self._ended = False
        self._budget = _SEARCH_BASE

    @property
    def bytes_seen(self) -> int:
        """File offset behind the last byte read so far."""
        return self._base + len(self._data)

    def __iter__(self) -> Iterator[tuple[int, bytes] | Damage]:
        while self._has(1):
            yield from self._short_frames()
            if not self._has(1):
                return
            bounds = self._frame_here()
            if bounds is None:
                yield self._resynchronise()
                continue
            begin, end = bounds
            yield self._base + self._at, self._data[begin:end]
            self._at = end

    def _short_frames(self) -> Iterator[tuple[int, bytes]]:
        """The frames from here on, as long as they are short, whole and in memory: nearly all are."""
        data, base, at, size = self._data, self._base, self._at, len(self._data)
        while at + 7 < size and data[at : at + 2] == MARKER and (length := data[at + 2]) < 128:
            end = at + 7 + length
            payload = data[at + 7 : end]
            if end > size or zlib.crc32(payload, _SHORT[length][1]) != int.from_bytes(data[at + 3 : at + 7], "little"):
                return
            self._at = end
            yield base + at, payload
            at = end

    def _has(self, need: int) -> bool:
        """Whether the file has ``need`` more bytes from here on; brings them into memory and drops what is behind."""
        if len(self._data) - self._at >= need:
            return True
        parts = [self._data[self._at :]]
        have = len(parts[0])
        while have < need and not self._ended:
            chunk = self._read(_CHUNK)
            self._ended = not chunk
            self._budget += len(chunk) * _SEARCH_PER_BYTE
            parts.append(chunk)
            have += len(chunk)
        self._base += self._at
        self._at = 0
        self._data = b"".join(parts)
        return have >= need

    def _claim(self) -> tuple[int, int] | None:
        """Bytes of marker and length, and length of the payload, as stated by what stands here; None if impossible."""
        self._has(_HEAD_BYTES)
        data, at = self._data, self._at
        if data[at : at + 2] != MARKER:
            return None
        length = shift = 0
        for place in range(at + 2, min(at + 6, len(data))):
            byte = data[place]
            length |= (byte & 127) << shift
            if not byte and shift:  # no writer makes a length longer than it is
                return None
            if byte < 128:
                return (place + 1 - at, length) if length <= MAX_PAYLOAD else None
            shift += 7
        return None

    def _frame_here(self) -> tuple[int, int] | None:
        """Start and end of the payload in the data, when a whole frame with a right checksum stands here."""
        claim = self._claim()
        if claim is None:
            return None
        head, length = claim
        if not self._has(head + 4 + length):
            return None
        checksum = self._at + head
        begin = checksum + 4
        end = begin + length
        crc = zlib.crc32(self._data[begin:end], zlib.crc32(self._data[self._at + 2 : checksum]))
        return (begin, end) if crc == int.from_bytes(self._data[checksum:begin], "little") else None

    def _resynchronise(self) -> Damage:
        """Move to the next whole frame, or to the end of the file; returns what was skipped."""
        broken = self._base + self._at
        cut = self._looks_cut()
        self._at += 1
        while self._find_marker():
            claim = self._claim()
            self._budget -= _CANDIDATE_COST + (claim[1] if claim else 0)
            if self._budget < 0:
                return self._abandon(broken)
            if claim is not None and self._frame_here() is not None:
                return Damage(broken, self._base + self._at, "damaged")
            self._at += 1
        return Damage(broken, self.bytes_seen, "cut" if cut else "damaged")

    def _find_marker(self) -> bool:
        """Move to the next marker, or to the end of the file when there is none."""
        while (place := self._data.find(MARKER, self._at)) < 0:
            if self._ended:
                self._at = len(self._data)
                return False
            # Keep the last byte: it may be the first of a marker.
            self._at = max(self._at, len(self._data) - 1)
            self._has(len(self._data) - self._at + 1)
        self._at = place
        return True

    def _looks_cut(self) -> bool:
        """Whether what stands here starts as a frame does and the file ends before that frame would."""
        rest = self._data[self._at : self._at + _HEAD_BYTES]
        if not (rest.startswith(MARKER) or MARKER.startswith(rest)):
            return False
        claim = self._claim()
        if claim is None:  # the length itself is cut off, or impossible
            return len(rest) < 6 and all(byte > 127 for byte in rest[2:])
        return not self._has(claim[0] + 4 + claim[1])

    def _abandon(self, broken: int) -> Damage:
        """Give up the search: skip the rest of the file."""
        end = self.bytes_seen
        while chunk := self._read(_CHUNK):
            end += len(chunk)
        self._ended = True
        self._data, self._at, self._base = b"", 0, end
        return Damage(broken, end, "abandoned")
