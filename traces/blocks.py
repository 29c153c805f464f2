"""Many payloads in one: what makes a trace that is to be stored compress well.

A recorder writes each frame as it comes. In a file of such frames the bytes that change stand between those that do
not, and every checksum is noise. A *block* holds the payloads of thousands of frames; those of one kind and length are
a table that is stored column by column, so that a compressor meets each byte of a record beside the same byte of the
next. Nothing is left out: the payloads come back byte for byte, in their order.

========= ===============================================================================
bytes     content, little-endian
========= ===============================================================================
1         :data:`BLOCK`
4, 4      number of payloads, number of tables
8 each    a table: length of its payloads, how many there are
2 each    the number of the table that each payload is in, all low bytes, then all high bytes
rest      the tables, column by column
========= ===============================================================================

A table holds payloads that begin with the same byte and have the same length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .frames import Damage

BLOCK = 0xB8
"""First byte of a block: it starts no msgpack array, and is no form of a packed frame."""
MOST_PAYLOADS, LEAST_MEAN = 1 << 14, 16
"""A block of more payloads, or of shorter ones on average, is refused: each takes its room in memory. Frames outside
blocks have heads, and are no shorter in the file."""
_HEAD = 9


def fit_a_block(payloads: Sequence[bytes]) -> bool:
    """Whether payloads may be in one block: not too many, not too short on average, and none of them a block."""
    return (
        0 < len(payloads) <= MOST_PAYLOADS
        and sum(map(len, payloads)) >= LEAST_MEAN * len(payloads)
        and all(payload and payload[0] != BLOCK for payload in payloads)
    )


def join_payloads(payloads: Sequence[bytes]) -> bytes:
    """The block of some payloads.

    Raises:
        ValueError: they do not :func:`fit a block <fit_a_block>`.
    """
    if not fit_a_block(payloads):
        raise ValueError("payloads that do not fit a block")
    tables: dict[tuple[bytes, int], list[bytes]] = {}
    numbers: dict[tuple[bytes, int], int] = {}
    order = []
    for payload in payloads:
        kind = (payload[:1], len(payload))
        order.append(numbers.setdefault(kind, len(numbers)))
        tables.setdefault(kind, []).append(payload)
    sizes = [(length, len(rows)) for (_, length), rows in tables.items()]
    return b"".join(
        (
            bytes([BLOCK]),
            np.array([len(payloads), len(tables)], dtype="<u4").tobytes(),
            np.array(sizes, dtype="<u4").tobytes(),
            _transposed(np.array(order, dtype="<u2").tobytes(), 2),
            *(_transposed(b"".join(rows), length) for (_, length), rows in tables.items()),
        )
    )


def _transposed(data: bytes, columns: int) -> bytes:
    columnwise: bytes = np.frombuffer(data, dtype=np.uint8).reshape(-1, columns).T.tobytes()
    return columnwise


def split_block(block: bytes) -> list[bytes]:
    """The payloads of a block, in their order.

    Raises:
        ValueError: it is malformed.
    """
    if len(block) < _HEAD:
        raise ValueError("a block is too short")
    count, tables = np.frombuffer(block, dtype="<u4", count=2, offset=1).tolist()
    data = _HEAD + 8 * tables + 2 * count
    if not 0 < count <= MOST_PAYLOADS or not 0 < tables <= count or len(block) < data:
        raise ValueError("a block has impossible numbers")
    lengths, counts = np.frombuffer(block, dtype="<u4", count=2 * tables, offset=_HEAD).reshape(-1, 2).T.tolist()
    order = np.frombuffer(_transposed(block[data - 2 * count : data], count), dtype="<u2")
    if np.bincount(order, minlength=tables).tolist() != counts or data + _size(lengths, counts) != len(block):
        raise ValueError("the parts of a block contradict one another")
    rows = []
    for length, number in zip(lengths, counts, strict=True):
        rows.append(iter(_rows(block[data : data + length * number], length, number)))
        data += length * number
    payloads = [next(rows[table]) for table in order.tolist()]
    if not fit_a_block(payloads):
        raise ValueError("payloads that are too short for a block, or blocks themselves")
    return payloads


def _size(lengths: Iterable[int], counts: Iterable[int]) -> int:
    return sum(length * count for length, count in zip(lengths, counts, strict=True))


def _rows(table: bytes, length: int, count: int) -> list[bytes]:
    data = _transposed(table, count)
    return [data[at * length : (at + 1) * length] for at in range(count)]


def each_payload(found: Iterable[tuple[int, bytes] | Damage]) -> Iterator[bytes | Damage]:
    """The payloads of frames that a :class:`~.frames.FrameScanner` finds, those in blocks one by one.

    A malformed block, or one that holds blocks, comes as it is; it is no frame.
    """
    for part in found:
        if isinstance(part, Damage):
            yield part
        elif part[1][:1] == bytes([BLOCK]):
            try:
                yield from split_block(part[1])
            except ValueError:
                yield part[1]
        else:
            yield part[1]
