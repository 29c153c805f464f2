"""Single steps as the browser loads them when asked: who was in each, with how many tokens, and what it took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace

STEPS_A_FILE = 256
MEMBERS_LIMIT = 2_000_000
"""Most members that are stored over all steps; beyond, members are stored only for the steps that pages name."""
NS_A_US = 1000


def step_files(trace: Trace, named: Ints, origin_ns: int) -> Iterator[dict[str, Any]]:
    """Data of consecutive steps, :data:`STEPS_A_FILE` a file. ``named`` steps always have their members."""
    steps = trace.steps
    every = len(trace.step_requests.step) <= MEMBERS_LIMIT
    durations = step_durations(steps)
    for start in range(0, len(steps.index), STEPS_A_FILE):
        rows = slice(start, start + STEPS_A_FILE)
        yield {
            "index": steps.index[rows].tolist(),
            "start_us": ((steps.start_ns[rows] - origin_ns) // NS_A_US).tolist(),
            "duration_us": (durations[rows] // NS_A_US).tolist(),
            "phases_us": _phases(trace, rows),
            **{
                name: getattr(steps, name)[rows].tolist()
                for name in (
                    "kv_used",
                    "kv_cached",
                    "kv_free",
                    "waiting",
                    "active",
                    "starved",
                    "stop",
                    "flags",
                    "attempts",
                    "padded_queries",
                    "padded_kv",
                    "kv_read",
                )
            },
            "gpu_us": np.where(steps.gpu_ns[rows] < 0, -1, steps.gpu_ns[rows] // NS_A_US).tolist(),
            "members": [_members(trace, int(step), every or step in named) for step in steps.index[rows]],
        }


def _phases(trace: Trace, rows: slice) -> list[list[int]]:
    """By step: scheduling, writing inputs, launching, waiting for results, updating."""
    steps = trace.steps
    instants = np.stack(
        [getattr(steps, f"{name}_ns")[rows] for name in ("start", "scheduled", "prepared", "launched", "ready", "done")]
    )
    phases: list[list[int]] = (np.diff(instants, axis=0) // NS_A_US).T.tolist()
    return phases


def _members(trace: Trace, step: int, stored: bool) -> dict[str, list[int]] | None:
    """Requests that decoded one token, and the rest as request, prefill, decode, recompute. None when not stored."""
    if not stored:
        return None
    members = trace.step_requests
    part = slice(*np.searchsorted(members.step, (step, step + 1)))
    request, prefill, decode, recompute = (
        column[part] for column in (members.request, members.prefill, members.decode, members.recompute)
    )
    plain = (prefill == 0) & (recompute == 0) & (decode == 1)
    rest = np.stack([request, prefill, decode, recompute], axis=1)[~plain]
    return {
        "decode": request[plain].tolist(),
        "rest": rest.reshape(-1).tolist(),
        "wasted": request[members.wasted[part]].tolist(),
    }
