"""The pieces that a TTFT and a token gap are cut into, in the order of a request's life."""

from __future__ import annotations

from cbtrace.traces.schema import AdmissionStop

WAITS = {
    AdmissionStop.NOTHING_WAITING: "wait_next_step",
    AdmissionStop.TOKEN_BUDGET: "wait_token_budget",
    AdmissionStop.REQUEST_CAP: "wait_request_cap",
    AdmissionStop.CACHE_BUDGET: "wait_cache_budget",
    AdmissionStop.KV_BLOCKS: "wait_kv_blocks",
    AdmissionStop.SAFETY_MARGIN: "wait_safety_margin",
    AdmissionStop.BLOCKED_AFTER_OFFLOAD: "wait_blocked",
    AdmissionStop.UNKNOWN: "wait_unknown",
}
"""Waiting for the first admission, by why the scheduler's last decision did not admit the request."""

PIECES = (
    "input_queue",
    "warm_up",
    "before_fork",
    *WAITS.values(),
    "step_in_flight",
    "prefill",
    "decode",
    "shared_step",
    "recompute",
    "wasted",
    "not_scheduled",
    "reset_wait",
    "offloaded",
    "capture",
    "copy",
    "host",
    "idle",
    "unattributed",
)
"""``shared_step`` is an estimate; all others are measured."""

COLUMN = {name: column for column, name in enumerate(PIECES)}
"""The column of each piece in a matrix of pieces."""
