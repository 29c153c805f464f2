"""What to run next: rules that look at an experiment and its verdicts, each silent or with a step and its price.

The texts are words ``experiment.next.<rule>``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from cbtrace.site.analysis.experiment import ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_edges import edges
from cbtrace.site.analysis.experiment_effects import MOST_RUNS, SPEED, THROUGHPUT, runs_to_tell
from cbtrace.site.analysis.experiment_failures import BEFORE, usual_failure
from cbtrace.site.analysis.experiment_slos import latency_limits, slos_of
from cbtrace.site.analysis.experiment_step import Change, Numbers, Step
from cbtrace.site.analysis.experiment_variables import BATCHING, automatic_pins, value_of_setting
from cbtrace.site.analysis.experiment_verdict import Verdict, compared
from cbtrace.site.analysis.noise import LEAST_RUNS

BURST_SHARE = 0.05
"""Soft resets and offloads are a burst from this share of the requests on, at least :data:`BURST_LEAST`, and from twice
as many as before the change."""
BURST_LEAST = 3

NOISY = 0.10
"""A scatter of the baseline's throughput over its repeats (standard deviation by mean) that hides most changes."""


def next_steps(runs: ExperimentRuns, verdicts: list[Verdict]) -> list[Step]:
    """All steps, the most pressing first: finish, put back what failed, settle what is open, look beyond an edge."""
    return [
        *_unfinished(runs),
        *_put_back(runs),
        *_bursts(runs),
        *_settle(verdicts),
        *_noisy(runs),
        *edges(runs, verdicts),
        *_missing(runs),
    ]


def _unfinished(runs: ExperimentRuns) -> Iterator[Step]:
    if not runs.left:
        return
    ended = [variant.seconds for variant in runs.variants if variant.seconds]
    usual = sum(ended) / len(ended) if ended else 0.0
    seconds = sum((variant.seconds or usual) * len(variant.left) for variant in runs.variants)
    numbers: Numbers = {"left": runs.left, "all": sum(len(variant.runs) for variant in runs.variants)}
    yield Step("unfinished", None, numbers, seconds or None)


# After a failure, or a burst of resets -------------------------------------------------------------------------------


def _put_back(runs: ExperimentRuns) -> Iterator[Step]:
    for variant in runs.variants:
        if not variant.failed:
            continue
        kind, phase = usual_failure(variant.failed)
        numbers: Numbers = {"kind": kind, "phase": phase, "failed": len(variant.failed)}
        changes = last_changes(runs, variant)
        if phase == BEFORE:
            yield Step("again", variant, numbers, len(variant.failed) * variant.seconds)
        elif (kind, phase) == ("oom", "cache_creation") and (pins := automatic_pins(runs, variant)):
            numbers |= {"pins": ", ".join(f"{name}={value}" for name, value in pins), "parent": variant.entry.based_on}
            yield Step("pinned", variant, numbers)
        elif changes:
            yield Step("put_back", variant, numbers, changes=changes)
        else:
            yield Step("failed_as_is", variant, numbers)


def last_changes(runs: ExperimentRuns, variant: Variant) -> tuple[Change, ...]:
    """The settings that a variant changed last, each with its value before and after."""
    parent = runs.parent(variant)
    if parent is None:
        return ()
    names = [name for name in variant.entry.changes if name != BATCHING]
    return tuple(Change(name, value_of_setting(parent, name), value_of_setting(variant, name)) for name in names)


def _bursts(runs: ExperimentRuns) -> Iterator[Step]:
    for variant in runs.variants:
        parent, changes = runs.parent(variant), last_changes(runs, variant)
        now, before = resets(variant), resets(parent) if parent is not None else None
        if now is None or before is None or not changes:
            continue
        requests = requests_of(variant)
        if now >= max(BURST_LEAST, BURST_SHARE * requests, 2 * before):
            numbers: Numbers = {"resets": now, "before": before, "requests": requests}
            yield Step("burst", variant, numbers, changes=changes)


def resets(variant: Variant) -> float | None:
    """Soft resets and offloads of a run, on average; ``None`` without runs."""
    totals = [variant.values(key) for key in ("soft_resets", "offloads")]
    return sum(map(sum, totals)) / len(totals[0]) if totals[0] else None


def requests_of(variant: Variant) -> int:
    """Requests that a run was to serve; 0 when they were not counted."""
    counted = [run.entry.correctness.requests for run in variant.measured if run.entry.correctness is not None]
    return max(counted, default=0)


# What is open --------------------------------------------------------------------------------------------------------


def _settle(verdicts: list[Verdict]) -> Iterator[Step]:
    """The cheapest runs that would settle a *cannot tell*; those of the others stand beside their verdicts."""
    priced = [step for step in map(settling_step, verdicts) if step is not None and step.seconds is not None]
    if priced:
        yield min(priced, key=lambda step: step.seconds or 0.0)


def settling_step(verdict: Verdict) -> Step | None:
    """What would settle a *cannot tell*; ``None`` where no run would, or there is nothing to settle."""
    variant, rival, check = verdict.variant, verdict.rival, verdict.grounds.check
    if verdict.rule == "slo_unclear" and check is not None:
        # A single run near a limit takes more; runs on both sides of it say that there is no room.
        more = LEAST_RUNS // 2 - len(variant.measured) - len(variant.left)
        if len(variant.measured) > 1:
            return Step("slo_border", variant, slo=check.slo)
        if more <= 0:
            return Step("planned", variant)
        return Step("slo_repeats", variant, {"more": more}, more * variant.seconds, slo=check.slo)
    if rival is None or verdict.rule not in ("few_runs", "undecided"):
        return None
    keys = SPEED if verdict.grounds.effect is None else (verdict.grounds.effect.key,)
    found = [(runs_to_tell(rival.values(key), variant.values(key), key), key) for key in keys]
    wanted, key = min(found, key=lambda it: it[0] or MOST_RUNS + 1)
    if wanted is None:
        return Step("beyond_reach", variant, key=key) if variant.values(key) and rival.values(key) else None
    more, more_rival = (max(0, wanted - len(side.measured) - len(side.left)) for side in (variant, rival))
    if not more and not more_rival:
        return Step("planned", variant)
    rule = "least" if min(len(variant.measured), len(rival.measured)) < 2 else "repeats"
    numbers: Numbers = {"more": more, "rival_more": more_rival, "rival": rival.name}
    return Step(rule, variant, numbers, more * variant.seconds + more_rival * rival.seconds, key=key)


def _noisy(runs: ExperimentRuns) -> Iterator[Step]:
    values = runs.baseline.values(THROUGHPUT) if runs.baseline is not None else []
    if len(values) < LEAST_RUNS // 2 or not any(values):
        return
    scatter = statistics.stdev(values) / statistics.fmean(values)
    if scatter > NOISY:
        yield Step("noisy", runs.baseline, {"scatter": scatter, "runs": len(values)}, key=THROUGHPUT)


# What would be needed to decide at all -------------------------------------------------------------------------------


def _missing(runs: ExperimentRuns) -> Iterator[Step]:
    if not latency_limits(slos_of(runs.experiment)):
        yield Step("no_slos")
    ran = [run for variant in runs.variants for run in variant.measured if variant.entry.kind != "static"]
    if ran and not any(compared(run) for run in ran) and not any(it.entry.kind == "static" for it in runs.variants):
        yield Step("no_reference")
