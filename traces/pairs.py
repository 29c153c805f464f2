"""What a request did in a step, many of them as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .columns import Bools, Ints

GROUP = 256
"""Parts of requests begin at multiples of it, unless such a group has too many pairs for one part."""


Span = tuple[int, int]
"""The first of some consecutive requests, and the one after the last."""


@dataclass(frozen=True)
class Block:
    """Pairs of step and request, as columns; ``row`` is the row of the step among all steps of the trace."""

    row: Ints
    request: Ints
    prefill: Ints
    decode: Ints
    recompute: Ints
    position: Ints
    new_token: Bools
    wasted: Bools

    def take(self, rows: Ints) -> Block:
        """Some of the pairs."""
        return Block(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def joined(blocks: Sequence[Block]) -> Block:
    """The pairs of several blocks."""
    if not blocks:
        none = np.zeros(0, dtype=np.int64)
        return Block(none, none, none, none, none, none, none.astype(np.bool_), none.astype(np.bool_))
    return Block(*(np.concatenate([getattr(b, name) for b in blocks]) for name in Block.__dataclass_fields__))


@dataclass(frozen=True)
class RequestBlock:
    """All pairs of the requests from ``first`` up to and without ``end``, ordered by request, then by step."""

    first: int
    end: int
    pairs: Block
    chunks: Ints
    """Which pairs are anything but one plain decode."""

    @cached_property
    def given(self) -> NDArray[np.intp]:
        """Which pairs gave their request a token that was delivered."""
        return np.flatnonzero(self.pairs.new_token)


def sums_by(group: Ints, value: Ints, groups: int) -> Ints:
    """Sum of ``value`` by group, exact up to 2**53."""
    return np.bincount(group, weights=value, minlength=groups).astype(np.int64)


def ranges(begin: Ints, length: Ints) -> Ints:
    """``begin[i]``, ``begin[i] + 1`` and so on, ``length[i]`` numbers for each i."""
    ends = np.cumsum(length)
    first: Ints = np.repeat(begin - (ends - length), length)
    return first + np.arange(len(first), dtype=np.int64)


def stable_order(*keys: Ints) -> NDArray[np.intp]:
    """Order by the last key, then the one before it; equal ones stay as they are.

    Keys whose values lie close together are narrowed to 16 bits, which numpy sorts in linear time.
    """
    order: NDArray[np.intp] = np.arange(len(keys[0]))
    for key in keys:
        column = key[order]
        if column.size:
            low = column.min()
            spread = int(column.max()) - int(low)
            if spread < 1 << 16:
                column = (column - low).astype(np.uint16)
        order = order[np.argsort(column, kind="stable")]
    return order
