"""The timeline's data as the browser loads it: the whole run in bounded points, finer levels in files of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cbtrace.site.analysis import buckets
from cbtrace.site.analysis.kv import safety_margin
from cbtrace.site.analysis.kv_groups import KvByGroup, kv_by_group
from cbtrace.site.analysis.memory import memory_series
from cbtrace.site.analysis.timeline import Marks, TimelineRows, marks, timeline_rows
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, Engine

POINTS = 800
"""Most points of a panel over the whole run; a zoomed window has between half as many and as many."""
ROWS_A_FILE = 2048
MARKS_A_KIND = 200
MEMORY_POINTS = 300

_TIMES = ("start_ns", "end_ns", "duration_max", "duration_sum", "gpu_sum")
_NS_A_US = 1000


@dataclass(frozen=True)
class LevelFile:
    """Rows of one level of zoom, to be written as a data script of its own."""

    key: str
    data: dict[str, Any]


@dataclass(frozen=True)
class TimelineData:
    """What the page loads at first (``overview``), and the files for finer windows."""

    overview: dict[str, Any]
    files: list[LevelFile]
    rows: TimelineRows
    """The coarsest level, which the page also shows as text."""
    marks: Marks
    groups: KvByGroup | None
    """How the KV cache divides between groups of layers, for a hybrid model."""


def timeline_data(trace: Trace, slug: str, origin_ns: int, words: Words) -> TimelineData:
    """Everything the timeline of ``trace`` draws. Times are microseconds from ``origin_ns``."""
    sizes = buckets.levels(len(trace.steps.index), POINTS)
    coarsest = timeline_rows(trace.steps, sizes[0])
    groups = kv_by_group(trace)
    files: list[LevelFile] = []
    levels: list[dict[str, Any]] = []
    for k in sizes[1:]:
        made = list(_split(_all_columns(trace, timeline_rows(trace.steps, k), groups, origin_ns), k, slug))
        files += made
        starts = [file.data["start_us"][0] for file in made]
        levels.append({"bucket": k, "starts": starts, "keys": [file.key for file in made]})
    drawn = marks(trace.events, trace.requests, MARKS_A_KIND)
    overview = {
        "rows": _all_columns(trace, coarsest, groups, origin_ns),
        "bucket": coarsest.bucket,
        "steps": len(trace.steps.index),
        "levels": levels,
        "limits": _limits(trace.engines[-1] if trace.engines else None),
        "marks": {
            "time_us": [(t - origin_ns) // _NS_A_US for t in drawn.time_ns],
            "kind": drawn.kind,
            "step": drawn.step,
        },
        "memory": _memory(trace, origin_ns),
        "words": _script_words(words),
    }
    return TimelineData(overview, files, coarsest, drawn, groups)


def _memory(trace: Trace, origin_ns: int) -> dict[str, list[int]]:
    """Memory over time; a series that is nowhere known is left out."""
    series = memory_series(trace.memory, MEMORY_POINTS)
    columns = {"time_us": ((series.time_ns - origin_ns) // _NS_A_US).tolist()}
    for name in ("allocated", "reserved", "device_used", "host_rss"):
        values = getattr(series, name)
        if (values >= 0).any():
            columns[name] = values.tolist()
    return columns


def _script_words(words: Words) -> dict[str, str]:
    """The texts that the scripts of a run's page need; reasons by number."""
    stops = {f"stop.{stop.value}": words(f"stop.{stop.name}") for stop in AdmissionStop}
    charts = words.starting("mark.") | words.starting("plot.")
    return charts | words.starting("timeline.js.") | words.starting("step.js.") | stops


def _split(columns: dict[str, list[int]], bucket: int, slug: str) -> Iterator[LevelFile]:
    for number, start in enumerate(range(0, len(columns["steps"]), ROWS_A_FILE)):
        part = {name: values[start : start + ROWS_A_FILE] for name, values in columns.items()}
        yield LevelFile(f"{slug}/steps-{bucket}-{number}", part)


def _all_columns(trace: Trace, rows: TimelineRows, groups: KvByGroup | None, origin_ns: int) -> dict[str, list[int]]:
    """Columns of a level by name; of a hybrid model also the bytes of each group, at the step that used most."""
    columns = _columns(rows, origin_ns)
    if groups is not None:
        fullest = buckets.row_of_largest(trace.steps.kv_used, rows.bucket)
        columns |= {f"group_used_{i}": used[fullest].tolist() for i, used in enumerate(groups.used)}
    return columns


def _columns(rows: TimelineRows, origin_ns: int) -> dict[str, list[int]]:
    """Times become whole microseconds, rounded down, so that their order stays."""
    columns: dict[str, list[int]] = {}
    for field in fields(rows):
        name, values = field.name, getattr(rows, field.name)
        if not isinstance(values, np.ndarray):
            continue
        if name in _TIMES:
            offset = origin_ns if name.endswith("_ns") else 0
            unknown = (values < 0) & (name == "gpu_sum")
            values = np.where(unknown, -1, (values - offset) // _NS_A_US)
            name = f"{name.removesuffix('_ns')}_us"
        columns[name] = values.tolist()
    return columns


def _limits(engine: Engine | None) -> dict[str, Any]:
    """Lines that the panels show: the token budget, the capacity, and where the safety margin begins."""
    if engine is None:
        return {"token_budget": None, "capacity": None, "margin_from": None}
    budget = engine.resolved.get("max_batch_tokens")
    capacity = engine.kv.capacity_units * engine.kv.unit_bytes
    margin = safety_margin(engine)
    return {
        "token_budget": budget if isinstance(budget, int) else None,
        "capacity": capacity,
        "margin_from": None if margin is None else round(capacity * (1 - margin)),
    }
