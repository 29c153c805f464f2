"""Checks that a trace agrees with itself: what must hold in every sound recording, whatever the engine did."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .columns import Bools, Ints
from .errors import declare
from .reader import Trace
from .recovery import Finding
from .schema import EndReason, RequestFlag, Severity

_REPORT = "Report it with the trace: either the recorder or this version of Transformers does something unexpected."


def check(trace: Trace) -> list[Finding]:
    """All findings about a trace: what its recovery report says, then what does not add up.

    Requests and steps around damage are left out, since nothing can be said of them. Two passes over all pairs of
    steps and requests, in bounded memory.
    """
    found = list(trace.recovery.findings)
    for rule in _RULES:
        found.extend(rule(trace))
    return found


def _blocks_conserved(trace: Trace) -> Iterator[Finding]:
    steps = trace.steps
    known = (steps.kv_free >= 0) & (steps.kv_cached >= 0)
    wrong = known & (steps.kv_used < 0)
    yield from _steps_finding("kv-not-conserved", steps.index[wrong], "free and cached KV exceed the capacity")


def _clocks_monotonic(trace: Trace) -> Iterator[Finding]:
    steps = trace.steps
    yield from _steps_finding("step-times-invalid", steps.index[steps.start_ns < 0], "the times cannot be read")
    for name, times in (("start", steps.start_ns), ("results", steps.ready_ns)):
        later, earlier = times[1:], times[:-1]
        back = (later < earlier) & (later >= 0)
        yield from _steps_finding(
            "clock-backwards", steps.index[1:][back], f"the {name} of a step is earlier than that of the one before"
        )


def _lifecycle_in_order(trace: Trace) -> Iterator[Finding]:
    requests = trace.requests
    instants = ("submit_ns", "visible_ns", "admitted_ns", "first_token_ns", "last_token_ns", "end_ns")
    latest = np.full(len(requests.id), -1, dtype=np.int64)
    wrong = np.zeros(len(requests.id), dtype=np.bool_)
    # A fork joins the batch with its parent: it is handed to the scheduler only if it is put off later.
    forked = (requests.flags & RequestFlag.FORKED) > 0
    for name in instants:
        times = getattr(requests, name)
        if name == "visible_ns":
            times = np.where(forked, -1, times)
        wrong |= (times >= 0) & (times < latest)
        latest = np.maximum(latest, times)
    yield from _requests_finding("request-out-of-order", wrong, "an instant of its life is earlier than the one before")


def _one_end_each(trace: Trace) -> Iterator[Finding]:
    twice = np.zeros(len(trace.requests.id), dtype=np.bool_)
    twice[trace.second_ends] = True
    yield from _requests_finding("ended-twice", twice, "it has more than one terminal state")


def _tokens_conserved(trace: Trace) -> Iterator[Finding]:
    sums = trace.request_sums
    wrong = sums.complete & (sums.promised >= 0) & (sums.delivered != sums.promised)
    yield from _requests_finding("tokens-not-conserved", wrong, "its steps delivered more tokens than it has, or fewer")


def _prompt_conserved(trace: Trace) -> Iterator[Finding]:
    requests, sums = trace.requests, trace.request_sums
    finished = (requests.end_reason == EndReason.EOS) | (requests.end_reason == EndReason.LENGTH)
    seen = ((requests.flags & RequestFlag.SUBMIT_UNSEEN) == 0) & (requests.prompt_tokens >= 0)
    wrong = requests.prefill_computed + sums.found != requests.prompt_tokens
    yield from _requests_finding(
        "prompt-not-conserved",
        finished & sums.complete & seen & wrong,
        "the prompt tokens computed and found are not those of its prompt",
    )


def _recompute_conserved(trace: Trace) -> Iterator[Finding]:
    """A token counts as recomputed exactly when its position had been computed in an earlier stay."""
    admissions = trace.admissions
    order = np.lexsort((admissions.step, admissions.request))
    key = _pair_key(admissions.request[order], admissions.step[order])
    chunks = trace.chunks
    chunks = chunks.take(np.flatnonzero((chunks.prefill + chunks.recompute > 0) & (chunks.position >= 0)))
    step = trace.steps.index[chunks.row]
    at = np.searchsorted(key, _pair_key(chunks.request, step), side="right") - 1
    admitted = order[np.maximum(at, 0)] if len(order) else at
    mine = at >= 0
    mine[mine] = admissions.request[admitted[mine]] == chunks.request[mine]
    computed = admissions.computed[admitted[mine]]
    again = np.clip(computed - chunks.position[mine], 0, (chunks.prefill + chunks.recompute)[mine])
    wrong = np.unique(step[mine][again != chunks.recompute[mine]])
    yield from _steps_finding("recompute-not-conserved", wrong, "first computations and recomputations are mixed up")


def _pair_key(request: Ints, step: Ints) -> Ints:
    return (request << 36) + np.minimum(step, (1 << 36) - 1)


def _members_admitted(trace: Trace) -> Iterator[Finding]:
    steps = trace.steps
    if trace.recovery.status not in ("damaged", "ring"):
        yield from _steps_finding(
            "member-not-admitted", steps.index[~steps.members_known], "a slot without an occupant decodes"
        )
    early, twice = (np.zeros(len(steps.index), dtype=np.bool_) for _ in range(2))
    # The row of the first step that can have a request: none is too early for one whose admission is not known.
    first_row = np.searchsorted(steps.index, trace.request_sums.first_step)
    for block in trace.by_request():
        row, request = block.pairs.row, block.pairs.request
        early[row[row < first_row[request]]] = True
        twice[row[1:][(row[1:] == row[:-1]) & (request[1:] == request[:-1])]] = True
    yield from _steps_finding("member-not-admitted", steps.index[early], "a request is a member before it was admitted")
    yield from _steps_finding("member-twice", steps.index[twice], "a request is a member twice")


def _sums_agree(trace: Trace) -> Iterator[Finding]:
    steps = trace.steps
    given = np.zeros(len(steps.index), dtype=np.int64)
    dropped = np.zeros(len(steps.index), dtype=np.int64)
    for block in trace.by_request():
        row = block.pairs.row
        given += np.bincount(row[block.given], minlength=len(given))
        dropped += np.bincount(row[block.pairs.wasted], minlength=len(given))
    differ = steps.members_known & ((given != steps.new_tokens) | (dropped != steps.wasted_tokens))
    yield from _steps_finding(
        "attribution-sum", steps.index[differ], "a token was dropped for a request that is no member"
    )


def _steps_finding(slug: str, steps: Ints, what: str) -> Iterator[Finding]:
    if steps.size:
        count = f"In {steps.size} steps, first in step {steps[0]}," if steps.size > 1 else f"In step {steps[0]}"
        yield Finding(slug, _SEVERITY[slug], f"step {steps[0]}", f"{count} {what}.")


def _requests_finding(slug: str, wrong: Bools, what: str) -> Iterator[Finding]:
    rows = np.flatnonzero(wrong)
    if rows.size:
        count = f"Of {rows.size} requests, first of request {rows[0]}:" if rows.size > 1 else f"Of request {rows[0]}:"
        yield Finding(slug, _SEVERITY[slug], f"request {rows[0]}", f"{count} {what}.")


_RULES: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    _blocks_conserved,
    _clocks_monotonic,
    _lifecycle_in_order,
    _one_end_each,
    _tokens_conserved,
    _prompt_conserved,
    _recompute_conserved,
    _members_admitted,
    _sums_agree,
)
_MESSAGES = [
    declare(
        "kv-not-conserved",
        Severity.BROKEN,
        "Free and cached KV together are more than the capacity, so used KV would be negative.",
        _REPORT,
    ),
    declare("step-times-invalid", Severity.BROKEN, "The packed times of a step have a wrong size.", _REPORT),
    declare(
        "clock-backwards",
        Severity.WARNING,
        "Steps are not in the order of their times, which a monotonic clock does not allow.",
        _REPORT,
    ),
    declare(
        "request-out-of-order",
        Severity.WARNING,
        "Submit, visible, admitted, first token, last token and end of a request are not in this order.",
        _REPORT,
    ),
    declare("ended-twice", Severity.BROKEN, "A request has two different terminal states.", _REPORT),
    declare(
        "tokens-not-conserved",
        Severity.BROKEN,
        "A request ended with another number of tokens than its steps delivered, and no step is missing.",
        _REPORT,
    ),
    declare(
        "prompt-not-conserved",
        Severity.BROKEN,
        "Prompt tokens computed plus prompt tokens found in the cache are not the prompt's length.",
        _REPORT,
    ),
    declare(
        "recompute-not-conserved",
        Severity.BROKEN,
        "A step calls tokens recomputed whose positions had not been computed before, or the other way round.",
        _REPORT,
    ),
    declare(
        "member-not-admitted",
        Severity.BROKEN,
        "A request takes part in a step without having been admitted, and no admission is missing.",
        _REPORT,
    ),
    declare("member-twice", Severity.BROKEN, "A step names a request in two ways at once.", _REPORT),
    declare(
        "attribution-sum",
        Severity.BROKEN,
        "The tokens of a step's members do not add up to the tokens of the step.",
        _REPORT,
    ),
]
_SEVERITY = {message.slug: message.severity for message in _MESSAGES}
