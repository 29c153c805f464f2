"""Who was in each step, as changes from the step before: a run of 64 requests at once has millions of members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from cbtrace.traces.columns import Ints, StepRequests
from cbtrace.traces.reader import Trace
from cbtrace.traces.tables import joined


@dataclass(frozen=True)
class Listed:
    """Requests listed by row: ``counts[i]`` of them belong to row ``i``."""

    counts: Ints
    request: Ints


@dataclass(frozen=True)
class StepMembers:
    """The members of consecutive steps; rows count from the first of them."""

    joined: Listed
    """Requests that decode one token in this step, and did not in the one before it here."""
    left: Listed
    """Requests that decoded one token in the step before, and do not in this one."""
    others: Listed
    """Requests with other work than one decode token."""
    prefill: Ints
    """Tokens of each of the ``others``."""
    decode: Ints
    recompute: Ints
    wasted: Listed
    """Requests whose token was dropped."""


def step_members(trace: Trace, rows: int) -> Iterator[StepMembers]:
    """The members of all steps of ``trace``, ``rows`` steps a part; memory is that of a part and a block."""
    index = trace.steps.index
    for first, members in _parts(trace, rows):
        count = min(rows, len(index) - first)
        yield _members(members, np.searchsorted(index[first : first + count], members.step), count)


def _parts(trace: Trace, rows: int) -> Iterator[tuple[int, StepRequests]]:
    """The members of ``rows`` steps at a time, and the row of the first step."""
    index = trace.steps.index
    blocks = trace.iter_step_requests()
    held: list[StepRequests] = []
    for first in range(0, len(index), rows):
        end = int(index[first + rows]) if first + rows < len(index) else int(index[-1]) + 1
        while not held or not len(held[-1].step) or held[-1].step[-1] < end:
            block = next(blocks, None)
            if block is None:
                break
            held.append(block)
        cuts = [int(np.searchsorted(block.step, end)) for block in held]
        yield first, joined(StepRequests, [_rows(block, slice(0, cut)) for block, cut in zip(held, cuts, strict=True)])
        held = [_rows(block, slice(cut, None)) for block, cut in zip(held, cuts, strict=True) if cut < len(block.step)]


def _rows(table: StepRequests, rows: slice) -> StepRequests:
    return StepRequests(*(getattr(table, field.name)[rows] for field in fields(table)))


def _members(members: StepRequests, row: Ints, count: int) -> StepMembers:
    plain = (members.prefill == 0) & (members.recompute == 0) & (members.decode == 1)
    came, left = _changes(members.request[plain], row[plain], count)
    others = ~plain
    return StepMembers(
        joined=came,
        left=left,
        others=_listed(row[others], members.request[others], count),
        prefill=members.prefill[others],
        decode=members.decode[others],
        recompute=members.recompute[others],
        wasted=_listed(row[members.wasted], members.request[members.wasted], count),
    )


def _changes(request: Ints, row: Ints, count: int) -> tuple[Listed, Listed]:
    """Who came and who left by row, of requests that were there in rows."""
    order = np.argsort(request, kind="stable")
    request, row = request[order], row[order]
    begins = (request != np.roll(request, 1)) | (row != np.roll(row, 1) + 1)
    if len(begins):
        begins[0] = True
    ends = np.roll(begins, -1)
    gone = row[ends] + 1
    seen = gone < count
    return _sorted(row[begins], request[begins], count), _sorted(gone[seen], request[ends][seen], count)


def _sorted(row: Ints, request: Ints, count: int) -> Listed:
    order = np.argsort(row, kind="stable")
    return _listed(row[order], request[order], count)


def _listed(row: Ints, request: Ints, count: int) -> Listed:
    return Listed(np.bincount(row, minlength=count), request)
