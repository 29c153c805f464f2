"""Who was in each step, as changes from the step before: a run of 64 requests at once has millions of members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace


@dataclass(frozen=True)
class ByRow:
    """Requests by row: ``counts[i]`` of them belong to row ``i``."""

    counts: Ints
    request: Ints


@dataclass(frozen=True)
class StepMembers:
    """The members of consecutive steps; rows count from the first of them."""

    joined: ByRow
    """Requests that decode one token in this step, and did not in the one before it here."""
    left: ByRow
    """Requests that decoded one token in the step before, and do not in this one."""
    others: ByRow
    """Requests with other work than one decode token."""
    prefill: Ints
    """Tokens of each of the ``others``."""
    decode: Ints
    recompute: Ints
    wasted: ByRow
    """Requests whose token was dropped."""


def step_members(trace: Trace, rows: int, parts: range) -> Iterator[StepMembers]:
    """The members of steps of ``trace``, ``rows`` steps a part; memory is that of a part and a block.

    ``parts`` are the numbers of the parts that are wanted, which are consecutive.
    """
    steps = len(trace.steps.index)
    wanted = slice(parts.start * rows, min(parts.stop * rows, steps))
    others, wasted = trace.chunks, trace.wasted
    here = np.flatnonzero((others.row >= wanted.start) & (others.row < wanted.stop))
    other_order = here[np.argsort(others.row[here], kind="stable")]
    other_row = others.row[other_order]
    for first, (came, went) in _parts(trace, rows, wanted):
        count = min(rows, steps - first)
        bounds = (first, first + count)
        of = other_order[slice(*np.searchsorted(other_row, bounds))]
        dropped = slice(*np.searchsorted(wasted.row, bounds))
        yield StepMembers(
            joined=_by_row(*came, count),
            left=_by_row(*went, count),
            others=_by_row(others.row[of] - first, others.request[of], count),
            prefill=others.prefill[of],
            decode=others.decode[of],
            recompute=others.recompute[of],
            wasted=_by_row(wasted.row[dropped] - first, wasted.request[dropped], count),
        )


Changes = tuple[Ints, Ints]
"""Rows and requests."""


def _parts(trace: Trace, rows: int, wanted: slice) -> Iterator[tuple[int, tuple[Changes, Changes]]]:
    """Who came and who went in each part, and the row of its first step."""
    came: list[Changes] = []
    went: list[Changes] = []
    for at, there, before in _pieces(trace, rows, wanted):
        if at % rows == 0 and at > wanted.start:
            yield at - rows, (_joined(came), _joined(went))
            came, went = [], []
        changed = np.concatenate([before, there])
        row, slot = np.nonzero(changed[1:] != changed[:-1])
        for found, who in ((came, changed[1:][row, slot]), (went, changed[:-1][row, slot])):
            found.append((row[who >= 0] + at % rows, who[who >= 0]))
    if came:
        yield (wanted.stop - 1) // rows * rows, (_joined(came), _joined(went))


def _pieces(trace: Trace, rows: int, wanted: slice) -> Iterator[tuple[int, Ints, Ints]]:
    """Plain decodes of steps of one part and one block: the first row, who decodes, and who did in the row before."""
    before = np.zeros((1, 0), dtype=np.int64)
    for first, there in trace.plain_decodes(wanted):
        at = first
        while at < first + len(there):
            end = min(first + len(there), (at // rows + 1) * rows)
            none = np.full((1, there.shape[1]), -1, dtype=np.int64)
            yield at, there[at - first : end - first], none if at % rows == 0 else before
            before = there[end - first - 1 : end - first]
            at = end


def _joined(parts: list[Changes]) -> Changes:
    return np.concatenate([row for row, _ in parts]), np.concatenate([request for _, request in parts])


def _by_row(row: Ints, request: Ints, count: int) -> ByRow:
    order = np.lexsort((request, row))
    return ByRow(np.bincount(row, minlength=count), request[order])
