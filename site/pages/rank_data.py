"""What the scripts of a run's page draw and say of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbtrace.site.analysis import buckets
from cbtrace.site.analysis.ranks import RankAnalysis
from cbtrace.site.pages.packed import packed_table
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints

POINTS = 400
"""Most points of a line."""
DRAWN = 8
"""Most ranks that are drawn: those that were the slowest most often."""
_NS_A_US = 1000


@dataclass(frozen=True)
class RankChart:
    """Lines of each rank over the run."""

    data: dict[str, Any]
    drawn: list[int]
    """Numbers of the ranks that are drawn."""
    bucket: int
    """Steps a point."""


def rank_chart(found: RankAnalysis, origin_ns: int, words: Words) -> RankChart:
    """By point the longest step of each rank, and how much later than the first rank it launched, at most."""
    join = found.join
    bucket = max(1, -(-len(join.index) // POINTS))
    starts = buckets.bucket_starts(len(join.index), bucket)
    shown = _shown(found)
    columns = {"time_us": _us(join.of_all("start_ns").max(axis=0)[starts] - origin_ns)}
    late = _late(found)
    for line, place in enumerate(shown):
        columns[f"step_{line}_us"] = _us(buckets.largest(found.step_ns[place], bucket))
        if found.waits:
            columns[f"late_{line}_us"] = _us(buckets.largest(late[place], bucket))
    drawn = [found.ranks[place].rank for place in shown]
    data = {"rows": packed_table(columns), "ranks": drawn, "words": words.starting("ranks.js.")}
    return RankChart(data, drawn, bucket)


def step_columns(found: RankAnalysis, index: Ints) -> dict[str, Ints]:
    """For the steps of a run by their index: the slowest rank, its lag, and the spread of the times on the devices."""
    at = np.searchsorted(found.join.index, index)
    return {
        "rank_slowest": found.slowest[at],
        "rank_lag_us": _us(found.lag_ns[at]),
        "rank_gpu_spread_us": _us(found.gpu_spread_ns[at]),
    }


def _shown(found: RankAnalysis) -> list[int]:
    """Places of the ranks that are drawn, in order."""
    if not found.waits:
        return list(range(len(found.ranks)))[:DRAWN]
    often = sorted(range(len(found.ranks)), key=lambda place: -found.waits[place].slowest)  # type: ignore[index]
    return sorted(often[:DRAWN])


def _late(found: RankAnalysis) -> Ints:
    prepared = found.join.of_all("prepared_ns")
    return np.where(found.lag_ns >= 0, prepared - prepared.min(axis=0), -1)


def _us(ns: Ints) -> Ints:
    return np.where(ns < 0, -1, ns // _NS_A_US)
