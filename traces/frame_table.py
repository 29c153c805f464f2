"""Frames of one kind as columns, so that a long trace does not become millions of objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .columns import Ints

Kind = TypeVar("Kind", bound=msgspec.Struct)

_OBJECTS = 4096


class FrameTable(Generic[Kind]):
    """Takes frames one by one, in the order of the file. Only the newest of them stay objects.

    Args:
        kind: their class. Its integers become numpy columns, everything else lists.
    """

    def __init__(self, kind: type[Kind]) -> None:
        fields = msgspec.structs.fields(kind)
        self._numbers = [field.name for field in fields if field.type is int]
        self._row = attrgetter(*self._numbers)
        self._others: dict[str, list[Any]] = {field.name: [] for field in fields if field.type is not int}
        self._packed: list[NDArray[np.int64]] = []
        self._new: list[Kind] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, frame: Kind) -> int:
        """Take a frame; returns its row."""
        self._new.append(frame)
        self._count += 1
        if len(self._new) >= _OBJECTS:
            self._pack()
        return self._count - 1

    def _pack(self) -> None:
        if not self._new:
            return
        self._packed.append(np.array(list(map(self._row, self._new)), dtype=np.int64))
        for name, values in self._others.items():
            values += map(attrgetter(name), self._new)
        self._new = []

    def numbers(self, name: str) -> Ints:
        """A column of integers."""
        self._pack()
        at = self._numbers.index(name)
        return np.concatenate([part[:, at] for part in self._packed] or [np.zeros(0, dtype=np.int64)])

    def others(self, name: str) -> list[Any]:
        """A column of texts or bytes."""
        self._pack()
        return self._others[name]

    def column(self, name: str) -> Ints | list[Any]:
        """A column, whatever it holds."""
        return self.others(name) if name in self._others else self.numbers(name)


class StoredFrames(Generic[Kind]):
    """Frames that hold lists, in order, kept as bytes: as objects they would take many times as much."""

    def __init__(self, kind: type[Kind]) -> None:
        self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._data, self._ends = bytearray(), array("q", [0])

    def append(self, frame: Kind) -> None:
        """Take a frame."""
        self._data += self._encode(frame)
        self._ends.append(len(self._data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, at: int) -> Kind:
        """The frame in a place from 0 on."""
        return self._decode(memoryview(self._data)[self._ends[at] : self._ends[at + 1]])

    def __iter__(self) -> Iterator[Kind]:
        return map(self.__getitem__, range(len(self)))


def first_rows(keys: Ints) -> tuple[Ints, Ints]:
    """The keys that occur, in order, and the row in which each comes first."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    new = np.ones(len(keys), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new], order[new]


def rows_of(keys: Ints, wanted: Ints) -> Ints:
    """The row in which each wanted key comes first; -1 where it does not occur."""
    known, rows = first_rows(keys)
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, rows[at], -1)
