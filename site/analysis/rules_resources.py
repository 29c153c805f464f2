"""Rules about resources: what failed, what was never used, what was computed for nothing, what slowed the device."""

from __future__ import annotations

import numpy as np

from cbtrace.site.analysis.evidence import WAITED, Evidence, Numbers, Told
from cbtrace.site.analysis.memory_budget import memory_budget
from cbtrace.traces.schema import AdmissionStop, EndReason, Footer

FOR_KV = (AdmissionStop.KV_BLOCKS, AdmissionStop.SAFETY_MARGIN, AdmissionStop.BLOCKED_AFTER_OFFLOAD)
"""Reasons for which admission stops that more KV cache would put off."""

SLOWED = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bits of NVML's throttle reasons that mean that the GPU could not run as fast as it was asked to."""


def failures(evidence: Evidence) -> Told:
    """Requests failed."""
    requests = evidence.trace.requests
    failed = np.flatnonzero(requests.end_reason == EndReason.FAILED)
    if not len(failed):
        return None
    classes = sorted({requests.error[i] or "?" for i in failed.tolist()})
    return 1.0, {"failed_count": len(failed), "all_count": len(requests.id), "errors": ", ".join(classes[:5])}


def budget_unused(evidence: Evidence) -> Told:
    """The tokens of a step are never used up."""
    steps, budget = evidence.trace.steps, evidence.token_budget
    if budget is None or len(steps.index) < 50 or evidence.stop_share(AdmissionStop.TOKEN_BUDGET) > 0.01:
        return None
    computed = (steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens)[len(steps.index) // 5 :]
    share = int(computed.max()) / budget
    if share > 0.5:
        return None
    since = int(steps.start_ns[len(steps.index) // 5]) - evidence.origin_ns
    return 0.1 * (1 - share), {"used_share": share, "budget_count": budget, "after_s": since / 1e9}


def kv_unused(evidence: Evidence) -> Told:
    """Most of the KV cache is never used."""
    kv, summary = evidence.summary.kv, evidence.summary
    if kv is None or not kv.capacity_bytes or kv.peak_used_bytes is None or summary.soft_resets or summary.offloads:
        return None
    share = kv.peak_used_bytes / kv.capacity_bytes
    if share >= 0.5:
        return None
    return 0.1 * (1 - share), {"used_share": share, "unused_bytes": kv.capacity_bytes - kv.peak_used_bytes}


def memory_free(evidence: Evidence) -> Told:
    """Memory of the GPU lies idle while requests wait for KV."""
    kv, budget = evidence.summary.kv, memory_budget(evidence.trace.memory)
    waited = sum(evidence.stop_share(reason) for reason in FOR_KV)
    if kv is None or not kv.capacity_bytes or budget is None or waited < WAITED:
        return None
    free = next(term.bytes for term in budget.terms if term.name == "free")
    share = free / budget.device_total
    if share < 0.10 or free < kv.capacity_bytes / 4:
        return None
    numbers = {
        "free_bytes": free,
        "free_share": share,
        "wait_share": waited,
        "more_count": round(free / kv.capacity_bytes, 1),
    }
    return waited, numbers


def padding(evidence: Evidence) -> Told:
    """Much of what is computed is padding."""
    steps = evidence.trace.steps
    real = int((steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens).sum())
    padded = int(steps.padded_queries.sum())
    if not real or padded < 2 * real:
        return None
    return 0.1, {"padded_share": 1 - real / padded, "padded_count": padded, "real_count": real}


def waste(evidence: Evidence) -> Told:
    """Tokens are computed and dropped."""
    wasted, kept = evidence.summary.wasted_tokens, evidence.summary.generated_tokens
    share = wasted / (wasted + kept) if wasted + kept else 0.0
    return None if share < 0.03 else (share, {"wasted_share": share, "wasted_count": wasted})


def sliding_window(evidence: Evidence) -> Told:
    """Layers with windows turn prefix caching off."""
    engine = evidence.engine
    if engine is None or engine.resolved.get("allow_block_sharing") is not True:
        return None
    sliding = [group for group in engine.kv.groups if group.window >= 0]
    if not sliding or (evidence.trace.requests.prefix_hit > 0).any():
        return None
    return 0.02, {"layers_count": sum(group.layers for group in sliding), "window_count": sliding[0].window}


def recorder_cost(evidence: Evidence) -> Told:
    """Watching slows the run."""
    footer: Footer | None = evidence.trace.footer
    window_ns = evidence.summary.window_s * 1e9
    if footer is None or not window_ns or footer.cost_ns / window_ns < 0.01:
        return None
    share = footer.cost_ns / window_ns
    return share / 2, {"cost_share": share, "step_ms": footer.cost_p50_ns / 1e6}


def gpu_slowed(evidence: Evidence) -> Told:
    """The GPU lowered its clocks while steps ran."""
    gpu, steps = evidence.trace.gpu, evidence.trace.steps
    if not len(steps.index):
        return None
    during = (gpu.time_ns >= steps.start_ns[0]) & (gpu.time_ns <= steps.done_ns[-1])
    during &= (gpu.throttle >= 0) & (gpu.sm_clock_mhz > 0)
    reasons, clock = gpu.throttle[during], gpu.sm_clock_mhz[during]
    slowed = (reasons & sum(SLOWED)) != 0
    if len(reasons) < 5 or slowed.mean() < 0.10 or clock[slowed].mean() > 0.95 * clock.max():
        return None
    names = sorted({name for bit, name in SLOWED.items() if (reasons & bit).any()})
    numbers: Numbers = {
        "slowed_share": float(slowed.mean()),
        "samples_count": len(reasons),
        "reasons": ", ".join(names),
        "slowed_count": int(clock[slowed].mean()),
        "highest_count": int(clock.max()),
    }
    return float(slowed.mean()) / 2, numbers
