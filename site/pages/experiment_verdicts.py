"""The verdict table of an experiment: one row a variant, with the line that decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cbtrace.site.analysis.experiment import ExperimentRuns, Variant, planned_text
from cbtrace.site.analysis.experiment_next import settling_step
from cbtrace.site.analysis.experiment_slos import SloCheck, latency_limits, slos_of
from cbtrace.site.analysis.experiment_variables import BATCHING, automatic_pins, followers
from cbtrace.site.analysis.experiment_verdict import Verdict, compared, differing
from cbtrace.site.pages.compare import comparison_path
from cbtrace.site.pages.experiment_effects import (
    EffectCell,
    change_text,
    effect_cell,
    slo_amount,
    slo_label,
    value_label,
    value_unit,
)
from cbtrace.site.pages.experiment_steps import settle_text
from cbtrace.site.words import Words


@dataclass(frozen=True)
class SloCell:
    """One SLO of one variant."""

    state: str
    text: str


@dataclass(frozen=True)
class VerdictRow:
    """One variant."""

    number: int
    """By which charts call it."""
    anchor: str
    name: str
    change: str
    word: str
    word_text: str
    line: str
    notes: list[str]
    rests: str
    settle: str
    slos: list[SloCell]
    rival: str
    cells: list[EffectCell]
    compare: str
    """Where it is compared with its rival, relative to the site; empty where there is nothing to compare."""


@dataclass(frozen=True)
class ValueColumn:
    """Heading of a column of run-level values."""

    metric: str
    label: str
    unit: str


def value_columns(keys: Sequence[str], words: Words) -> list[ValueColumn]:
    """Headings of run-level values."""
    return [ValueColumn(key.split(".")[0], value_label(key, words), value_unit(key)) for key in keys]


def verdict_rows(runs: ExperimentRuns, verdicts: list[Verdict], words: Words) -> list[VerdictRow]:
    """All rows, in the order of the experiment."""
    by_name = {verdict.variant.name: verdict for verdict in verdicts}
    return [_row(runs, verdict, number, by_name, words) for number, verdict in enumerate(verdicts, 1)]


def _row(
    runs: ExperimentRuns, verdict: Verdict, number: int, by_name: Mapping[str, Verdict], words: Words
) -> VerdictRow:
    variant, rival = verdict.variant, verdict.rival
    settle = settling_step(verdict)
    return VerdictRow(
        number=number,
        anchor=f"variant-{number}",
        name=variant.name,
        change=change_of(runs, variant, words),
        word=verdict.word,
        word_text=words(f"experiment.verdict_word.{verdict.word}"),
        line=deciding_line(verdict, words),
        notes=list(_notes(runs, verdict, by_name, words)),
        rests=_rests(verdict, words),
        settle=settle_text(settle, words) if settle is not None else "",
        slos=[slo_cell(check, words) for check in verdict.checks if check.state != "unknown"],
        rival=rival.name if rival is not None else "",
        cells=[effect_cell(effect, words) for effect in verdict.effects],
        compare=_compare(verdict, by_baseline=rival is runs.baseline),
    )


def change_of(runs: ExperimentRuns, variant: Variant, words: Words) -> str:
    """What a variant changes, and in which other one."""
    changes = ", ".join(f"{name}={planned_text(value)}" for name, value in variant.entry.changes.items())
    parent = runs.parent(variant)
    if not changes or parent is None or parent is runs.baseline or BATCHING in variant.entry.changes:
        return changes
    return words("experiment.change_in", changes=changes, parent=parent.name)


def _rests(verdict: Verdict, words: Words) -> str:
    if verdict.rival is None:
        return str(verdict.runs)
    return words("experiment.rests", runs=verdict.runs, rival_runs=verdict.rival_runs)


def _compare(verdict: Verdict, *, by_baseline: bool) -> str:
    """Where the two are compared. With the baseline it is a page that needs no scripts."""
    if verdict.rival is None:
        return ""
    a, b = ([it.traced.slug for it in side.done if it.traced] for side in (verdict.rival, verdict.variant))
    if not a or not b:
        return ""
    return comparison_path(a, b) if by_baseline else f"compare.html#a={'.'.join(a)}&b={'.'.join(b)}"


# The line that decided -----------------------------------------------------------------------------------------------


def deciding_line(verdict: Verdict, words: Words) -> str:
    """The sentence of the rule that decided, with its numbers."""
    grounds = verdict.grounds
    values: dict[str, object] = {**grounds.numbers, "rival": verdict.rival.name if verdict.rival else ""}
    for name in ("kind", "phase"):
        if name in values:
            values[name] = words(f"failure.{name}.{values[name]}")
    if grounds.effect is not None:
        values |= {"label": value_label(grounds.effect.key, words), "change": change_text(grounds.effect, words)}
    if grounds.loss is not None:
        values |= {"loss_label": value_label(grounds.loss.key, words), "loss": change_text(grounds.loss, words)}
    if grounds.check is not None:
        values |= _check_values(grounds.check, words)
    return words(f"experiment.verdict.{verdict.rule}", **values)


def _check_values(check: SloCheck, words: Words) -> dict[str, object]:
    return {
        "slo": slo_label(check.slo, words),
        "worst": slo_amount(check.slo, check.worst),
        "limit": slo_amount(check.slo, check.slo.limit),
    }


def slo_cell(check: SloCheck, words: Words) -> SloCell:
    """Whether a variant meets an SLO."""
    values = _check_values(check, words)
    return SloCell(check.state, words(f"experiment.slo_state.{check.state}", met=check.met, runs=check.runs, **values))


# What else must be known ---------------------------------------------------------------------------------------------


def _notes(runs: ExperimentRuns, verdict: Verdict, by_name: Mapping[str, Verdict], words: Words) -> Iterator[str]:
    variant, parent = verdict.variant, runs.parent(verdict.variant)
    if parent is not None and variant.entry.kind != "static":
        for moved in followers(parent, variant):
            values = {"name": moved.name, "before": moved.resolved_a, "after": moved.resolved_b}
            yield words("experiment.note.followed", parent=parent.name, **values)
    if verdict.rule == "failed" and verdict.grounds.numbers["phase"] == "cache_creation":
        for name, value in automatic_pins(runs, variant):
            yield words("experiment.note.pinned", name=name, value=value, parent=variant.entry.based_on)
    if variant.entry.together:
        yield words("experiment.note.together")
    elif verdict.likeness is not None and parent is not verdict.rival and len(verdict.likeness.variables) > 1:
        names = ", ".join(verdict.likeness.variables[:6])
        yield words("experiment.note.several", rival=verdict.rival.name if verdict.rival else "", names=names)
    if verdict.rule == "slo_missed" and verdict.rival is not None and verdict.rival.name in by_name:
        states = {check.slo: check.state for check in by_name[verdict.rival.name].checks}
        if verdict.grounds.check is not None and states.get(verdict.grounds.check.slo) == "missed":
            yield words("experiment.note.rival_misses", rival=verdict.rival.name)
    if verdict.likeness is not None and verdict.likeness.apart and verdict.rule in ("better", "worse", "trade_off"):
        yield words("experiment.note.apart", rival=verdict.rival.name if verdict.rival else "")
    yield from _token_note(verdict, words)
    if verdict.word == "adopt" and not latency_limits(slos_of(runs.experiment)):
        yield words("experiment.note.no_slos")


def _token_note(verdict: Verdict, words: Words) -> Iterator[str]:
    if verdict.variant.entry.kind == "static" or not verdict.variant.measured or verdict.rule == "tokens_differ":
        return
    worst = max(verdict.variant.measured, key=differing)
    if differing(worst):
        yield words("experiment.note.tokens", differ=differing(worst), compared=compared(worst))
    elif not any(compared(run) for run in verdict.variant.measured):
        yield words("experiment.note.not_compared")
