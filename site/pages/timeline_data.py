"""The timeline's data as the browser loads it: the whole run in bounded points, finer levels in files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from cbtrace.site.analysis import buckets
from cbtrace.site.analysis.kv import safety_margin
from cbtrace.site.analysis.kv_groups import KvByGroup, kv_by_group
from cbtrace.site.analysis.marks import MARK_NAMES, Marks, PointMarks, marks, point_marks
from cbtrace.site.analysis.memory import memory_series
from cbtrace.site.analysis.timeline import TimelineRows, timeline_rows
from cbtrace.site.pages.packed import Packed, packed_table
from cbtrace.site.pages.pieces import Piece
from cbtrace.site.pages.step_data import step_parts
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, Engine

POINTS = 1600
"""Most points of a panel over the whole run; a zoomed window has between a quarter as many and as many."""
ROWS_A_FILE = 2048
MEMORY_POINTS = 300
FILES_A_PIECE = 16
"""Files of single steps that are made together."""

_TIMES = ("start_ns", "end_ns", "duration_max", "duration_sum", "gpu_sum")
_NS_A_US = 1000


@dataclass(frozen=True)
class TimelineData:
    """What the page loads at first (``overview``), and what the files for finer windows are made from."""

    overview: dict[str, Any]
    rows: TimelineRows
    """The coarsest level, which the page also shows as text."""
    buckets: list[int]
    """Steps a point of each level, coarsest first; the last is 1."""
    marks: Marks
    drawn: int
    """Marks of the coarsest level."""
    groups: KvByGroup | None
    """How the KV cache divides between groups of layers, for a hybrid model."""


def timeline_data(trace: Trace, origin_ns: int, words: Words) -> TimelineData:
    """The timeline of ``trace`` over the whole run. Times are microseconds from ``origin_ns``."""
    sizes = buckets.levels(len(trace.steps.index), POINTS)
    rows = timeline_rows(trace.steps, sizes[0])
    groups = kv_by_group(trace)
    made = marks(trace.events, trace.requests)
    drawn = point_marks(made, rows.start_ns)
    overview = {
        "rows": packed_table(_all_columns(trace, rows, groups, origin_ns)),
        "bucket": rows.bucket,
        "steps": len(trace.steps.index),
        "points": POINTS,
        "levels": [_level(trace, k, origin_ns) for k in sizes[1:] or sizes],
        "limits": _limits(trace.engines[-1] if trace.engines else None),
        "marks": _marks(drawn, origin_ns),
        "mark_names": list(MARK_NAMES),
        "memory": _memory(trace, origin_ns),
        "words": _script_words(words),
    }
    return TimelineData(overview, rows, sizes, made, len(drawn.time_ns), groups)


def timeline_pieces(trace: Trace, timeline: TimelineData, origin_ns: int, more: Mapping[str, Ints]) -> list[Piece]:
    """The files of all finer levels. Single steps have ``more`` columns."""
    pieces = []
    steps = len(trace.steps.index)
    for k in timeline.buckets[1:-1]:
        files = -(-steps // (k * ROWS_A_FILE))
        pieces.append(Piece(_kind(k), 0, files, partial(_points, trace, timeline, k, origin_ns)))
    at = point_marks(timeline.marks, trace.steps.start_ns)
    more = _group_columns(timeline.groups) | dict(more)
    files = -(-steps // ROWS_A_FILE)
    for first in range(0, files, FILES_A_PIECE):
        numbers = range(first, min(first + FILES_A_PIECE, files))
        pieces.append(Piece(_kind(1), first, len(numbers), partial(_steps, trace, at, origin_ns, more, numbers)))
    return pieces


def _points(trace: Trace, timeline: TimelineData, bucket: int, origin_ns: int) -> Iterator[dict[str, Packed]]:
    """The files of a level of points."""
    rows = timeline_rows(trace.steps, bucket)
    columns = _all_columns(trace, rows, timeline.groups, origin_ns)
    at = point_marks(timeline.marks, rows.start_ns)
    for start in range(0, len(rows.steps), ROWS_A_FILE):
        table = packed_table(columns, slice(start, start + ROWS_A_FILE))
        yield {"rows": table, "marks": _marks(at, origin_ns, start)}


def _steps(
    trace: Trace, at: PointMarks, origin_ns: int, more: Mapping[str, Ints], numbers: range
) -> Iterator[dict[str, Packed]]:
    """Files of single steps."""
    for number, part in zip(numbers, step_parts(trace, origin_ns, ROWS_A_FILE, more, numbers), strict=True):
        yield part | {"marks": _marks(at, origin_ns, number * ROWS_A_FILE)}


def _kind(bucket: int) -> str:
    return f"points-{bucket}" if bucket > 1 else "steps"


def _level(trace: Trace, bucket: int, origin_ns: int) -> dict[str, Any]:
    """Where a level is: its kind of files, and the first instant and step of each."""
    first = slice(None, None, bucket * ROWS_A_FILE)
    return {
        "kind": _kind(bucket),
        "bucket": bucket,
        "files": packed_table(
            {
                "start_us": (trace.steps.start_ns[first] - origin_ns) // _NS_A_US,
                "step": trace.steps.index[first],
            }
        ),
    }


def _marks(made: PointMarks, origin_ns: int, start: int | None = None) -> Packed:
    """All marks of a level, or those of one file whose first point is ``start``."""
    rows = slice(None) if start is None else slice(*np.searchsorted(made.point, (start, start + ROWS_A_FILE)))
    columns = {"time_us": (made.time_ns - origin_ns) // _NS_A_US, "kind": made.kind, "count": made.count}
    return packed_table(columns, rows)


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


def _all_columns(trace: Trace, rows: TimelineRows, groups: KvByGroup | None, origin_ns: int) -> dict[str, Ints]:
    """Columns of a level by name; of a hybrid model also the bytes of each group, at the step that used most."""
    fullest = buckets.row_of_largest(trace.steps.kv_used, rows.bucket)
    by_group = {name: used[fullest] for name, used in _group_columns(groups).items()}
    return _columns(rows, origin_ns) | by_group


def _group_columns(groups: KvByGroup | None) -> dict[str, Ints]:
    return {} if groups is None else {f"group_used_{i}": used for i, used in enumerate(groups.used)}


def _columns(rows: TimelineRows, origin_ns: int) -> dict[str, Ints]:
    """Times become whole microseconds, rounded down, so that their order stays."""
    columns: dict[str, Ints] = {}
    for field in fields(rows):
        name, values = field.name, getattr(rows, field.name)
        if not isinstance(values, np.ndarray):
            continue
        if name in _TIMES:
            offset = origin_ns if name.endswith("_ns") else 0
            unknown = (values < 0) & (name == "gpu_sum")
            values = np.where(unknown, -1, (values - offset) // _NS_A_US)
            name = f"{name.removesuffix('_ns')}_us"
        columns[name] = values
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
