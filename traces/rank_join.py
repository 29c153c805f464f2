"""Joins the traces of tensor-parallel ranks: one table with a row a step and a column a rank, on one clock.

All ranks run the same schedule, so steps are matched by their index. Whether they really did is checked, as far as
both sides were read: requests and tokens of every step.

Ranks of one host share its monotonic clock. That two files are of one host is told from both their clocks: monotonic
and wall clock are apart by the moment at which the host started, which no two hosts share to a thousandth of a second.
Otherwise wall clocks align them, and how far that can be trusted is told from the steps themselves: no rank has the
results of a step before another one has begun it, because the ranks need each other for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Bools, Ints, Steps
from .errors import declare
from .rank_groups import ranks_in_words
from .reader import Trace
from .recovery import Finding, RecoveryReport
from .schema import Severity

UNKNOWN = -1
INSTANTS = ("start_ns", "scheduled_ns", "prepared_ns", "launched_ns", "ready_ns", "done_ns")
SCHEDULE = ("members", "prefill_tokens", "decode_tokens", "recompute_tokens", "new_tokens")
"""Columns of a step that all ranks must agree on."""
_NEAR_NS = 1_000_000
"""Reading two clocks one after the other takes far less than this, unless the process is interrupted between."""
_FAR_NS = 1 << 61
"""No clocks are further apart than this; files may claim anything."""


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank, on the rows of a :class:`RankJoin`; ``UNKNOWN`` where it has none."""

    rank: int
    known: Bools
    start_ns: Ints
    scheduled_ns: Ints
    prepared_ns: Ints
    launched_ns: Ints
    ready_ns: Ints
    done_ns: Ints
    gpu_ns: Ints


@dataclass(frozen=True)
class RankJoin:
    """The steps of all ranks. Instants are nanoseconds of the first rank's trace."""

    index: Ints
    """Step indices: all that any rank has."""
    ranks: list[RankSteps]
    """In the order in which they were taken; requests go by the first one's clock."""
    one_clock: bool
    """All ranks read one monotonic clock, so that instants of different ranks can be compared."""
    uncertain_ns: int
    """How far instants of other ranks may be off; 0 on one clock."""
    findings: list[Finding]
    """What is wrong with single ranks, and between them."""

    @property
    def on_all(self) -> Bools:
        """Rows that every rank has."""
        found: Bools = np.logical_and.reduce([steps.known for steps in self.ranks])
        return found

    def of_all(self, name: str) -> Ints:
        """A column of all ranks, shape (ranks, rows)."""
        return np.stack([getattr(steps, name) for steps in self.ranks])


class RankJoiner:
    """Takes the traces of a run one after the other and keeps of each only what is joined."""

    def __init__(self) -> None:
        self._lead: Steps | None = None
        self._ranks: list[_Rank] = []
        self._findings: list[Finding] = []

    def add(self, trace: Trace) -> None:
        """Take one more rank, the one whose clock requests go by first."""
        rank = _Rank(trace)
        self._findings += _incomplete(trace)
        if self._lead is None:
            self._lead = trace.steps
        else:
            rank.bounds = _bounds(self._lead, trace.steps)
            self._findings += _disagreement(self._ranks[0], self._lead, rank, trace.steps)
        self._ranks.append(rank)

    def join(self) -> RankJoin:
        """Join what was taken: one trace at least."""
        ranks = self._ranks
        offsets, uncertain, said = _align(ranks)
        index = np.unique(np.concatenate([rank.index for rank in ranks]))
        joined = [_on_rows(rank, index, offset) for rank, offset in zip(ranks, offsets, strict=True)]
        return RankJoin(index, joined, uncertain == 0, uncertain, self._findings + said)


class _Rank:
    """What is kept of one trace."""

    def __init__(self, trace: Trace) -> None:
        header = trace.header
        self.number = header.rank
        self.recovery: RecoveryReport = trace.recovery
        self.index = trace.steps.index
        self.columns = {name: getattr(trace.steps, name) for name in (*INSTANTS, "gpu_ns")}
        self.zero_ns = header.mono_ns
        ahead = [header.wall_ns - header.mono_ns]
        ahead += [pair.wall_ns - pair.t_ns - header.mono_ns for pair in trace.clocks]
        self.ahead = (min(ahead), max(ahead))
        """How far the wall clock was ahead of the monotonic one, least and most."""
        self.bounds: tuple[int, int] | None = None
        """Between which offsets to the lead every step overlaps the same step there; None without a common step."""


def _on_rows(rank: _Rank, index: Ints, offset_ns: int) -> RankSteps:
    at = np.searchsorted(index, rank.index)
    known = np.zeros(len(index), dtype=np.bool_)
    known[at] = rank.columns["start_ns"] >= 0  # a damaged step may have no instants
    columns = {}
    for name, values in rank.columns.items():
        columns[name] = np.full(len(index), UNKNOWN, dtype=np.int64)
        columns[name][at] = values + (0 if name == "gpu_ns" else offset_ns)
    return RankSteps(rank.number, known, **columns)


# Do the ranks agree? -------------------------------------------------------------------------------------------------


def _incomplete(trace: Trace) -> list[Finding]:
    recovery, rank = trace.recovery, trace.header.rank
    if recovery.whole:
        return []
    status = f"cut after step {recovery.after_step}" if recovery.status == "cut" else recovery.status
    text = f"The trace of rank {rank} ({trace.path.name}) is not whole: it is {status}."
    return [Finding("rank-incomplete", recovery.severity, f"rank {rank}", text)]


def _disagreement(lead: _Rank, ours: Steps, rank: _Rank, theirs: Steps) -> list[Finding]:
    """Where the schedule of a rank is not that of the first: in steps that both have, and in how many there are."""
    _, a, b = np.intersect1d(ours.index, theirs.index, assume_unique=True, return_indices=True)
    differ = np.zeros(len(a), dtype=np.bool_)
    for name in SCHEDULE:
        differ |= getattr(ours, name)[a] != getattr(theirs, name)[b]
    differ &= ours.members_known[a] & theirs.members_known[b]
    place, found = f"rank {rank.number}", []
    if differ.any():
        text = (
            f"The schedule of rank {rank.number} differs from that of rank {lead.number} in {int(differ.sum())} of "
            f"{len(a)} steps, first in step {int(ours.index[a[np.argmax(differ)]])}: they did not work on the same "
            "batches."
        )
        found.append(Finding("rank-schedule-differs", Severity.WARNING, place, text))
    counts = len(ours.index), len(theirs.index)
    if lead.recovery.whole and rank.recovery.whole and counts[0] != counts[1]:
        text = (
            f"Rank {rank.number} has {counts[1]} steps and rank {lead.number} has {counts[0]}, though both traces are "
            "whole: one of them was recorded for longer."
        )
        found.append(Finding("rank-steps-differ", Severity.WARNING, place, text))
    return found


# One clock? ----------------------------------------------------------------------------------------------------------


def _align(ranks: Sequence[_Rank]) -> tuple[list[int], int, list[Finding]]:
    """What to add to the times of each rank, how far that may be off, and what to say of it."""
    lead = ranks[0]
    offsets = [_bounded(rank.zero_ns - lead.zero_ns) for rank in ranks]
    if all(_one_clock(lead, rank, offset) for rank, offset in zip(ranks, offsets, strict=True)):
        return offsets, 0, []
    offsets, uncertain = [0], 1
    for rank in ranks[1:]:
        by_wall = _bounded(rank.zero_ns + rank.ahead[0] - lead.zero_ns - lead.ahead[0])
        low, high = rank.bounds or (by_wall, by_wall)
        offsets.append(_bounded(min(max(by_wall, low), high) if low <= high else by_wall))
        uncertain = max(uncertain, abs(high - offsets[-1]), abs(offsets[-1] - low))
    text = (
        f"Rank {lead.number} and {ranks_in_words([rank.number for rank in ranks[1:]])} were not recorded on one clock "
        f"(on different hosts, most likely): wall clocks align them, to {uncertain / 1e6:.1f} ms, and so the slowest "
        "rank of a step is not told."
    )
    return offsets, uncertain, [Finding("rank-clocks-differ", Severity.INFO, "ranks", text)]


def _one_clock(lead: _Rank, rank: _Rank, offset_ns: int) -> bool:
    """Whether both clocks were apart by the same amount at some time, and nothing in the steps speaks against it. Wall
    clocks that are set meanwhile widen the range."""
    near = lead.ahead[0] <= rank.ahead[1] + _NEAR_NS and rank.ahead[0] <= lead.ahead[1] + _NEAR_NS
    return near and (rank.bounds is None or rank.bounds[0] <= offset_ns <= rank.bounds[1])


def _bounds(ours: Steps, theirs: Steps) -> tuple[int, int] | None:
    _, a, b = np.intersect1d(ours.index, theirs.index, assume_unique=True, return_indices=True)
    timed = (ours.start_ns[a] >= 0) & (theirs.start_ns[b] >= 0)
    a, b = a[timed], b[timed]
    if not len(a):
        return None
    return int((ours.start_ns[a] - theirs.ready_ns[b]).max()), int((ours.ready_ns[a] - theirs.start_ns[b]).min())


def _bounded(ns: int) -> int:
    return max(-_FAR_NS, min(_FAR_NS, ns))


declare(
    "rank-incomplete",
    Severity.DATA_LOSS,
    "The trace of one rank was cut, damaged or stopped early: its process was killed, or its disk was full.",
    "Figures over ranks are of the steps that all ranks have; record the run again for the rest.",
)
declare(
    "rank-schedule-differs",
    Severity.WARNING,
    "Tensor-parallel ranks must run the same batches, and these did not: the files are of different launches under one "
    "id, or of ranks that answer requests of their own.",
    "Give `CBTRACE_RUN_ID` a new value for every launch; record with a cbtrace that notes how a model is split.",
)
declare(
    "rank-steps-differ",
    Severity.WARNING,
    "One rank was recorded for longer than another, as when recording begins or ends at another time on each.",
    "Begin and end the recording on all ranks around the same call.",
)
declare(
    "rank-clocks-differ",
    Severity.INFO,
    "The ranks ran on different hosts. Their clocks are apart by more than the ranks differ.",
    "Compare durations within each rank; instants of different ranks only roughly.",
)
