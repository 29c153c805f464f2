"""The stages of an experiment: what each variable taught, with a chart and a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import MEMORY, SPEED, THROUGHPUT, effect
from cbtrace.site.analysis.experiment_failures import kind_of, phase_of
from cbtrace.site.analysis.experiment_stages import PointResult, StageResult, VariableResult
from cbtrace.site.analysis.experiment_variables import value_of_setting
from cbtrace.site.pages.experiment_effects import EffectCell, change_text, effect_cell, value_label
from cbtrace.site.pages.experiment_verdicts import deciding_line
from cbtrace.site.words import Words

RESOLVED = (
    "max_batch_tokens",
    "max_requests_per_batch",
    "num_blocks",
    "page_size",
    "safety_margin",
    "scheduler_type",
    "use_cuda_graph",
    "use_async_batching",
)
"""What the baseline's engine made of the settings that were left to it: what the later stages start from."""


@dataclass(frozen=True)
class PointRow:
    """One value of a variable."""

    value: str
    capacity: str
    """Size of the KV cache, which blocks are compared by; empty when it is not known, or the same for all values."""
    start: bool
    variant: str
    runs: str
    cells: list[EffectCell]
    failures: list[str]
    followed: list[str]


@dataclass(frozen=True)
class VariableSection:
    """One variable: title, chart and table."""

    index: int
    """Of its chart's data."""
    name: str
    anchor: str
    title: str
    start: str
    """Name of the variant that the values change."""
    rows: list[PointRow]

    @property
    def failing(self) -> bool:
        """Whether runs failed."""
        return any(row.failures for row in self.rows)

    @property
    def moving(self) -> bool:
        """Whether the engine changed another setting."""
        return any(row.followed for row in self.rows)


@dataclass(frozen=True)
class StageSection:
    """One stage."""

    number: int
    title: str
    learned: list[str]
    variables: list[VariableSection]


def stage_sections(runs: ExperimentRuns, results: list[StageResult], words: Words) -> list[StageSection]:
    """All stages; charts are numbered over all of them."""
    sections, index = [], 0
    for result in results:
        drawn = [_variable(it, index + place, words) for place, it in enumerate(result.variables)]
        index += len(drawn)
        sections.append(
            StageSection(result.stage.number, result.stage.title, list(_learned(runs, result, words)), drawn)
        )
    return sections


# What was learned ----------------------------------------------------------------------------------------------------


def _learned(runs: ExperimentRuns, result: StageResult, words: Words) -> Iterator[str]:
    if runs.baseline is not None and runs.baseline.entry.stage == result.stage.number:
        yield from _resolved(runs.baseline, words)
        yield from _static(runs, words)
    for found in result.variables:
        yield from _variable_learned(found, words)
    for verdict in result.others:
        if verdict.variant is not runs.baseline and verdict.variant.entry.kind != "static":
            line = deciding_line(verdict, words)
            word = words(f"experiment.verdict_word.{verdict.word}")
            yield words("experiment.learned.other", variant=verdict.variant.name, word=word, line=line)


def _resolved(baseline: Variant, words: Words) -> Iterator[str]:
    known = [(name, value_of_setting(baseline, name)) for name in RESOLVED]
    values = ", ".join(f"{name} {value}" for name, value in known if value)
    if values and baseline.measured:
        yield words("experiment.learned.resolved", values=values)


def _static(runs: ExperimentRuns, words: Words) -> Iterator[str]:
    for variant in runs.variants:
        rival = runs.rival(variant)
        if variant.entry.kind == "static" and rival is runs.baseline and rival is not None and variant.measured:
            found = effect(variant.values(THROUGHPUT), rival.values(THROUGHPUT), THROUGHPUT)
            word = words(f"experiment.word.{found.word}")
            values = {"label": value_label(THROUGHPUT, words), "change": change_text(found, words), "word": word}
            yield words("experiment.learned.static", static=variant.name, **values)


def _variable_learned(result: VariableResult, words: Words) -> Iterator[str]:
    """A line for each value that differs beyond noise or failed, and one where none does."""
    name, start = result.variable.name, result.variable.start.value or formats.UNKNOWN
    tried = [point for point in result.points if not point.point.start]
    told = False
    for point in tried:
        parts = [_part(point, word, words) for word in ("better", "worse") if point.changed(word)]
        if point.point.variant.failed:
            parts.append(words("experiment.learned.failed", failures="; ".join(_failures(point, words))))
        if parts:
            told = True
            yield words(
                "experiment.learned.point", name=name, value=point.point.value, start=start, what=" ".join(parts)
            )
    if told:
        return
    if not any(point.point.variant.measured for point in tried):
        yield words("experiment.learned.nothing", name=name)
    else:
        found = [effect.judgement for point in tried for effect in point.effects]
        even = all(judgement.word == "within_noise" for judgement in found)
        few = any(judgement.why in ("one_run", "few_runs") for judgement in found)
        yield words(f"experiment.learned.{'even' if even else 'few' if few else 'open'}", name=name, start=start)


def _part(point: PointResult, word: str, words: Words) -> str:
    changes = "; ".join(f"{value_label(it.key, words)} {change_text(it, words)}" for it in point.changed(word))
    return words(f"experiment.learned.{word}", changes=changes)


# Charts and tables ---------------------------------------------------------------------------------------------------


def _variable(result: VariableResult, index: int, words: Words) -> VariableSection:
    variable = result.variable
    capacities = [_capacity(point.point.variant) for point in result.points]
    if len(set(capacities) - {""}) < 2:
        capacities = [""] * len(capacities)
    start = variable.start.variant
    rows = [_point_row(point, start, size, words) for point, size in zip(result.points, capacities, strict=True)]
    return VariableSection(
        index=index,
        name=variable.name,
        anchor=f"variable-{index + 1}",
        title=words("experiment.variable_title", name=variable.name, start=start.name),
        start=start.name,
        rows=rows,
    )


def _capacity(variant: Variant) -> str:
    """The KV cache of a variant's runs, the median of them."""
    sizes = variant.values("kv.capacity_bytes")
    return formats.size(statistics.median(sizes)) if sizes else ""


def _point_row(result: PointResult, start: Variant, capacity: str, words: Words) -> PointRow:
    variant = result.point.variant
    found = result.effects or [effect(start.values(key), variant.values(key), key) for key in (*SPEED, MEMORY)]
    return PointRow(
        value=result.point.value or formats.UNKNOWN,
        capacity=capacity,
        start=result.point.start,
        variant=variant.name,
        runs=_of(len(variant.measured), len(variant.runs)),
        cells=[effect_cell(it, words, alone=result.point.start) for it in found],
        failures=_failures(result, words),
        followed=[f"{it.name}: {it.resolved_a} \N{RIGHTWARDS ARROW} {it.resolved_b}" for it in result.followed],
    )


def _failures(result: PointResult, words: Words) -> list[str]:
    """Kinds and phases of the failed runs, each once with how many."""
    counts: dict[str, int] = {}
    for run in result.point.variant.failed:
        text = failure_text(kind_of(run), phase_of(run), words)
        counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({count})" if count > 1 else text for text, count in counts.items()]


def failure_text(kind: str, phase: str, words: Words) -> str:
    """A failure in a few words: *out of memory, prefill*."""
    return f"{words(f'failure.kind.{kind}')}, {words(f'failure.phase.{phase}')}"


def _of(part: int, whole: int) -> str:
    return f"{formats.number(part)} / {formats.number(whole)}"
