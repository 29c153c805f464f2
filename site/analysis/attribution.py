"""Where every TTFT and every token gap went: cut into pieces of whole nanoseconds that add up to it exactly.

Tokens come out when the results of their step are ready, so time is cut at those instants. A request that is in a step
spends the step's interval in what the engine did; one that is not spends it in what kept it out. Before its first
admission it waits for the reason of the scheduler's last decision. What damage hides is ``unattributed``, and is never
spread over the rest.

Requests are looked at some hundreds at a time, so that memory is bounded however long the run is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from cbtrace.site.analysis.clock import AdmissionClock, Phase, PhaseClock, admission_clock, phase_clock
from cbtrace.site.analysis.gaps import (
    GapCounts,
    GapCuts,
    GapKinds,
    GapPlaces,
    PlainGaps,
    alike,
    closed,
    gap_places,
    joined_pieces,
    longest_by_request,
    piece_matrix,
    plain_gaps,
)
from cbtrace.site.analysis.latency import completed
from cbtrace.site.analysis.members import MemberRows, Whereabouts
from cbtrace.site.analysis.pieces import COLUMN, PIECES, WAITS
from cbtrace.site.analysis.spreading import Spread, in_order, in_turn
from cbtrace.site.analysis.step_cost import StepCosts, step_costs
from cbtrace.traces.columns import Bools, Ints, Requests
from cbtrace.traces.pairs import RequestBlock, Span, ranges
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, RequestFlag


@dataclass(frozen=True)
class TtftCuts:
    """The TTFT of each completed request; each row of ``pieces`` (shape (n, len(PIECES)), ns) sums to ``total_ns``."""

    request: Ints
    total_ns: Ints
    pieces: Ints

    @property
    def count(self) -> Ints:
        """How many requests each row stands for: one."""
        return np.ones(len(self.request), dtype=np.int64)


@dataclass(frozen=True)
class Cuts:
    """Both cuts of a run, over its completed requests, and what they were made from."""

    ttft: TtftCuts
    gaps: GapKinds
    longest_gap: Ints
    """By request: its longest gap in ns; -1 for one without."""
    costs: StepCosts


@dataclass(frozen=True)
class CutPart:
    """Some requests: all that they did, and their gaps."""

    block: RequestBlock
    rows: MemberRows
    places: GapPlaces

    @property
    def request(self) -> Ints:
        """Whose each gap is."""
        return self.block.pairs.request[self.places.last]


class Cutter:
    """Cuts the time of requests; see the module."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.clock = phase_clock(trace.steps, trace.events)
        self.costs = step_costs(trace.steps, self.clock)
        self.whereabouts = Whereabouts(trace)
        self.done = completed(trace.requests)
        self.decisions = admission_clock(trace.steps, len(AdmissionStop))
        self._admitted_row = _first_admission_rows(trace)

    def parts(self, spans: Sequence[Span] | None = None) -> Iterator[CutPart]:
        """All requests, some hundreds at a time, in order; or those of some of the trace's ``request_spans``."""
        for block in self.trace.by_request(spans):
            yield CutPart(block, self.whereabouts.rows(block.pairs), gap_places(self.trace, block, self.done))

    def durations(self, part: CutPart) -> Ints:
        """The length of each gap of a part, ns."""
        row, ready = part.block.pairs.row, self.trace.steps.ready_ns
        found: Ints = ready[row[part.places.last]] - ready[row[part.places.before]]
        return found

    def plain_pieces(self) -> Ints:
        """By step: the pieces of a gap from the step before to it, of a request that decodes in both."""
        rows = np.arange(len(self.costs.end_ns))
        spent = _spent(rows, np.full(len(rows), COLUMN["decode"]), self.costs)
        return closed(spent, self.costs.end_ns - self.costs.start_ns)

    def plain(self, part: CutPart) -> Bools:
        """Which gaps of a part are such ones."""
        before, last, row = part.places.before, part.places.last, part.block.pairs.row
        next_to = (last == before + 1) & (part.rows.kind[last] == COLUMN["decode"])
        found: Bools = next_to & (row[last] == row[before] + 1)
        return found

    def gap_cuts(self, part: CutPart, at: Ints) -> GapCuts:
        """The cuts of the gaps ``at`` of a part."""
        before, last = part.places.before[at], part.places.last[at]
        row, steps = part.block.pairs.row, self.trace.steps
        start, end = steps.ready_ns[row[before]], steps.ready_ns[row[last]]
        pieces, absent = self.between(part.rows, before, last)
        return GapCuts(
            request=part.block.pairs.request[last],
            position=part.places.position[at],
            first_step=steps.index[row[before]] + 1,
            last_step=steps.index[row[last]],
            start_ns=start,
            total_ns=end - start,
            pieces=closed(pieces, end - start),
            absent_steps=absent,
        )

    def between(self, rows: MemberRows, before: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Sums over the rows after ``before`` up to ``last``: pieces, shape (n, len(PIECES)), and absent steps."""
        length = np.maximum(last - before, 0)
        at = ranges(before + 1, length)
        spent = _spent(rows.step_row[at], rows.kind[at], self.costs)
        absent_steps = np.zeros(len(at), dtype=np.int64)
        if len(rows.apart) and len(at):
            found = np.minimum(np.searchsorted(rows.apart, at), len(rows.apart) - 1)
            here = np.flatnonzero(rows.apart[found] == at)
            absent_steps[here] = rows.absent_steps[found[here]]
            for name, amount in rows.absent.items():
                spent[here, COLUMN[name]] += amount[found[here]]
        pieces = piece_matrix(len(length))
        for column in range(len(PIECES)):
            if spent[:, column].any():
                pieces[:, column] = _summed(spent[:, column], length)
        return pieces, _summed(absent_steps, length)

    def ttft_cuts(self, part: CutPart) -> TtftCuts:
        """The TTFT of the completed requests of a part."""
        requests, block = self.trace.requests, part.block
        of = slice(block.first, block.end)
        seen = self.done[of] & (requests.submit_ns[of] >= 0) & (requests.first_token_ns[of] >= 0)
        seen &= (requests.flags[of] & RequestFlag.SUBMIT_UNSEEN) == 0
        wanted = np.flatnonzero(seen) + block.first
        given = block.given
        first = _first_of(block.pairs.request, wanted)
        token = _first_of(block.pairs.request[given], wanted)
        last = np.append(given, -1)[token]
        known = (first >= 0) & (last >= first) & (requests.admitted_ns[wanted] >= 0)
        pieces, _ = self.between(part.rows, np.where(known, first, 0), np.where(known, last, 0))
        pieces += _waiting(requests, wanted, self.clock, self.decisions)
        begun = np.flatnonzero(known)
        admitted, admitted_row = requests.admitted_ns[wanted[begun]], self._admitted_row[wanted[begun]]
        pieces[begun] += _first_interval(admitted, admitted_row, first[begun], part.rows, self.clock, self.costs)
        total = (requests.first_token_ns - requests.submit_ns)[wanted]
        return TtftCuts(wanted, total, closed(pieces, total))


@dataclass(frozen=True)
class _Found:
    """What is told of some requests."""

    ttft: TtftCuts
    longest_gap: Ints
    plain: PlainGaps
    others: GapCuts


def attribute(trace: Trace, spread: Spread = in_turn) -> Cuts:
    """Cut every TTFT and every token gap of the completed requests of ``trace``, some requests at a time.

    ``spread`` says how the parts are gone about; whatever it does, the cuts are the same to the last digit.
    """
    cutter, spans = Cutter(trace), trace.request_spans()
    counts = GapCounts(trace, cutter.plain_pieces())
    ttft, longest = [], []
    with closing(in_order(spread(partial(_found, cutter, spans), len(spans)))) as parts:
        for part in parts:
            ttft.append(part.ttft)
            longest.append(part.longest_gap)
            counts.add_plain(part.plain)
            counts.add(part.others)
    costs = cutter.costs
    del cutter  # its clocks are large, and so is what is made now
    return Cuts(_joined(ttft), counts.kinds(), np.concatenate([np.zeros(0, dtype=np.int64), *longest]), costs)


def _found(cutter: Cutter, spans: Sequence[Span], number: int) -> _Found:
    span = spans[number]
    (part,) = cutter.parts([span])
    plain = cutter.plain(part)
    some = slice(None) if plain.all() else np.flatnonzero(plain)
    row = part.block.pairs.row[part.places.last[some]]
    return _Found(
        ttft=cutter.ttft_cuts(part),
        longest_gap=longest_by_request(part.request, cutter.durations(part), span),
        plain=plain_gaps(part.request[some], part.places.position[some], row),
        others=cutter.gap_cuts(part, np.flatnonzero(~plain)),
    )


def all_cuts(trace: Trace) -> Iterator[tuple[TtftCuts, GapCuts]]:
    """Every TTFT and every token gap of the completed requests, one row each; some hundreds of requests at a time."""
    cutter = Cutter(trace)
    for part in cutter.parts():
        yield cutter.ttft_cuts(part), cutter.gap_cuts(part, np.arange(len(part.places.last)))


def slowest_kinds(trace: Trace, kinds: GapKinds, most: int) -> GapKinds:
    """The ``most`` slowest gaps, slowest first; of equal ones, those of earlier requests and positions."""
    order = np.argsort(-kinds.total_ns, kind="stable")
    lengths, upto = kinds.total_ns[order], np.cumsum(kinds.count[order])
    if not most:
        return kinds.rows(order[:0])
    length = lengths[np.searchsorted(upto, most)]
    longer, end = (int(np.searchsorted(-lengths, -length, side=side)) for side in ("left", "right"))
    if upto[end - 1] <= most:
        return kinds.rows(order[:end])
    found = kinds.rows(order[:longer])
    left = most - (int(upto[longer - 1]) if longer else 0)
    equal = alike(kinds.rows(order[longer:end]))
    if len(equal.count) == 1:
        return found.joined(equal.rows(np.array([0]), np.array([left])))
    # Several kinds have this length, and some of their gaps are not among the slowest: their requests tell which.
    return found.joined(_first_gaps(trace, int(length), left))


def _first_gaps(trace: Trace, length: int, most: int) -> GapKinds:
    """The first gaps of a length, by request and position; one row each."""
    cutter = Cutter(trace)
    found: list[GapKinds] = []
    for part in cutter.parts():
        at = np.flatnonzero(cutter.durations(part) == length)[:most]
        found.append(GapKinds.apart(cutter.gap_cuts(part, at)))
        most -= len(at)
        if not most:
            break
    return found[0].joined(*found[1:])


def _joined(parts: list[TtftCuts]) -> TtftCuts:
    none = np.zeros(0, dtype=np.int64)
    if not parts:
        return TtftCuts(none, none, piece_matrix(0))
    request, total = (np.concatenate([getattr(part, name) for part in parts]) for name in ("request", "total_ns"))
    return TtftCuts(request, total, joined_pieces([part.pieces for part in parts]))


def _spent(at: Ints, kinds: Ints, costs: StepCosts) -> Ints:
    """Shape (n, pieces): what the intervals of the steps ``at`` were spent on for a request of the kind ``kinds``."""
    spent = piece_matrix(len(at))
    for name in ("host", "capture", "copy", "idle"):
        amount = getattr(costs, name)[at]
        if amount.any():
            spent[:, COLUMN[name]] = amount
    decodes, known = kinds == COLUMN["decode"], costs.shared_known[at]
    shared = np.where(decodes, costs.shared[at], 0)
    if shared.any():
        spent[:, COLUMN["shared_step"]] = shared
    computed = costs.compute[at] - shared
    kind = np.where(decodes & ~known, COLUMN["unattributed"], kinds)
    for column in np.unique(kind).tolist():
        rows = np.flatnonzero(kind == column)
        spent[rows, column] += computed[rows]
    lost = np.flatnonzero(~costs.known[at])
    if len(lost):
        spent[lost] = 0
        spent[lost, COLUMN["unattributed"]] = (costs.end_ns - costs.start_ns)[at[lost]]
    return spent


def _summed(amounts: Ints, length: Ints) -> Ints:
    """Sums of consecutive stretches of so many amounts."""
    running = np.concatenate([[0], np.cumsum(amounts)])
    ends = np.cumsum(length)
    found: Ints = running[ends] - running[ends - length]
    return found


def _first_of(request: Ints, wanted: Ints) -> Ints:
    """The first place of each request among sorted ones; -1 for one that is not there."""
    at = np.searchsorted(request, wanted)
    return np.where(np.append(request, -1)[at] == wanted, at, -1)


def _first_admission_rows(trace: Trace) -> Ints:
    """By request: the row of the step at which it was admitted first; -1 where that is lost."""
    admissions = trace.admissions
    first = admissions.residency == 0
    rows = np.full(len(trace.requests.id), -1, dtype=np.int64)
    rows[admissions.request[first]] = np.searchsorted(trace.steps.index, admissions.step[first])
    return rows


def _waiting(requests: Requests, wanted: Ints, clock: PhaseClock, decisions: AdmissionClock) -> Ints:
    """Pieces of the time from submit to the first admission; none where an instant of it is lost."""
    submit, visible, admitted = (
        column[wanted] for column in (requests.submit_ns, requests.visible_ns, requests.admitted_ns)
    )
    pieces = np.zeros((len(wanted), len(PIECES)), dtype=np.int64)
    forked = (requests.flags[wanted] & RequestFlag.FORKED) != 0
    pieces[forked, COLUMN["before_fork"]] = (admitted - submit)[forked]
    rows = np.flatnonzero(~forked & (visible >= submit) & (admitted >= visible))
    submit, visible, admitted = submit[rows], visible[rows], admitted[rows]
    decided = np.minimum(decisions.next_decision(visible), admitted)
    queued = clock.amount(Phase.WARM_UP, submit, visible)
    warming = clock.amount(Phase.WARM_UP, visible, decided)
    pieces[rows, COLUMN["warm_up"]] = queued + warming
    pieces[rows, COLUMN["input_queue"]] = visible - submit - queued
    for reason, name in WAITS.items():
        pieces[rows, COLUMN[name]] += decisions.amount(reason, decided, admitted)
    pieces[rows, COLUMN["wait_next_step"]] += decided - visible - warming
    return pieces


def _first_interval(
    admitted: Ints, admitted_row: Ints, first: Ints, rows: MemberRows, clock: PhaseClock, costs: StepCosts
) -> Ints:
    """Pieces of the time from the first admission to the results of the request's first step."""
    at = rows.step_row[first]
    start, end = np.maximum(admitted, costs.start_ns[at]), costs.end_ns[at]
    pieces = np.zeros((len(first), len(PIECES)), dtype=np.int64)
    spent = clock.amounts(start, end)
    for phase, name in ((Phase.HOST, "host"), (Phase.CAPTURE, "capture"), (Phase.COPY, "copy"), (Phase.IDLE, "idle")):
        pieces[:, COLUMN[name]] = spent[phase]
    rest = end - start - pieces.sum(axis=1)
    pieces[np.arange(len(first)), rows.kind[first]] += rest
    lost = ~costs.known[at]
    pieces[lost] = 0
    pieces[lost, COLUMN["unattributed"]] = (end - start)[lost]
    # An asynchronous engine schedules a step while the one before is still in flight.
    before = np.where(at == admitted_row, COLUMN["step_in_flight"], COLUMN["not_scheduled"])
    pieces[np.arange(len(first)), before] += start - admitted
    return pieces
