"""What the data of a run says in words: a catalogue of rules, each with its condition and its evidence.

A rule looks at the evidence and is silent or returns numbers: nothing is said without them. The texts, with the setting
to change and what that costs, are words ``finding.<rule>.text`` and ``finding.<rule>.advice``. The ending of a number's
name is its unit: ``_share``, ``_ms``, ``_s``, ``_bytes``, ``_count``; other values are names and are shown as they are.
A rule whose advice depends on what else holds names another one with ``advice``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cbtrace.site.analysis import rules_admission, rules_latency, rules_ranks, rules_resources
from cbtrace.site.analysis.evidence import Evidence, Numbers, Told


@dataclass(frozen=True)
class Finding:
    """One statement about a run."""

    rule: str
    weight: float
    """How much it matters, from 0 to 1: mostly a share of time. Findings are ranked by it."""
    place: str
    """The section or row of the run's page that shows it."""
    numbers: Numbers


def findings(evidence: Evidence) -> list[Finding]:
    """All rules that speak, weightiest first."""
    found = []
    for rule, (condition, place) in RULES.items():
        told = condition(evidence)
        if told is not None:
            weight, numbers = told
            found.append(Finding(rule, min(weight, 1.0), place, numbers))
    return sorted(found, key=lambda finding: -finding.weight)


RULES: dict[str, tuple[Callable[[Evidence], Told], str]] = {
    "failures": (rules_resources.failures, "events"),
    "oversize": (rules_admission.oversize, "events"),
    "memory_free": (rules_resources.memory_free, "memory"),
    "margin_wait": (rules_admission.margin_wait, "admission"),
    "blocks_wait": (rules_admission.blocks_wait, "admission"),
    "blocked_wait": (rules_admission.blocked_wait, "admission"),
    "budget_wait": (rules_admission.budget_wait, "admission"),
    "cap_wait": (rules_admission.cap_wait, "admission"),
    "cache_budget_wait": (rules_admission.cache_budget_wait, "admission"),
    "soft_resets": (rules_latency.soft_resets, "where"),
    "offloads": (rules_latency.offloads, "where"),
    "left_out": (rules_latency.left_out, "where"),
    "captures": (rules_latency.captures, "gaps"),
    "shared_prefill": (rules_latency.shared_prefill, "gaps"),
    "host_bound": (rules_latency.host_bound, "where"),
    "idle_engine": (rules_latency.idle_engine, "where"),
    "jitter": (rules_latency.jitter, "timeline"),
    "late_rank": (rules_ranks.late_rank, "ranks"),
    "gpu_slowed": (rules_resources.gpu_slowed, "timeline"),
    "giant_request": (rules_admission.giant_request, "timeline"),
    "input_queue": (rules_latency.input_queue, "where"),
    "budget_unused": (rules_resources.budget_unused, "timeline"),
    "kv_unused": (rules_resources.kv_unused, "kv"),
    "padding": (rules_resources.padding, "timeline"),
    "waste": (rules_resources.waste, "headline"),
    "sliding_window": (rules_resources.sliding_window, "kv"),
    "late_client": (rules_latency.late_client, "headline"),
    "recorder_cost": (rules_resources.recorder_cost, "recording"),
    "unattributed": (rules_latency.unattributed, "where"),
}
"""The catalogue: each rule's condition, and where on the page its evidence is."""
