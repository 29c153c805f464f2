"""Correctness of an experiment's variants, and static batching beside continuous batching, as tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import ExperimentRun, ExperimentRuns, Variant, same_workload
from cbtrace.site.analysis.experiment_effects import effects
from cbtrace.site.analysis.experiment_repeats import unlike_repeats
from cbtrace.site.analysis.experiment_verdict import differing
from cbtrace.site.pages.experiment_effects import EffectCell, effect_cell
from cbtrace.site.words import Words
from cbtrace.traces.experiment import Correctness


@dataclass(frozen=True)
class CorrectnessRow:
    """One variant: counts over all of its runs."""

    anchor: str
    name: str
    runs: str
    complete: str
    equal: str
    first: str
    """The first token that differs; a dash when none does."""
    termination: str
    failures: str
    remarks: list[str]
    right: bool
    """Every request is complete, and no token differs."""


@dataclass(frozen=True)
class CorrectnessSection:
    """The table, and what it comes to."""

    title: str
    repeats: str
    """That the baseline's repeats differ from one another; empty when that is not known."""
    rows: list[CorrectnessRow]


def correctness_section(runs: ExperimentRuns, words: Words) -> CorrectnessSection:
    """Count completeness, tokens and ends of every variant's requests."""
    rows = [_row(variant, number, words) for number, variant in enumerate(runs.variants, 1)]
    return CorrectnessSection(_title(runs, words), _repeats(runs, words), [row for row in rows if row is not None])


def _repeats(runs: ExperimentRuns, words: Words) -> str:
    found = unlike_repeats(runs.baseline) if runs.baseline is not None else None
    if found is None:
        return ""
    counts = {"count": formats.number(found.requests), "requests": formats.number(found.compared)}
    return words("experiment.correct.repeats", **counts)


def _title(runs: ExperimentRuns, words: Words) -> str:
    checked = [found for variant in runs.variants for found in _checked(variant)]
    if not checked:
        return words("experiment.correct.none")
    complete, requests = sum(it.complete for it in checked), sum(it.requests for it in checked)
    continuous = [found for it in runs.variants if it.entry.kind != "static" for found in _checked(it)]
    compared, equal = sum(it.compared for it in continuous), sum(it.equal for it in continuous)
    values = {name: formats.number(value) for name, value in (("complete", complete), ("requests", requests))}
    if not compared:
        return words("experiment.correct.uncompared", **values)
    values |= {"equal": formats.number(equal), "compared": formats.number(compared)}
    reasons = {it.remark for it in continuous if it.equal < it.compared}
    reason = f" {reasons.pop()}" if len(reasons) == 1 else ""
    return f"{words('experiment.correct.title', **values)}{reason}".rstrip()


def _checked(variant: Variant) -> list[Correctness]:
    return [run.entry.correctness for run in variant.runs if run.entry.correctness is not None]


def _row(variant: Variant, number: int, words: Words) -> CorrectnessRow | None:
    checked = _checked(variant)
    if not checked:
        return None
    failures: Counter[str] = Counter()
    for found in checked:
        failures.update(found.failures)
    complete, requests = sum(it.complete for it in checked), sum(it.requests for it in checked)
    compared, equal = sum(it.compared for it in checked), sum(it.equal for it in checked)
    same_end = sum(it.same_termination for it in checked)
    remarks = list(dict.fromkeys(it.remark for it in checked if it.remark))
    return CorrectnessRow(
        anchor=f"correct-{number}",
        name=variant.name,
        runs=formats.number(len(checked)),
        complete=_of(complete, requests),
        equal=_of(equal, compared) if compared else formats.UNKNOWN,
        first=_first(variant, words),
        termination=_of(same_end, compared) if compared else formats.UNKNOWN,
        failures=", ".join(
            f"{_kind(kind, words)}: {formats.number(count)}" for kind, count in sorted(failures.items())
        ),
        remarks=remarks,
        right=complete == requests and equal == compared,
    )


def _kind(kind: str, words: Words) -> str:
    return words.or_key(f"failure.kind.{kind}", kind)


def _of(part: int, whole: int) -> str:
    return f"{formats.number(part)} / {formats.number(whole)}"


def _first(variant: Variant, words: Words) -> str:
    """The earliest position at which tokens differ, and in which request of which run."""
    found = [
        (difference.position, difference.request, run)
        for run in variant.runs
        if run.entry.correctness is not None and differing(run)
        for difference in run.entry.correctness.differences
    ]
    if not found:
        return formats.UNKNOWN
    position, request, run = min(found, key=lambda it: (it[0], it[2].entry.repeat, it[1]))
    return words("experiment.correct.first", position=position, request=request[:60], repeat=run.entry.repeat)


# Static beside continuous --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchingRow:
    """One variant: what its forward passes computed, and how fast."""

    name: str
    kind: str
    runs: str
    needed: str
    computed: str
    padding: str
    cells: list[EffectCell]


@dataclass(frozen=True)
class BatchingTable:
    """Static batching (A) and a continuous variant of the same workload (B)."""

    workload: str
    rows: list[BatchingRow]


def batching_tables(runs: ExperimentRuns, words: Words) -> list[BatchingTable]:
    """One table a variant of static batching that has runs, beside the first continuous one of its workload."""
    tables = []
    for static in runs.variants:
        others = [it for it in runs.variants if same_workload(it, static) and it.entry.kind != "static"]
        if static.entry.kind == "static" and static.measured and others and others[0].measured:
            rows = [_batching_row(variant, static, words) for variant in (static, others[0])]
            tables.append(BatchingTable(static.entry.workload, rows))
    return tables


def _batching_row(variant: Variant, static: Variant, words: Words) -> BatchingRow:
    needed, computed = (_mean(variant.measured, name) for name in ("needed", "computed"))
    return BatchingRow(
        name=variant.name,
        kind=words(f"experiment.kind.{variant.entry.kind}"),
        runs=formats.number(len(variant.measured)),
        needed=formats.number(round(needed)),
        computed=formats.number(round(computed)),
        padding=formats.percent((computed - needed) / computed if computed else None),
        cells=[effect_cell(it, words, alone=variant is static) for it in effects(static, variant)],
    )


def _mean(measured: list[ExperimentRun], name: str) -> float:
    counts = [getattr(run.traced.tokens, name) for run in measured if run.traced is not None]
    return sum(counts) / len(counts) if counts else 0.0
