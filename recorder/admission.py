"""Why a step admitted no further waiting request: read off the scheduler's outcome, in the order it checks."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.traces.schema import AdmissionStop


@dataclass(slots=True)
class Outcome:
    """What one scheduling call was offered and what it did."""

    left_waiting: int
    scheduled: int
    blocked: bool
    """No new request is admitted until one finishes, since an offload."""
    token_budget: int
    tokens_used: int
    cache_budget: int
    cache_used: int
    decode_fast_path: bool
    """On this path the cache budget does not bind."""
    request_cap: int
    margin_met: bool
    allocation_failed: bool
    walk_seen: bool
    """The scheduler walked its candidates in the way described below; a scheduler of the user's own may not."""


def admission_stop(outcome: Outcome) -> AdmissionStop:
    """Name the check that ended admission.

    The scheduler walks its candidates in order. Running out of a budget ends the walk at once, so an exhausted budget
    is the reason whatever else holds; a margin that is not met ends it at the next candidate that is not decoding; a
    candidate that finds no KV, or would read more than the cache budget, is passed over.
    """
    if outcome.left_waiting == 0:
        return AdmissionStop.NOTHING_WAITING
    if outcome.blocked:
        return AdmissionStop.BLOCKED_AFTER_OFFLOAD
    if outcome.tokens_used >= outcome.token_budget:
        return AdmissionStop.TOKEN_BUDGET
    if outcome.scheduled >= outcome.request_cap:
        return AdmissionStop.REQUEST_CAP
    if outcome.cache_used >= outcome.cache_budget and not outcome.decode_fast_path:
        return AdmissionStop.CACHE_BUDGET
    if not outcome.margin_met and outcome.scheduled:
        return AdmissionStop.SAFETY_MARGIN
    if outcome.allocation_failed:
        return AdmissionStop.KV_BLOCKS
    return AdmissionStop.CACHE_BUDGET if outcome.walk_seen else AdmissionStop.UNKNOWN
