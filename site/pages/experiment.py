"""The page of one experiment: verdicts, what to run next, and all that they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import ExperimentRuns
from cbtrace.site.analysis.experiment_effects import MEMORY, SPEED, THROUGHPUT
from cbtrace.site.analysis.experiment_frontier import frontier
from cbtrace.site.analysis.experiment_next import next_steps
from cbtrace.site.analysis.experiment_slos import latency_limits, slos_of
from cbtrace.site.analysis.experiment_stages import StageResult
from cbtrace.site.analysis.experiment_verdict import Verdict
from cbtrace.site.pages.banners import Banner
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.experiment_charts import LATENCIES
from cbtrace.site.pages.experiment_correctness import (
    BatchingTable,
    CorrectnessSection,
    batching_tables,
    correctness_section,
)
from cbtrace.site.pages.experiment_predictions import ForecastSection, forecast_answer, forecast_section
from cbtrace.site.pages.experiment_runs import Fact, RunRow, experiment_banners, plan_facts, run_rows
from cbtrace.site.pages.experiment_stages import StageSection, stage_sections
from cbtrace.site.pages.experiment_steps import StepRow, step_row
from cbtrace.site.pages.experiment_verdicts import ValueColumn, VerdictRow, value_columns, verdict_rows
from cbtrace.site.words import Words

SECTIONS = ("verdicts", "next", "predicted", "front", "stages", "correctness", "batching", "all_runs", "plan")
WORDS_OF_VERDICTS = ("adopt", "do_not_adopt", "cannot_tell")


@dataclass(frozen=True)
class Answer:
    """One line of the summary, and where the page says more."""

    question: str
    text: str
    place: str


@dataclass(frozen=True)
class FrontRow:
    """One point of throughput against latency."""

    number: int
    name: str
    runs: str
    throughput: str
    latencies: list[str]
    on_front: list[bool]


@dataclass(frozen=True)
class ExperimentView:
    """Everything that the page shows."""

    name: str
    facts: list[Fact]
    banners: list[Banner]
    answers: list[Answer]
    columns: list[ValueColumn]
    verdicts: list[VerdictRow]
    memory_note: str
    """What peak memory is read of; empty when that is not known."""
    steps: list[StepRow]
    predicted: ForecastSection
    front: list[FrontRow]
    front_columns: list[ValueColumn]
    stages: list[StageSection]
    correctness: CorrectnessSection
    batching: list[BatchingTable]
    runs: list[RunRow]
    plan: list[Fact]


def experiment_view(
    runs: ExperimentRuns,
    verdicts: list[Verdict],
    results: list[StageResult],
    facts: Sequence[tuple[str, str]],
    words: Words,
) -> ExperimentView:
    """Choose what the page shows. ``facts`` are names and values for the line below the title."""
    steps = [step_row(step, words) for step in next_steps(runs, verdicts)]
    correctness = correctness_section(runs, words)
    return ExperimentView(
        name=runs.experiment.name,
        facts=[Fact(words(f"experiment.fact.{name}"), value) for name, value in facts],
        banners=experiment_banners(runs, verdicts, words),
        answers=_answers(runs, verdicts, correctness, steps, words),
        columns=value_columns((*SPEED, MEMORY), words),
        verdicts=verdict_rows(runs, verdicts, words),
        memory_note=_memory_note(runs, words),
        steps=steps,
        predicted=forecast_section(runs, words),
        front=_front_rows(runs),
        front_columns=value_columns((THROUGHPUT, *LATENCIES), words),
        stages=stage_sections(runs, results, words),
        correctness=correctness,
        batching=batching_tables(runs, words),
        runs=run_rows(runs, words),
        plan=plan_facts(runs, words),
    )


def _memory_note(runs: ExperimentRuns, words: Words) -> str:
    traced = [run.traced for variant in runs.variants for run in variant.measured]
    scopes = sorted({run.summary.peak_memory_scope or "" for run in traced if run is not None} - {""})
    told = "; ".join(words(f"card.peak_memory_bytes.{scope}") for scope in scopes)
    return words("experiment.memory_note", scope=told) if told else ""


def _answers(
    runs: ExperimentRuns, verdicts: list[Verdict], correctness: CorrectnessSection, steps: list[StepRow], words: Words
) -> list[Answer]:
    """The questions a reader comes with, answered in a line each: correctness first."""
    lines = [("correctness", correctness.title, "correctness")]
    for word in WORDS_OF_VERDICTS:
        names = [verdict.variant.name for verdict in verdicts if verdict.word == word]
        shown = "; ".join(names[:8]) or words("experiment.answer.none")
        more = words("experiment.answer.more", count=len(names) - 8) if len(names) > 8 else ""
        lines.append((word, f"{shown} {more}".strip(), "verdicts"))
    lines.append(("next", steps[0].text if steps else words("experiment.next.nothing"), "next"))
    if predicted := forecast_answer(runs, words):
        lines.append(("predicted", predicted, "predicted"))
    if not latency_limits(slos_of(runs.experiment)):
        lines.append(("slos", words("experiment.next.no_slos"), "plan"))
    return [Answer(words(f"experiment.question.{name}"), text, place) for name, text, place in lines]


def _front_rows(runs: ExperimentRuns) -> list[FrontRow]:
    """Variants by throughput; a latency that has no value is a dash."""
    numbers = {variant.name: number for number, variant in enumerate(runs.variants, 1)}
    points = {key: {point.variant.name: point for point in frontier(runs, key)} for key in LATENCIES}
    names = list(dict.fromkeys(name for found in points.values() for name in found))
    rows = []
    for name in names:
        known = [points[key].get(name) for key in LATENCIES]
        first = next(point for point in known if point is not None)
        rows.append(
            FrontRow(
                number=numbers[name],
                name=name,
                runs=formats.number(first.runs),
                throughput=formats.number(first.throughput),
                latencies=[formats.number(point.latency if point is not None else None) for point in known],
                on_front=[point is not None and point.on_front for point in known],
            )
        )
    return rows


def experiment_page(chrome: Chrome, view: ExperimentView, data_script: str, data_key: str) -> str:
    """The page as HTML. ``data_script`` is the path of its charts' data beside the page."""
    return chrome.page(
        "experiment.html",
        "experiment",
        root="../../",
        experiment=view,
        sections=SECTIONS,
        data_script=data_script,
        data_key=data_key,
    )
