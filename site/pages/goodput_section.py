"""Goodput as the page shows it: a table of round limits, and the data with which a reader tries SLOs of his own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.goodput import ServiceTimes, ladder
from cbtrace.site.pages.packed import packed_table
from cbtrace.site.words import Words

TIMES = {"ttft": "ttft", "gap": "longest_gap", "e2e": "e2e"}
"""The kinds of limits, and the times that they are held against."""
NS_A_US = 1000


@dataclass(frozen=True)
class LadderRow:
    """One kind of limit: how many requests are within round values of it."""

    id: str
    label: str
    cells: list[str]


@dataclass(frozen=True)
class GoodputSection:
    """The table and what it counts."""

    text: str
    rows: list[LadderRow]
    columns: int


def goodput_section(times: ServiceTimes, words: Words) -> GoodputSection:
    """Shares of all judged requests that are within each limit."""
    rows = [
        LadderRow(
            name,
            words(f"goodput.{name}"),
            [
                words(
                    "goodput.within",
                    limit=formats.from_ns(limit),
                    share=formats.percent(count / times.judged),
                )
                for limit, count in ladder(getattr(times, column))
            ],
        )
        for name, column in TIMES.items()
    ]
    text = words("goodput.counted", judged=formats.number(times.judged), missed=formats.number(times.missed))
    for count, key in ((times.running, "goodput.running"), (times.unseen, "goodput.unseen")):
        text += " " + words(key, count=formats.number(count)) if count else ""
    return GoodputSection(text, rows if len(times.ttft) else [], max(len(row.cells) for row in rows))


def goodput_data(times: ServiceTimes, words: Words) -> dict[str, Any]:
    """Times of all completed requests in microseconds, rounded up, so that no request meets a limit by rounding."""
    order = np.argsort(times.ttft, kind="stable")  # differences of a sorted column are short
    columns = {f"{name}_us": -(-getattr(times, column)[order] // NS_A_US) for name, column in TIMES.items()}
    return {
        "window_s": times.window_s,
        "judged": times.judged,
        "words": words.starting("goodput.js."),
        "times": packed_table(columns),
    }
