"""Packed columns give back every number, in Python's reading and in the browser's."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from cbtrace.site.pages.packed import packed, packed_groups, packed_table
from packed_tables import groups, table, unpacked
from pages import visit

EXACT = 2**53 - 1
NUMBERS = st.one_of(st.integers(-(2**62), 2**62), st.integers(-40, 40), st.integers(-EXACT, EXACT))
COLUMNS = st.lists(NUMBERS, max_size=60)


def column(values: list[int]) -> dict[str, Any]:
    return packed(np.array(values, dtype=np.int64))


@given(COLUMNS)
def test_a_column_gives_back_its_numbers(values: list[int]) -> None:
    assert unpacked(column(values), len(values)) == values


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(1, 50))
def test_an_even_column_is_two_numbers(start: int, step: int, count: int) -> None:
    made = column([start + i * step for i in range(count)])
    assert made == {"from": start, "by": step if count > 1 else 0}


@given(st.lists(st.integers(0, 500), min_size=3, max_size=60), st.integers(1 << 16, 1 << 30))
def test_a_common_divisor_is_taken_out(values: list[int], unit: int) -> None:
    made = column([value * unit for value in values])
    assert unpacked(made, len(values)) == [value * unit for value in values]
    assert len(json.dumps(made)) <= len(json.dumps(column(values))) + len(f'"scale": {500 * unit}, ')


@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(-9, 9)), max_size=5), max_size=20))
def test_groups_keep_their_rows(lists: list[list[tuple[int, int]]]) -> None:
    rows = [row for rows in lists for row in rows]
    columns = {name: np.array([row[i] for row in rows], dtype=np.int64) for i, name in enumerate("ab")}
    made = packed_groups(np.array([len(rows) for rows in lists], dtype=np.int64), columns)
    assert groups(made) == [[{"a": a, "b": b} for a, b in rows] for rows in lists]


def test_rows_of_a_table_are_those_asked_for() -> None:
    made = packed_table({"a": np.arange(10) ** 2, "b": np.zeros(10, dtype=np.int64)}, slice(3, 7))
    assert table(made) == {"a": [9, 16, 25, 36], "b": [0, 0, 0, 0]}


def test_the_browser_reads_what_python_wrote(browser: Browser) -> None:
    source = random.Random(11)
    tables, expected = [], []
    for _ in range(300):
        count, bits = source.randrange(0, 40), source.randrange(1, 53)
        scale = source.choice((1, 1, 3 << 20)) if bits < 30 else 1
        values = np.array([scale * (source.getrandbits(bits) - (1 << bits - 1)) for _ in range(count)], dtype=np.int64)
        lengths = np.bincount(np.array([source.randrange(5) for _ in range(count)], dtype=np.int64), minlength=5)
        even = np.arange(count, dtype=np.int64) * source.randrange(-9, 9)
        tables.append(packed_groups(lengths, {"a": values, "sum": np.cumsum(values), "even": even}))
        expected.append(groups(tables[-1]))
    scripts = files("cbtrace.templates") / "assets"
    with visit(browser) as seen:
        seen.ask("window.cbtrace = {}")
        seen.ask((scripts / "columns.js").read_text(encoding="utf-8"))
        read = "(tables) => tables.map((one) => Array.from({ length: one.groups }, (_, i) => cbtrace.group(one, i)))"
        assert seen.page.evaluate(read, tables) == expected
