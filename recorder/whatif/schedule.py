"""Whether two traces show the same schedule, and where they first differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.traces import Trace

COMPARED = (
    "members",
    "prefill_tokens",
    "decode_tokens",
    "recompute_tokens",
    "new_tokens",
    "wasted_tokens",
    "kv_free",
    "kv_cached",
    "waiting",
    "active",
    "starved",
    "stop",
    "attempts",
    "padded_queries",
    "padded_kv",
    "flags",
)
"""Columns of :class:`~cbtrace.traces.columns.Steps` that the engine decides; the rest is time."""


@dataclass(frozen=True)
class Difference:
    """The first step that differs: a column's value as recorded and as replayed."""

    step: int
    column: str
    recorded: int
    replayed: int

    def __str__(self) -> str:
        return f"step {self.step}: {self.column} is {self.recorded} in the recording and {self.replayed} in the replay"


def first_difference(recorded: Trace, replayed: Trace) -> Difference | None:
    """Compare all steps, column by column, and who was in them; None when they are equal."""
    found = [difference for column in COMPARED if (difference := _in_column(recorded, replayed, column)) is not None]
    if recorded.steps.index.size != replayed.steps.index.size:
        shorter = min(recorded.steps.index.size, replayed.steps.index.size)
        found.append(Difference(shorter, "number of steps", recorded.steps.index.size, replayed.steps.index.size))
    found += _in_members(recorded, replayed)
    return min(found, key=lambda difference: difference.step, default=None)


def _in_column(recorded: Trace, replayed: Trace, column: str) -> Difference | None:
    ours, theirs = getattr(replayed.steps, column), getattr(recorded.steps, column)
    rows = min(ours.size, theirs.size)
    unlike = np.flatnonzero(ours[:rows] != theirs[:rows])
    if not unlike.size:
        return None
    row = int(unlike[0])
    return Difference(int(recorded.steps.index[row]), column, int(theirs[row]), int(ours[row]))


def _in_members(recorded: Trace, replayed: Trace) -> list[Difference]:
    """Requests are the same by id and incarnation; ordinals may be given out in another order."""
    theirs, ours = recorded.step_requests, replayed.step_requests
    names = {
        (replayed.requests.id[row], int(replayed.requests.incarnation[row])): row
        for row in range(len(replayed.requests.id))
    }
    translated = np.array(
        [
            names.get((recorded.requests.id[row], int(recorded.requests.incarnation[row])), -1)
            for row in range(len(recorded.requests.id))
        ],
        dtype=np.int64,
    )
    rows = min(theirs.step.size, ours.step.size)
    if not rows:
        return []
    expected = np.lexsort((translated[theirs.request], theirs.step))
    same = (theirs.step[expected][:rows] == ours.step[:rows]) & (
        translated[theirs.request][expected][:rows] == ours.request[:rows]
    )
    unlike = np.flatnonzero(~same)
    if not unlike.size:
        return []
    row = int(unlike[0])
    return [
        Difference(
            int(min(theirs.step[expected][row], ours.step[row])),
            "member",
            int(theirs.request[expected][row]),
            int(ours.request[row]),
        )
    ]
