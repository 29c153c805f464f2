"""Rules about latency: where the time of first tokens and of token gaps went."""

from __future__ import annotations

import numpy as np

from cbtrace.site.analysis.attribution import slowest_kinds
from cbtrace.site.analysis.captures import captures_outside_warm_up
from cbtrace.site.analysis.evidence import Evidence, Numbers, Told
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EventKind

LOOKED_AT = 20
"""So many of the slowest gaps are looked at for graph captures."""


def soft_resets(evidence: Evidence) -> Told:
    """Requests are computed again."""
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


def captures(evidence: Evidence) -> Told:
    """The slowest gaps are graph captures."""
    events, gaps = evidence.trace.events, evidence.cuts.gaps
    at = events.time_ns[captures_outside_warm_up(events)]
    if not len(at):
        return None
    worst = slowest_kinds(evidence.trace, gaps, min(int(gaps.count.sum()), LOOKED_AT))
    slow = int(worst.count[worst.pieces.argmax(axis=1) == COLUMN["capture"]].sum())
    if slow < 2:
        return None
    numbers = {
        "slow_count": slow,
        "of_count": int(worst.count.sum()),
        "captures_count": len(at),
        "until_s": (int(at.max()) - evidence.origin_ns) / 1e9,
    }
    return evidence.slow_share("capture"), numbers


def shared_prefill(evidence: Evidence) -> Told:
    """The slowest gaps are shared with prompts of others."""
    share = evidence.slow_share("shared_step")
    if share < 0.25 or evidence.token_budget is None:
        return None
    gaps, requests = evidence.slow, evidence.trace.requests
    row = int(np.argmax(gaps.pieces[:, COLUMN["shared_step"]]))
    biggest = _largest_prompt(evidence.trace, int(gaps.first_step[row]), int(gaps.last_step[row]))
    numbers: Numbers = {
        "slow_share": share,
        "longest_ms": int(gaps.pieces[row, COLUMN["shared_step"]]) / 1e6,
        "prompt": requests.id[biggest][:60] or f"#{biggest}",
        "prompt_count": int(requests.prompt_tokens[biggest]),
        "budget_count": evidence.token_budget,
    }
    return share, numbers


def _largest_prompt(trace: Trace, first_step: int, last_step: int) -> int:
    """Whose prompt had most tokens in a step of some; the first of equals."""
    first, end = np.searchsorted(trace.steps.index, (first_step, last_step + 1))
    chunks = trace.chunks
    inside = np.flatnonzero((chunks.row >= first) & (chunks.row < end))
    inside = inside[np.lexsort((chunks.request[inside], chunks.row[inside]))]
    return int(chunks.request[inside][np.argmax(chunks.prefill[inside] + chunks.recompute[inside])])


def host_bound(evidence: Evidence) -> Told:
    """Token gaps are work of the host."""
    share = evidence.gap_share("host")
    if share < 0.30:
        return None
    steps = evidence.trace.steps
    writing = np.median(steps.prepared_ns - steps.start_ns) / 1e6
    return share, {"host_share": share, "prepare_ms": float(writing)}


def idle_engine(evidence: Evidence) -> Told:
    """Nothing happens while requests wait for a token."""
    share = evidence.gap_share("idle")
    if share < 0.10:
        return None
    longest = int(evidence.cuts.gaps.pieces[:, COLUMN["idle"]].max())
    return share, {"idle_share": share, "longest_ms": longest / 1e6}


def jitter(evidence: Evidence) -> Told:
    """Like steps take unlike times."""
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


def input_queue(evidence: Evidence) -> Told:
    """Requests wait for the generation loop to take them."""
    share = evidence.ttft_share("input_queue")
    if share < 0.30:
        return None
    longest = int(evidence.cuts.ttft.pieces[:, COLUMN["input_queue"]].max())
    return share, {"queue_share": share, "longest_ms": longest / 1e6}


def late_client(evidence: Evidence) -> Told:
    """Requests come later than planned."""
    requests = evidence.trace.requests
    planned = (requests.planned_ns >= 0) & (requests.submit_ns >= 0)
    ttft = evidence.summary.ttft_ms.p50
    if not planned.any() or not ttft:
        return None
    lag = float(np.percentile((requests.submit_ns - requests.planned_ns)[planned], 95)) / 1e6
    return None if lag < 0.1 * ttft else (min(lag / ttft, 1.0) / 2, {"lag_ms": lag, "ttft_ms": ttft})


def unattributed(evidence: Evidence) -> Told:
    """Time that has no piece."""
    share = max(evidence.gap_share("unattributed"), evidence.ttft_share("unattributed"))
    return None if share < 0.02 else (share / 2, {"unattributed_share": share})


def left_out(evidence: Evidence) -> Told:
    """Active requests that are in no step."""
    share = evidence.gap_share("not_scheduled")
    if share < 0.10:
        return None
    steps, durations = evidence.trace.steps, step_durations(evidence.trace.steps)
    starving = int(durations[steps.starved > 0].sum()) / max(int(durations.sum()), 1)
    longest = int(evidence.cuts.gaps.pieces[:, COLUMN["not_scheduled"]].max())
    return share, {"out_share": share, "longest_ms": longest / 1e6, "starved_share": starving}


def offloads(evidence: Evidence) -> Told:
    """Requests wait on the CPU, or for the copies."""
    away, copies = evidence.gap_share("offloaded"), evidence.gap_share("copy")
    events = evidence.trace.events
    moved = np.isin(events.kind, (EventKind.OFFLOAD, EventKind.RESTORE)) & (events.bytes > 0)
    if away + copies < 0.05 or not evidence.summary.offloads:
        return None
    numbers = {
        "offloads_count": evidence.summary.offloads,
        "away_share": away,
        "copy_share": copies,
        "moved_bytes": int(events.bytes[moved].sum()),
    }
    return away + copies, numbers
