"""Rules about admission: what kept requests waiting, and which of them kept others out."""

from __future__ import annotations

import numpy as np

from cbtrace.site.analysis.evidence import WAITED, Evidence, Numbers, Told
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.schema import AdmissionStop, EventKind


def oversize(evidence: Evidence) -> Told:
    """Requests that the KV cache can never hold."""
    events = evidence.trace.events
    rows = np.flatnonzero(events.kind == EventKind.OVERSIZE)
    if not len(rows):
        return None
    largest = rows[np.argmax(events.tokens[rows])]
    tokens, capacity = int(events.tokens[largest]), int(events.bytes[largest])
    return 1.0, {"oversize_count": len(rows), "tokens_count": tokens, "capacity_count": capacity}


def margin_wait(evidence: Evidence) -> Told:
    """Admission waits for the safety margin."""
    share, kv = evidence.stop_share(AdmissionStop.SAFETY_MARGIN), evidence.summary.kv
    if share < WAITED or kv is None or not kv.safety_margin or kv.margin_bytes is None:
        return None
    numbers: dict[str, float | int | str] = {
        "wait_share": share,
        "margin_share": kv.safety_margin,
        "margin_bytes": kv.margin_bytes,
        "resets_count": evidence.summary.soft_resets,
    }
    if evidence.summary.soft_resets:
        # Waiting for the margin and running out of KV at once: no value of the margin mends both.
        numbers["advice"] = "advice_resets"
    return share, numbers


def blocks_wait(evidence: Evidence) -> Told:
    """Admission waits for free KV."""
    share, kv = evidence.stop_share(AdmissionStop.KV_BLOCKS), evidence.summary.kv
    if share < WAITED or kv is None:
        return None
    return share, {"wait_share": share, "capacity_bytes": kv.capacity_bytes, "unit_bytes": kv.unit_bytes}


def blocked_wait(evidence: Evidence) -> Told:
    """Admission is blocked after a soft reset or an offload."""
    share = evidence.stop_share(AdmissionStop.BLOCKED_AFTER_OFFLOAD)
    summary = evidence.summary
    if share < WAITED:
        return None
    return share, {"wait_share": share, "resets_count": summary.soft_resets, "offloads_count": summary.offloads}


def budget_wait(evidence: Evidence) -> Told:
    """Admission is stopped by the tokens of a step."""
    share = evidence.stop_share(AdmissionStop.TOKEN_BUDGET)
    if share < WAITED or evidence.token_budget is None:
        return None
    return share, {"wait_share": share, "budget_count": evidence.token_budget}


def cap_wait(evidence: Evidence) -> Told:
    """Admission is stopped by the number of requests."""
    share = evidence.stop_share(AdmissionStop.REQUEST_CAP)
    if share < WAITED:
        return None
    return share, {"wait_share": share, "active_count": int(evidence.trace.steps.active.max())}


def cache_budget_wait(evidence: Evidence) -> Told:
    """Admission is stopped by the KV entries that a step may read."""
    share = evidence.stop_share(AdmissionStop.CACHE_BUDGET)
    return None if share < WAITED else (share, {"wait_share": share})


def giant_request(evidence: Evidence) -> Told:
    """One request holds much of the KV cache while others wait for it."""
    requests, steps, kv = evidence.trace.requests, evidence.trace.steps, evidence.summary.kv
    held = np.where(requests.admitted_ns >= 0, requests.prompt_tokens + requests.generated, 0)
    if kv is None or kv.capacity_tokens <= 0 or not len(held) or held.max() < 0.4 * kv.capacity_tokens:
        return None
    row = int(np.argmax(held))
    end = int(requests.end_ns[row]) if requests.end_ns[row] >= 0 else int(steps.done_ns[-1])
    there = (steps.scheduled_ns >= requests.admitted_ns[row]) & (steps.scheduled_ns < end)
    for_kv = np.isin(steps.stop, (AdmissionStop.KV_BLOCKS, AdmissionStop.SAFETY_MARGIN))
    duration = step_durations(steps)
    share = int(duration[there & for_kv].sum()) / max(int(duration.sum()), 1)
    if share < WAITED:
        return None
    numbers: Numbers = {
        "request": requests.id[row][:60] or f"#{row}",
        "tokens_count": int(held[row]),
        "held_share": int(held[row]) / kv.capacity_tokens,
        "wait_share": share,
    }
    return share, numbers
