"""All runs of an experiment, what was planned, and what a reader must know before trusting the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import ExperimentRun, ExperimentRuns
from cbtrace.site.analysis.experiment_effects import MEMORY, SPEED
from cbtrace.site.analysis.experiment_failures import kind_of, phase_of
from cbtrace.site.analysis.experiment_slos import slos_of, unknown_slos
from cbtrace.site.analysis.experiment_verdict import Verdict
from cbtrace.site.pages.banners import Banner
from cbtrace.site.pages.experiment_effects import slo_amount, slo_label, value_text
from cbtrace.site.pages.experiment_stages import failure_text
from cbtrace.site.words import Words


@dataclass(frozen=True)
class NumberCell:
    """One number, to read and to sort by."""

    value: float | None
    text: str


@dataclass(frozen=True)
class RunRow:
    """One run."""

    id: str
    slug: str
    """Name of its page; empty when there is none."""
    variant: str
    stage: int
    repeat: int
    status: str
    status_text: str
    seconds: NumberCell
    cells: list[NumberCell]
    resets: NumberCell
    trouble: str
    """Kind and phase of a failure."""
    text: str
    """What happened, in the words of the run: attempts that were lost, and how it ended."""


@dataclass(frozen=True)
class Fact:
    """One line of what was planned."""

    name: str
    value: str


def run_rows(runs: ExperimentRuns, words: Words) -> list[RunRow]:
    """All runs in the order in which they are run."""
    by_id = {id(run.entry): run for variant in runs.variants for run in variant.runs}
    return [_row(by_id[id(entry)], words) for entry in runs.experiment.runs if id(entry) in by_id]


def _row(run: ExperimentRun, words: Words) -> RunRow:
    entry = run.entry
    return RunRow(
        id=entry.id,
        slug=run.traced.slug if run.traced is not None else "",
        variant=entry.variant,
        stage=entry.stage,
        repeat=entry.repeat,
        status="predicted" if run.predicted else entry.status,
        status_text=words(f"experiment.status.{'predicted' if run.predicted else entry.status}"),
        seconds=NumberCell(entry.seconds or None, formats.number(entry.seconds or None)),
        cells=[_number(run, key) for key in (*SPEED, MEMORY)],
        resets=_number(run, "soft_resets"),
        trouble=failure_text(kind_of(run), phase_of(run), words) if entry.status == "failed" else "",
        text=" ".join([*entry.lost, entry.text]).strip(),
    )


def _number(run: ExperimentRun, key: str) -> NumberCell:
    """A number of a run. One that did not come to its end has none: it would look like the others'."""
    value = run.value(key) if run.entry.status == "done" else None
    return NumberCell(value, value_text(key, value))


def plan_facts(runs: ExperimentRuns, words: Words) -> list[Fact]:
    """SLOs, and what is known of the workloads."""
    found = [
        Fact(words("experiment.fact.slo", slo=slo_label(slo, words)), slo_amount(slo, slo.limit))
        for slo in slos_of(runs.experiment)
    ]
    for name, facts in sorted(runs.experiment.workloads.items()):
        known = ", ".join(f"{key.removeprefix('workload.')}: {formats.fact(facts[key])}" for key in sorted(facts))
        found.append(Fact(words("experiment.fact.workload", name=name), known))
    return found


def experiment_banners(runs: ExperimentRuns, verdicts: list[Verdict], words: Words) -> list[Banner]:
    """What is missing or special, gravest first."""
    return [
        Banner(f"about-{name}", severity, words(f"experiment.banner.{name}.title"), text)
        for name, severity, text in _banners(runs, verdicts, words)
    ]


def _banners(runs: ExperimentRuns, verdicts: list[Verdict], words: Words) -> Iterator[tuple[str, str, str]]:
    experiment = runs.experiment
    every = [run for variant in runs.variants for run in variant.runs]
    untraced = [run.entry.id for run in every if run.entry.status == "done" and run.traced is None]
    predicted = sum(run.predicted for run in every)
    unknown = unknown_slos(experiment)
    if runs.baseline is None or not runs.baseline.measured:
        yield "no_baseline", "warning", words("experiment.banner.no_baseline.text")
    if untraced:
        values = {"count": len(untraced), "names": ", ".join(untraced[:5])}
        yield "untraced", "data_loss", words("experiment.banner.untraced.text", **values)
    if runs.left:
        values = {"left": runs.left, "all": len(every)}
        yield "partial", "warning", words("experiment.banner.partial.text", **values)
    if experiment.mixed:
        yield "mixed", "warning", words("experiment.banner.mixed.text")
    if unknown:
        yield "unknown_slos", "warning", words("experiment.banner.unknown_slos.text", names=", ".join(unknown[:5]))
    if predicted:
        yield "predicted", "info", words("experiment.banner.predicted.text", count=predicted)
    if any(verdict.rule == "few_runs" for verdict in verdicts):
        yield "few_runs", "info", words("experiment.banner.few_runs.text")
