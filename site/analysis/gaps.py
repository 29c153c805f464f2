"""Token gaps of a few requests at a time, and those that are alike as one.

Nearly every gap is that of a request that decodes in one step and in the next: what it was spent on is what the step
was spent on, for each of them. Such gaps are counted by step. The others (over chunks of prompts, absences, what damage
took) are cut one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.pieces import COLUMN, PIECES
from cbtrace.site.analysis.quantiles import Counted
from cbtrace.traces.columns import Bools, Ints
from cbtrace.traces.pairs import RequestBlock, Span
from cbtrace.traces.reader import Trace

_TAKEN = np.iinfo(np.int64).min
MOST_APART = 1 << 16
"""Gaps that are cut one by one are counted together as well when there are more."""


@dataclass(frozen=True)
class GapCuts:
    """Each token gap: from ``start_ns`` to token ``position`` of ``request``, over steps ``first_step..last_step``.

    Each row of ``pieces`` (shape (n, len(PIECES)), ns) sums to ``total_ns``. Ordered by request, then position.
    """

    request: Ints
    position: Ints
    first_step: Ints
    last_step: Ints
    start_ns: Ints
    total_ns: Ints
    pieces: Ints
    absent_steps: Ints
    """Steps of the gap in which the request had no token."""

    def take(self, rows: Ints) -> GapCuts:
        """Some of the gaps."""
        return GapCuts(*(getattr(self, name)[rows] for name in GapCuts.__dataclass_fields__))


@dataclass(frozen=True)
class GapKinds(GapCuts):
    """All token gaps: those alike in their steps and pieces are one row. ``request`` and ``position`` are those of the
    first of them, and rows are in their order."""

    count: Ints
    """How many gaps each row stands for."""

    @property
    def durations(self) -> Counted:
        """The lengths of all gaps, ns."""
        return Counted(self.total_ns, self.count)

    @classmethod
    def apart(cls, gaps: GapCuts) -> GapKinds:
        """Gaps as kinds of one each."""
        columns = {name: getattr(gaps, name) for name in GapCuts.__dataclass_fields__}
        return cls(**columns, count=np.ones(len(gaps.request), dtype=np.int64))

    def rows(self, rows: Ints, count: Ints | None = None) -> GapKinds:
        """Some of the rows, all of their gaps or ``count`` of each."""
        columns = {name: _some(getattr(self, name), rows) for name in GapKinds.__dataclass_fields__}
        return GapKinds(**(columns | ({} if count is None else {"count": count})))

    def joined(self, *others: GapKinds) -> GapKinds:
        """These rows and those of others."""
        return _joined([self, *others])


@dataclass(frozen=True)
class GapPlaces:
    """The gaps of a block's requests, by the places of their two tokens among the block's pairs."""

    before: Ints
    last: Ints
    position: Ints
    """Number of the later token within its request."""


def gap_places(trace: Trace, block: RequestBlock, of: Bools) -> GapPlaces:
    """All gaps between consecutive tokens of the requests in ``of`` (a mask over all requests).

    Where damage lost a token, the gap around it is left out rather than guessed.
    """
    given = block.given
    request, position = block.pairs.request[given], trace.token_numbers(block)
    same = (request[1:] == request[:-1]) & (position[1:] == position[:-1] + 1)
    if not of[block.first : block.end].all():
        same &= of[request[1:]]
    later = np.flatnonzero(same) + 1
    return GapPlaces(given[later - 1], given[later], position[later])


def closed(pieces: Ints, total: Ints) -> Ints:
    """The pieces, with what they miss of ``total`` as unattributed. Where they exceed it, none of them is believed."""
    rest = total - pieces.sum(axis=1)
    impossible = (rest < 0) | (pieces < 0).any(axis=1)
    pieces[impossible] = 0
    pieces[:, COLUMN["unattributed"]] += np.where(impossible, total, rest)
    return pieces


@dataclass(frozen=True)
class PlainGaps:
    """Gaps of requests that decode in a step and in the one before: one row a step that such ones end in, and how many
    they are. ``request`` and ``position`` are those of the first of them."""

    row: Ints
    count: Ints
    request: Ints
    position: Ints


def plain_gaps(request: Ints, position: Ints, row: Ints) -> PlainGaps:
    """Plain gaps as they end in steps, which are given in order of request, then position."""
    if not len(row):
        return PlainGaps(row, row, row, row)
    low = int(row.min())
    count = np.bincount(row - low)
    first = np.zeros(len(count), dtype=np.int64)
    first[(row - low)[::-1]] = np.arange(len(row))[::-1]  # the first of equal rows is written last, and stays
    there = np.flatnonzero(count)
    return PlainGaps(there + low, count[there], request[first[there]], position[first[there]])


class GapCounts:
    """Counts gaps that are alike.

    Args:
        trace: the trace.
        plain: gaps of requests that decode in a step and in the one before, by step; shape (steps, len(PIECES)).
    """

    def __init__(self, trace: Trace, plain: Ints) -> None:
        self._steps, self._plain = trace.steps, plain
        rows = len(trace.steps.index)
        self._count = np.zeros(rows, dtype=np.int64)
        self._request, self._position = (np.full(rows, -1, dtype=np.int64) for _ in range(2))
        self._apart: list[GapKinds] = []
        self._apart_rows = 0

    def add_plain(self, gaps: PlainGaps) -> None:
        """Count plain gaps of requests that come after all before."""
        self._count[gaps.row] += gaps.count
        new = self._request[gaps.row] < 0
        self._request[gaps.row[new]] = gaps.request[new]
        self._position[gaps.row[new]] = gaps.position[new]

    def add(self, gaps: GapCuts) -> None:
        """Add gaps one by one, in the same order."""
        if not len(gaps.request):
            return
        self._apart.append(GapKinds.apart(gaps))
        self._apart_rows += len(gaps.request)
        if self._apart_rows > MOST_APART:
            self._apart = [alike(_joined(self._apart))]
            self._apart_rows = max(len(self._apart[0].request) - MOST_APART, 0)

    def kinds(self) -> GapKinds:
        """All gaps so far. Made column by column: together they are large."""
        row, ready, index = np.flatnonzero(self._count), self._steps.ready_ns, self._steps.index
        plain: dict[str, Callable[[], Ints]] = {
            "position": lambda: self._position[row],
            "first_step": lambda: index[row - 1] + 1,
            "last_step": lambda: index[row],
            "start_ns": lambda: ready[row - 1],
            "total_ns": lambda: ready[row] - ready[row - 1],
            "absent_steps": lambda: np.zeros(len(row), dtype=np.int64),
            "count": lambda: self._count[row],
        }
        request, position = (
            np.concatenate([column[row], *(getattr(part, name) for part in self._apart)])
            for name, column in (("request", self._request), ("position", self._position))
        )
        order = np.lexsort((position, request))
        columns = {"request": request[order]}
        for name, made in plain.items():
            columns[name] = np.concatenate([made(), *(getattr(part, name) for part in self._apart)])[order]
        pieces = piece_matrix(len(order))
        for at in range(pieces.shape[1]):
            both = [self._plain[:, at], *(part.pieces[:, at] for part in self._apart)]
            if any(part.any() for part in both):
                pieces[:, at] = np.concatenate([both[0][row], *both[1:]])[order]
        return GapKinds(**columns, pieces=pieces)


def piece_matrix(rows: int) -> Ints:
    """Zeros of shape (rows, len(PIECES)); columns lie apart, so that those that stay zero take no memory."""
    return np.zeros((rows, len(PIECES)), dtype=np.int64, order="F")


def _some(values: Ints, rows: Ints) -> Ints:
    """Values of rows; of a matrix, column by column."""
    if values.ndim == 1:
        return values[rows]
    found = piece_matrix(len(rows))
    for column in range(values.shape[1]):
        if values[:, column].any():
            found[:, column] = values[rows, column]
    return found


def _joined(parts: list[GapKinds]) -> GapKinds:
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in GapKinds.__dataclass_fields__
        if name != "pieces"
    }
    return GapKinds(**columns, pieces=joined_pieces([part.pieces for part in parts]))


def joined_pieces(parts: list[Ints]) -> Ints:
    """The rows of several matrices of pieces."""
    pieces = piece_matrix(sum(map(len, parts)))
    for column in range(pieces.shape[1]):
        if any(part[:, column].any() for part in parts):
            pieces[:, column] = np.concatenate([part[:, column] for part in parts])
    return pieces


def alike(kinds: GapKinds) -> GapKinds:
    """Rows of the same steps and pieces as one, the first of them."""
    whole = np.column_stack([kinds.first_step, kinds.last_step, kinds.absent_steps, kinds.pieces])
    _, first, group = np.unique(whole, axis=0, return_index=True, return_inverse=True)
    count = np.zeros(len(first), dtype=np.int64)
    np.add.at(count, group.reshape(-1), kinds.count)
    order = np.argsort(first, kind="stable")
    columns = {name: getattr(kinds, name)[first[order]] for name in GapCuts.__dataclass_fields__}
    return GapKinds(**columns, count=count[order])


def longest_by_request(request: Ints, total_ns: Ints, span: Span) -> Ints:
    """By request of a span: the longest of its gaps, which are ordered by request; -1 for one without."""
    first, end = span
    longest = np.full(end - first, -1, dtype=np.int64)
    if len(request):
        begins = np.flatnonzero(np.diff(request, prepend=-1))
        longest[request[begins] - first] = np.maximum.reduceat(total_ns, begins)
    return longest


def longest_places(request: Ints, total_ns: Ints, most: int) -> Ints:
    """Which gaps are among the ``most`` longest of their request, equal ones in order; ordered as they are."""
    left, found = total_ns.copy(), []
    begins = np.flatnonzero(np.diff(request, prepend=-1))
    length = np.diff(np.append(begins, len(request)))
    for _ in range(min(most, int(length.max(initial=0)))):
        largest = np.maximum.reduceat(left, begins)
        at = np.flatnonzero(left == np.repeat(largest, length))
        at = at[np.diff(request[at], prepend=-1) != 0]
        at = at[left[at] > _TAKEN]
        left[at] = _TAKEN
        found.append(at)
    return np.sort(np.concatenate(found)) if found else begins
