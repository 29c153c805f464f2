"""Reads packed tables as `columns.js` does, number by number: what the pages' data files say, for tests."""

from __future__ import annotations

from typing import Any

_DIGITS = {
    digit: value for value, digit in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
}


def unpacked(column: dict[str, Any], count: int) -> list[int]:
    """The numbers of a column."""
    if "by" in column:
        return [column["from"] + column["by"] * i for i in range(count)]
    numbers: list[int] = []
    value = shift = 0
    for digit in column.get("v", column.get("d")):
        value |= (_DIGITS[digit] & 31) << shift
        shift += 5
        if not _DIGITS[digit] & 32:
            numbers.append(-(value + 1) // 2 if value & 1 else value // 2)
            value = shift = 0
    assert len(numbers) == count
    scale = column.get("scale", 1)
    made: list[int] = []
    for number in numbers:
        made.append(scale * number + (made[-1] if "d" in column and made else 0))
    return made


def table(packed: dict[str, Any]) -> dict[str, list[int]]:
    """The columns of a table by name."""
    return {name: unpacked(column, packed["count"]) for name, column in packed["columns"].items()}


def rows(packed: dict[str, Any]) -> list[dict[str, int]]:
    """The rows of a table."""
    columns = table(packed)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def groups(packed: dict[str, Any]) -> list[list[dict[str, int]]]:
    """The rows of each group of a table."""
    made, start, found = [], 0, rows(packed)
    for length in unpacked(packed["lengths"], packed["groups"]):
        made.append(found[start : start + length])
        start += length
    assert start == len(found)
    return made
