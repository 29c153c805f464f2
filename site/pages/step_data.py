"""Single steps as the browser loads them: the finest level of the timeline, and who was in each step.

Every step of a run is there with all of its members, however long the run is: they are stored as changes from the step
before, and the browser adds them up from the first step of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

import numpy as np

from cbtrace.site.analysis.step_members import StepMembers, step_members
from cbtrace.site.analysis.window import step_durations
from cbtrace.site.pages.packed import Packed, packed_groups, packed_table
from cbtrace.traces.columns import Ints, Steps
from cbtrace.traces.reader import Trace

NS_A_US = 1000
_INSTANTS = ("start", "scheduled", "prepared", "launched", "ready", "done")
_AS_THEY_ARE = (
    "index",
    "kv_used",
    "kv_cached",
    "kv_free",
    "waiting",
    "active",
    "starved",
    "stop",
    "flags",
    "attempts",
    "kv_read",
    "prefill_tokens",
    "decode_tokens",
    "recompute_tokens",
    "wasted_tokens",
)


def step_parts(
    trace: Trace, origin_ns: int, rows: int, more: Mapping[str, Ints], parts: range
) -> Iterator[dict[str, Packed]]:
    """Columns and members of steps, ``rows`` steps a part. Times are microseconds from ``origin_ns``.

    ``more`` are further columns, one entry a step; ``parts`` are the numbers of the parts, which are consecutive.
    """
    durations = step_durations(trace.steps)
    for number, members in zip(parts, step_members(trace, rows, parts), strict=True):
        part = slice(number * rows, (number + 1) * rows)
        steps = Steps(*(getattr(trace.steps, field.name)[part] for field in fields(Steps)))
        columns = _columns(steps, durations[part], origin_ns) | {name: values[part] for name, values in more.items()}
        yield {"steps": packed_table(columns), "members": _members(members)}


def _columns(steps: Steps, duration_ns: Ints, origin_ns: int) -> dict[str, Ints]:
    """Instants are rounded down to microseconds; the five phases are the distances between them."""
    instants = [(getattr(steps, f"{name}_ns") - origin_ns) // NS_A_US for name in _INSTANTS]
    tokens = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    return {
        **{name: getattr(steps, name) for name in _AS_THEY_ARE},
        "start_us": instants[0],
        **{f"phase_{i}_us": instants[i + 1] - instants[i] for i in range(len(instants) - 1)},
        "duration_us": duration_ns // NS_A_US,
        "gpu_us": np.where(steps.gpu_ns < 0, -1, steps.gpu_ns // NS_A_US),
        # Most steps are not padded: then these are all 0.
        "query_padding": steps.padded_queries - tokens,
        "kv_padding": np.where(steps.padded_kv < 0, -1, steps.padded_kv - steps.kv_read),
    }


def _members(members: StepMembers) -> Packed:
    """Each list of requests grouped by step; the work of ``others`` beside them."""
    work = {name: getattr(members, name) for name in ("prefill", "decode", "recompute")}
    lists = {name: getattr(members, name) for name in ("joined", "left", "others", "wasted")}
    return {
        name: packed_groups(listed.counts, {"request": listed.request} | (work if name == "others" else {}))
        for name, listed in lists.items()
    }
