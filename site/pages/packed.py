"""Columns of whole numbers as short texts: what the data files of long runs are made of.

A column is base64 VLQ, as in source maps: five bits of a number a character, low ones first, and a sixth that says
whether more follow. Numbers that go on evenly are two numbers only. ``columns.js`` is the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbtrace.traces.columns import Ints

Unsigned = NDArray[np.uint64]
Packed = dict[str, Any]
"""A column: ``{"from", "by"}``, or its values ``v`` or their differences ``d`` as text, with what to multiply by."""

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
_BITS = 5
_MORE = np.uint64(1 << _BITS)
_LOW = np.uint64((1 << _BITS) - 1)
_WORTH_A_SCALE = 1 << 16
"""Numbers as large as amounts of memory are looked at for a common divisor."""
_EXACT = 1 << 53
"""A script counts exactly up to here; beyond, values are rounded and never summed up."""


def packed_table(columns: Mapping[str, Ints], rows: slice = slice(None)) -> Packed:
    """Columns of equal length by name; ``rows`` are what is taken of each."""
    taken = {name: values[rows] for name, values in columns.items()}
    count = len(next(iter(taken.values()))) if taken else 0
    return {"count": count, "columns": {name: packed(values) for name, values in taken.items()}}


def packed_groups(lengths: Ints, columns: Mapping[str, Ints]) -> Packed:
    """A table whose rows belong to groups: the first ``lengths[0]`` of them to the first one, and so on."""
    return packed_table(columns) | {"groups": len(lengths), "lengths": packed(lengths)}


def packed(values: Ints) -> Packed:
    """A column in the shortest of its forms."""
    if not len(values):
        return {"from": 0, "by": 0}
    low, high = int(values.min()), int(values.max())
    if low <= -_EXACT or high >= _EXACT:
        numbers = _zigzag(values)
        return {"v": _vlq(numbers, _digits(numbers))}
    steps = np.diff(values)
    if not len(steps) or (steps == steps[0]).all():
        return {"from": int(values[0]), "by": int(steps[0]) if len(steps) else 0}
    scale = int(np.gcd.reduce(values)) if max(-low, high) >= _WORTH_A_SCALE else 1
    if scale > 1:
        values = values // scale
    plain, differences = _zigzag(values), _zigzag(np.diff(values, prepend=0))
    forms = {"v": (plain, _digits(plain)), "d": (differences, _digits(differences))}
    form = min(forms, key=lambda form: int(forms[form][1].sum()))
    made: Packed = {form: _vlq(*forms[form])}
    return made | ({"scale": scale} if scale > 1 else {})


def _zigzag(values: Ints) -> Unsigned:
    """Small numbers for those near zero, whatever their sign."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _digits(numbers: Unsigned) -> Ints:
    """How many characters each number takes."""
    digits = np.ones(len(numbers), dtype=np.int64)
    for shift in range(_BITS, int(numbers.max()).bit_length(), _BITS):
        digits += numbers >= np.uint64(1 << shift)
    return digits


def _vlq(numbers: Unsigned, digits: Ints) -> str:
    ends = np.cumsum(digits)
    text = np.empty(int(ends[-1]), dtype=np.uint8)
    place, more = ends - digits, digits - 1
    while len(numbers):
        text[place] = _ALPHABET[(numbers & _LOW) + _MORE * (more > 0)]
        longer = np.flatnonzero(more)
        numbers, place, more = numbers[longer] >> np.uint64(_BITS), place[longer] + 1, more[longer] - 1
    return text.tobytes().decode("ascii")
