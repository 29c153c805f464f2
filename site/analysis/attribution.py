"""Where every TTFT and every token gap went: cut into pieces of whole nanoseconds that add up to it exactly.

Tokens come out when the results of their step are ready, so time is cut at those instants. A request that is in a step
spends the step's interval in what the engine did; one that is not spends it in what kept it out. Before its first
admission it waits for the reason of the scheduler's last decision. What damage hides is ``unattributed``, and is never
spread over the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.clock import AdmissionClock, Phase, PhaseClock, admission_clock, phase_clock
from cbtrace.site.analysis.latency import completed, token_gaps
from cbtrace.site.analysis.members import MemberRows, member_rows
from cbtrace.site.analysis.pieces import COLUMN, PIECES, WAITS
from cbtrace.site.analysis.step_cost import StepCosts, step_costs
from cbtrace.traces.columns import Bools, Ints, Requests
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, RequestFlag


@dataclass(frozen=True)
class TtftCuts:
    """The TTFT of each completed request; each row of ``pieces`` (shape (n, len(PIECES)), ns) sums to ``total_ns``."""

    request: Ints
    total_ns: Ints
    pieces: Ints


@dataclass(frozen=True)
class GapCuts:
    """Each token gap: from ``start_ns`` to token ``position`` of ``request``, over steps ``first_step..last_step``."""

    request: Ints
    position: Ints
    first_step: Ints
    last_step: Ints
    start_ns: Ints
    total_ns: Ints
    pieces: Ints
    absent_steps: Ints
    """Steps of the gap in which the request had no token."""


@dataclass(frozen=True)
class Cuts:
    """Both cuts of a run, over its completed requests, and what they were made from."""

    ttft: TtftCuts
    gaps: GapCuts
    rows: MemberRows
    costs: StepCosts


def attribute(trace: Trace) -> Cuts:
    """Cut every TTFT and every token gap of the completed requests of ``trace``."""
    clock = phase_clock(trace.steps, trace.events)
    costs = step_costs(trace.steps, clock)
    rows = member_rows(trace.steps, trace.step_requests, trace.admissions, trace.events)
    spent = _spent(rows, costs)
    done = completed(trace.requests)
    ttft = _ttft_cuts(trace, rows, spent, clock, costs, done)
    return Cuts(ttft, _gap_cuts(trace, rows, spent, done), rows, costs)


def _spent(rows: MemberRows, costs: StepCosts) -> Ints:
    """Shape (pieces, rows): where the time went from the request's row before to this one.

    A request's first row holds the interval of its own step only.
    """
    at = rows.step_row
    spent = np.zeros((len(PIECES), len(at)), dtype=np.int64)
    for name in ("host", "capture", "copy", "idle"):
        spent[COLUMN[name]] = getattr(costs, name)[at]
    decodes, known = rows.kind == COLUMN["decode"], costs.shared_known[at]
    shared = np.where(decodes, costs.shared[at], 0)
    kind = np.where(decodes & ~known, COLUMN["unattributed"], rows.kind)
    spent[COLUMN["shared_step"]] = shared
    spent[kind, np.arange(len(at))] += costs.compute[at] - shared
    lost = ~costs.known[at]
    spent[:, lost] = 0
    spent[COLUMN["unattributed"], lost] = (costs.end_ns - costs.start_ns)[at][lost]
    for name, amount in rows.absent.items():
        spent[COLUMN[name]] += amount
    return spent


def _gap_cuts(trace: Trace, rows: MemberRows, spent: Ints, done: Bools) -> GapCuts:
    gaps = token_gaps(trace.tokens, done)
    index = trace.steps.index
    before = rows.find(gaps.request, np.searchsorted(index, gaps.first_step))
    last = rows.find(gaps.request, np.searchsorted(index, gaps.last_step))
    known = (before >= 0) & (last > before)
    pieces = _sums(spent, before, last, known)
    return GapCuts(
        request=gaps.request,
        position=gaps.position,
        first_step=gaps.first_step + 1,
        last_step=gaps.last_step,
        start_ns=gaps.start_ns,
        total_ns=gaps.duration_ns,
        pieces=_closed(pieces, gaps.duration_ns),
        absent_steps=_between(rows.absent_steps, before, last, known),
    )


def _sums(spent: Ints, before: Ints, last: Ints, known: Bools) -> Ints:
    """Shape (n, pieces): sums over the rows after ``before`` up to ``last``."""
    pieces = np.zeros((len(before), len(PIECES)), dtype=np.int64)
    for column, amounts in enumerate(spent):
        if amounts.any():
            pieces[:, column] = _between(amounts, before, last, known)
    return pieces


def _between(amounts: Ints, before: Ints, last: Ints, known: Bools) -> Ints:
    running = np.concatenate([[0], np.cumsum(amounts)])
    found: Ints = np.where(known, running[last + 1] - running[before + 1], 0)
    return found


def _closed(pieces: Ints, total: Ints) -> Ints:
    """The pieces, with what they miss of ``total`` as unattributed. Where they exceed it, none of them is believed."""
    rest = total - pieces.sum(axis=1)
    impossible = (rest < 0) | (pieces < 0).any(axis=1)
    pieces[impossible] = 0
    pieces[:, COLUMN["unattributed"]] += np.where(impossible, total, rest)
    return pieces


def _ttft_cuts(
    trace: Trace, rows: MemberRows, spent: Ints, clock: PhaseClock, costs: StepCosts, done: Bools
) -> TtftCuts:
    requests = trace.requests
    seen = (requests.submit_ns >= 0) & (requests.first_token_ns >= 0)
    wanted = np.flatnonzero(done & seen & ((requests.flags & RequestFlag.SUBMIT_UNSEEN) == 0))
    first, last = rows.first(wanted), _first_token_row(trace, rows, wanted)
    known = (first >= 0) & (last >= first) & (requests.admitted_ns[wanted] >= 0)
    pieces = _sums(spent, first, last, known)
    pieces += _waiting(requests, wanted, clock, admission_clock(trace.steps, len(AdmissionStop)))
    begun = np.flatnonzero(known)
    admitted, admitted_row = requests.admitted_ns[wanted[begun]], _first_admission_row(trace, wanted[begun])
    pieces[begun] += _first_interval(admitted, admitted_row, first[begun], rows, clock, costs)
    total = (requests.first_token_ns - requests.submit_ns)[wanted]
    return TtftCuts(wanted, total, _closed(pieces, total))


def _first_token_row(trace: Trace, rows: MemberRows, wanted: Ints) -> Ints:
    """The row of the step that gave each request its first token."""
    tokens = trace.tokens
    if not len(tokens.request):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(tokens.request, wanted), len(tokens.request) - 1)
    found = rows.find(wanted, np.searchsorted(trace.steps.index, tokens.step[at]))
    return np.where(tokens.request[at] == wanted, found, -1)


def _first_admission_row(trace: Trace, wanted: Ints) -> Ints:
    """The row of the step at which each request was admitted first; -1 where that is lost."""
    admissions = trace.admissions
    first = admissions.residency == 0
    rows = np.full(len(trace.requests.id), -1, dtype=np.int64)
    rows[admissions.request[first]] = np.searchsorted(trace.steps.index, admissions.step[first])
    found: Ints = rows[wanted]
    return found


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
    for phase, name in ((Phase.HOST, "host"), (Phase.CAPTURE, "capture"), (Phase.COPY, "copy"), (Phase.IDLE, "idle")):
        pieces[:, COLUMN[name]] = clock.amount(phase, start, end)
    rest = end - start - pieces.sum(axis=1)
    pieces[np.arange(len(first)), rows.kind[first]] += rest
    lost = ~costs.known[at]
    pieces[lost] = 0
    pieces[lost, COLUMN["unattributed"]] = (end - start)[lost]
    # An asynchronous engine schedules a step while the one before is still in flight.
    before = np.where(at == admitted_row, COLUMN["step_in_flight"], COLUMN["not_scheduled"])
    pieces[np.arange(len(first)), before] += start - admitted
    return pieces
