"""Quantiles of Student's distribution, from the table that the browser reads too (``templates/student.json``)."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from importlib.resources import files


@lru_cache
def student_table() -> dict[str, list[float]]:
    """By two-sided level, the logarithm of the quantile at equal steps of 1/df from 0 to 1."""
    source = files("cbtrace.templates") / "student.json"
    table: dict[str, list[float]] = json.loads(source.read_text(encoding="utf-8"))
    return table


def student_quantile(level: float, df: float) -> float:
    """``t`` beyond which lies ``level`` (one of the table's), both tails together, with ``df`` >= 1 degrees."""
    nodes = student_table()[str(level)]
    place = (len(nodes) - 1) / max(df, 1.0)
    below = min(int(place), len(nodes) - 2)
    return math.exp(nodes[below] + (place - below) * (nodes[below + 1] - nodes[below]))
