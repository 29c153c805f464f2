"""What the data of a run says in words: a catalogue of rules, each with its condition and its evidence.

A rule looks at the evidence and is silent or returns numbers: nothing is said without them. The texts, with the setting
to change and what that costs, are words ``finding.<rule>.text`` and ``finding.<rule>.advice``. The ending of a number's
name is its unit: ``_share``, ``_ms``, ``_s``, ``_bytes``, ``_count``; other values are names and are shown as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.evidence import Evidence
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind, Footer

Numbers = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Finding:
    """One statement about a run."""

    rule: str
    weight: float
    """How much it matters, from 0 to 1: mostly a share of time. Findings are ranked by it."""
    place: str
    """The section or row of the run's page that shows it."""
    numbers: Numbers


Told = tuple[float, Numbers] | None
"""Weight and numbers of a rule that speaks."""

WAITED = 0.10
"""A reason that stopped admission for this share of the step time is worth a word."""


def findings(evidence: Evidence) -> list[Finding]:
    """All rules that speak, weightiest first."""
    found = []
    for rule, (condition, place) in RULES.items():
        told = condition(evidence)
        if told is not None:
            weight, numbers = told
            found.append(Finding(rule, min(weight, 1.0), place, numbers))
    return sorted(found, key=lambda finding: -finding.weight)


def _failures(evidence: Evidence) -> Told:
    requests = evidence.trace.requests
    failed = np.flatnonzero(requests.end_reason == EndReason.FAILED)
    if not len(failed):
        return None
    classes = sorted({requests.error[i] or "?" for i in failed.tolist()})
    return 1.0, {"failed_count": len(failed), "all_count": len(requests.id), "errors": ", ".join(classes[:5])}


def _oversize(evidence: Evidence) -> Told:
    events = evidence.trace.events
    rows = np.flatnonzero(events.kind == EventKind.OVERSIZE)
    if not len(rows):
        return None
    largest = rows[np.argmax(events.tokens[rows])]
    tokens, capacity = int(events.tokens[largest]), int(events.bytes[largest])
    return 1.0, {"oversize_count": len(rows), "tokens_count": tokens, "capacity_count": capacity}


def _margin_wait(evidence: Evidence) -> Told:
    share, kv = evidence.stop_share(AdmissionStop.SAFETY_MARGIN), evidence.summary.kv
    if share < WAITED or kv is None or not kv.safety_margin or kv.margin_bytes is None:
        return None
    numbers = {
        "wait_share": share,
        "margin_share": kv.safety_margin,
        "margin_bytes": kv.margin_bytes,
        "resets_count": evidence.summary.soft_resets,
    }
    return share, numbers


def _blocks_wait(evidence: Evidence) -> Told:
    share, kv = evidence.stop_share(AdmissionStop.KV_BLOCKS), evidence.summary.kv
    if share < WAITED or kv is None:
        return None
    return share, {"wait_share": share, "capacity_bytes": kv.capacity_bytes, "unit_bytes": kv.unit_bytes}


def _blocked_wait(evidence: Evidence) -> Told:
    share = evidence.stop_share(AdmissionStop.BLOCKED_AFTER_OFFLOAD)
    summary = evidence.summary
    if share < WAITED:
        return None
    return share, {"wait_share": share, "resets_count": summary.soft_resets, "offloads_count": summary.offloads}


def _budget_wait(evidence: Evidence) -> Told:
    share = evidence.stop_share(AdmissionStop.TOKEN_BUDGET)
    if share < WAITED or evidence.token_budget is None:
        return None
    return share, {"wait_share": share, "budget_count": evidence.token_budget}


def _cap_wait(evidence: Evidence) -> Told:
    share = evidence.stop_share(AdmissionStop.REQUEST_CAP)
    if share < WAITED:
        return None
    return share, {"wait_share": share, "active_count": int(evidence.trace.steps.active.max())}


def _cache_budget_wait(evidence: Evidence) -> Told:
    share = evidence.stop_share(AdmissionStop.CACHE_BUDGET)
    return None if share < WAITED else (share, {"wait_share": share})


def _soft_resets(evidence: Evidence) -> Told:
    summary = evidence.summary
    again, first = summary.prompt_tokens_recomputed, summary.prompt_tokens_computed
    share = again / (again + first) if again + first else 0.0
    if not summary.soft_resets or share < 0.05:
        return None
    numbers = {
        "resets_count": summary.soft_resets,
        "requests_count": summary.requests.soft_reset,
        "recompute_share": share,
        "gap_share": evidence.gap_share("reset_wait") + evidence.gap_share("recompute"),
    }
    return max(share, numbers["gap_share"]), numbers


def _captures(evidence: Evidence) -> Told:
    gaps, worst = evidence.cuts.gaps, evidence.slow[:20]
    largest = gaps.pieces[worst].argmax(axis=1) == COLUMN["capture"]
    events = evidence.trace.events
    at = events.time_ns[events.kind == EventKind.GRAPH_CAPTURE]
    if largest.sum() < 2 or not len(at):
        return None
    numbers = {
        "slow_count": int(largest.sum()),
        "of_count": len(worst),
        "captures_count": len(at),
        "until_s": (int(at.max()) - evidence.origin_ns) / 1e9,
    }
    return evidence.slow_share("capture"), numbers


def _shared_prefill(evidence: Evidence) -> Told:
    share = evidence.slow_share("shared_step")
    if share < 0.25 or evidence.token_budget is None:
        return None
    gaps, requests = evidence.cuts.gaps, evidence.trace.requests
    row = evidence.slow[np.argmax(gaps.pieces[evidence.slow, COLUMN["shared_step"]])]
    members = evidence.trace.step_requests
    inside = slice(*np.searchsorted(members.step, (gaps.first_step[row], gaps.last_step[row] + 1)))
    biggest = int(members.request[inside][np.argmax(members.prefill[inside] + members.recompute[inside])])
    numbers: Numbers = {
        "slow_share": share,
        "longest_ms": int(gaps.pieces[row, COLUMN["shared_step"]]) / 1e6,
        "prompt": requests.id[biggest][:60] or f"#{biggest}",
        "prompt_count": int(requests.prompt_tokens[biggest]),
        "budget_count": evidence.token_budget,
    }
    return share, numbers


def _host_bound(evidence: Evidence) -> Told:
    share = evidence.gap_share("host")
    if share < 0.30:
        return None
    steps = evidence.trace.steps
    writing = np.median(steps.prepared_ns - steps.start_ns) / 1e6
    return share, {"host_share": share, "prepare_ms": float(writing)}


def _idle_engine(evidence: Evidence) -> Told:
    share = evidence.gap_share("idle")
    if share < 0.10:
        return None
    longest = int(evidence.cuts.gaps.pieces[:, COLUMN["idle"]].max())
    return share, {"idle_share": share, "longest_ms": longest / 1e6}


def _jitter(evidence: Evidence) -> Told:
    costs = evidence.cuts.costs
    plain = costs.plain & (costs.baseline > 0)
    if plain.sum() < 50:
        return None
    compute, median = costs.compute[plain], costs.baseline[plain]
    ratio = float(np.percentile(compute / median, 95))
    extra = int(np.maximum(compute - median, 0).sum()) / int(compute.sum())
    if ratio < 2.5 or extra < 0.10:
        return None
    return extra, {"ratio_count": ratio, "extra_share": extra, "longest_ms": int(compute.max()) / 1e6}


def _giant_request(evidence: Evidence) -> Told:
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


def _input_queue(evidence: Evidence) -> Told:
    share = evidence.ttft_share("input_queue")
    if share < 0.30:
        return None
    longest = int(evidence.cuts.ttft.pieces[:, COLUMN["input_queue"]].max())
    return share, {"queue_share": share, "longest_ms": longest / 1e6}


def _budget_unused(evidence: Evidence) -> Told:
    steps, budget = evidence.trace.steps, evidence.token_budget
    if budget is None or len(steps.index) < 50 or evidence.stop_share(AdmissionStop.TOKEN_BUDGET) > 0.01:
        return None
    computed = (steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens)[len(steps.index) // 5 :]
    share = int(computed.max()) / budget
    if share > 0.5:
        return None
    since = int(steps.start_ns[len(steps.index) // 5]) - evidence.origin_ns
    return 0.1 * (1 - share), {"used_share": share, "budget_count": budget, "after_s": since / 1e9}


def _kv_unused(evidence: Evidence) -> Told:
    kv, summary = evidence.summary.kv, evidence.summary
    if kv is None or not kv.capacity_bytes or kv.peak_used_bytes is None or summary.soft_resets or summary.offloads:
        return None
    share = kv.peak_used_bytes / kv.capacity_bytes
    if share >= 0.5:
        return None
    return 0.1 * (1 - share), {"used_share": share, "unused_bytes": kv.capacity_bytes - kv.peak_used_bytes}


def _padding(evidence: Evidence) -> Told:
    steps = evidence.trace.steps
    real = int((steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens).sum())
    padded = int(steps.padded_queries.sum())
    if not real or padded < 2 * real:
        return None
    return 0.1, {"padded_share": 1 - real / padded, "padded_count": padded, "real_count": real}


def _waste(evidence: Evidence) -> Told:
    wasted, kept = evidence.summary.wasted_tokens, evidence.summary.generated_tokens
    share = wasted / (wasted + kept) if wasted + kept else 0.0
    return None if share < 0.03 else (share, {"wasted_share": share, "wasted_count": wasted})


def _sliding_window(evidence: Evidence) -> Told:
    engine = evidence.engine
    if engine is None or engine.resolved.get("allow_block_sharing") is not True:
        return None
    sliding = [group for group in engine.kv.groups if group.window >= 0]
    if not sliding:
        return None
    return 0.02, {"layers_count": sum(group.layers for group in sliding), "window_count": sliding[0].window}


def _late_client(evidence: Evidence) -> Told:
    requests = evidence.trace.requests
    planned = (requests.planned_ns >= 0) & (requests.submit_ns >= 0)
    ttft = evidence.summary.ttft_ms.p50
    if not planned.any() or not ttft:
        return None
    lag = float(np.percentile((requests.submit_ns - requests.planned_ns)[planned], 95)) / 1e6
    return None if lag < 0.1 * ttft else (min(lag / ttft, 1.0) / 2, {"lag_ms": lag, "ttft_ms": ttft})


def _recorder_cost(evidence: Evidence) -> Told:
    footer: Footer | None = evidence.trace.footer
    window_ns = evidence.summary.window_s * 1e9
    if footer is None or not window_ns or footer.cost_ns / window_ns < 0.01:
        return None
    share = footer.cost_ns / window_ns
    return share / 2, {"cost_share": share, "step_ms": footer.cost_p50_ns / 1e6}


def _unattributed(evidence: Evidence) -> Told:
    share = max(evidence.gap_share("unattributed"), evidence.ttft_share("unattributed"))
    return None if share < 0.02 else (share / 2, {"unattributed_share": share})


RULES: dict[str, tuple[Callable[[Evidence], Told], str]] = {
    "failures": (_failures, "events"),
    "oversize": (_oversize, "events"),
    "margin_wait": (_margin_wait, "admission"),
    "blocks_wait": (_blocks_wait, "admission"),
    "blocked_wait": (_blocked_wait, "admission"),
    "budget_wait": (_budget_wait, "admission"),
    "cap_wait": (_cap_wait, "admission"),
    "cache_budget_wait": (_cache_budget_wait, "admission"),
    "soft_resets": (_soft_resets, "where"),
    "captures": (_captures, "gaps"),
    "shared_prefill": (_shared_prefill, "gaps"),
    "host_bound": (_host_bound, "where"),
    "idle_engine": (_idle_engine, "where"),
    "jitter": (_jitter, "timeline"),
    "giant_request": (_giant_request, "timeline"),
    "input_queue": (_input_queue, "where"),
    "budget_unused": (_budget_unused, "timeline"),
    "kv_unused": (_kv_unused, "kv"),
    "padding": (_padding, "timeline"),
    "waste": (_waste, "headline"),
    "sliding_window": (_sliding_window, "kv"),
    "late_client": (_late_client, "headline"),
    "recorder_cost": (_recorder_cost, "recording"),
    "unattributed": (_unattributed, "where"),
}
"""The catalogue: each rule's condition, and where on the page its evidence is."""
