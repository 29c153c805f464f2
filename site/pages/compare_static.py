"""A comparison as plain HTML: what the compare page shows of whole sides, without scripts.

It is made from the sides of the runs (:mod:`~cbtrace.site.pages.compare_data`), as the scripts are, and holds the same
tables with the same words and digits. Charts and what belongs to single requests are left to the scripts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.catalogue import GROUPS, LATENCIES, METRICS, Change
from cbtrace.site.analysis.comparability import Comparability, ComparedFact
from cbtrace.site.analysis.comparison import ComparedValue, Comparison, MeasuredRun, compare
from cbtrace.site.analysis.distribution import CURVE_PROBABILITIES
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.run_values import direction_word
from cbtrace.site.pages.compare_data import COUNTS, HAPPENED
from cbtrace.site.pages.compare_sentences import (
    amount,
    headline_sentence,
    judged_text,
    percent,
    signed,
    verdict_sentences,
    with_unit,
)
from cbtrace.site.words import Words

PERCENTILES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)
"""Rows of the tables of distributions."""

Side = Sequence[dict[str, Any]]
"""The runs of one side, as :func:`~cbtrace.site.pages.compare_data.compare_data` makes them."""
Cell = list[str]
"""Lines of a cell; those after the first are set small."""


@dataclass(frozen=True)
class StaticTable:
    """A table: the first cell of a row is its head. A row of one cell is the head of a group."""

    caption: str
    heads: list[tuple[str, bool]]
    """Each with whether it stands over numbers."""
    rows: list[list[Cell]]


@dataclass(frozen=True)
class StaticSection:
    """One section."""

    id: str
    title: str
    said: list[tuple[str, str]] = field(default_factory=list)
    """Sentences with the class of their banner; plain ones have none."""
    tables: list[StaticTable] = field(default_factory=list)


def comparison_sections(a: Side, b: Side, words: Words) -> list[StaticSection]:
    """Compare the runs of B with those of A, each one or more."""
    made = compare([_measured(run) for run in a], [_measured(run) for run in b])
    several = len(a) > 1 or len(b) > 1
    told = words("compare.js.changes_several", a=len(a), b=len(b)) if several else words("compare.js.changes_one_each")
    happened = words("compare.js.happened_several" if several else "compare.js.happened_text")
    verdict = verdict_sentences(made.comparability, words)
    ids = [run["run_id"] for run in (*a, *b) if run["run_id"]]
    if len(set(ids)) < len(ids):
        verdict.append(("warning", words("compare.js.twice")))
    headline = headline_sentence(made.headline, made.values, words)
    sections: tuple[tuple[str, list[tuple[str, str]], list[StaticTable]], ...] = (
        ("sides", [], [_sides(a, b, words)]),
        ("verdict", verdict, []),
        ("short", [("", headline), ("", words("compare.js.short_text"))], []),
        ("differences", [], list(_differences(made.comparability, words))),
        ("changes", [("", told)], [_changes(made, words)]),
        ("distributions", [], list(_distributions(a, b, words))),
        ("where", [("", words("compare.js.where_text"))], list(_cuts(a, b, words))),
        ("happened", [("", happened)], [_happened(a, b, words)]),
    )
    return [StaticSection(name, words(f"compare.js.{name}"), said, tables) for name, said, tables in sections]


def _measured(run: dict[str, Any]) -> MeasuredRun:
    names = ("requested", "resolved", "conditions", "tags", "predicted", "whole")
    conditions = RunConditions(**{name: run[name] for name in names}, recorded_ns=1000 * run["recorded_us"])
    return MeasuredRun(conditions, run["values"], run["memory_scope"])


def _heads(words: Words, *first: str) -> list[tuple[str, bool]]:
    plain = [(words(f"compare.js.{name}"), False) for name in first]
    return [*plain, *((words(f"compare.js.{name}"), True) for name in ("head_a", "head_b", "change"))]


def _sides(a: Side, b: Side, words: Words) -> StaticTable:
    heads = [(words(f"compare.js.{name}"), False) for name in ("side", "run", "model", "recorded", "recording")]
    rows = [
        [
            [f"{letter} {words(f'compare.js.{role}')}"],
            [run["name"]],
            [run["model"]],
            [run["recorded"]],
            [words(f"compare.js.{'whole' if run['whole'] else 'not_whole'}")],
        ]
        for letter, role, side in (("A", "baseline", a), ("B", "candidate", b))
        for run in side
    ]
    return StaticTable(words("compare.js.sides_caption", a=len(a), b=len(b)), heads, rows)


# What differs --------------------------------------------------------------------------------------------------------


def _differences(found: Comparability, words: Words) -> Iterator[StaticTable]:
    if found.settings:
        names = ("requested_a", "requested_b", "resolved_a", "resolved_b")
        heads = [(words(f"compare.js.{name}"), False) for name in ("setting", *names, "role")]
        mixed = f" {words('compare.js.mixed')}"
        rows = [
            [
                [setting.name],
                *([getattr(setting, name) or formats.UNKNOWN] for name in names),
                [words(f"compare.js.role_{setting.role}") + (mixed if setting.mixed else "")],
            ]
            for setting in found.settings
        ]
        yield StaticTable(words("compare.js.settings_caption"), heads, rows)
    if found.tags:
        heads = [(words(f"compare.js.{name}"), False) for name in ("tag", "head_a", "head_b")]
        yield StaticTable(words("compare.js.tags_caption"), heads, [[[t.name], [t.a], [t.b]] for t in found.tags])
    for state in ("differs", "unknown", "same"):
        facts = [fact for fact in found.conditions if fact.state == state]
        if facts:
            yield _conditions(facts, words(f"compare.js.conditions_{'differ' if state == 'differs' else state}"), words)


def _conditions(facts: Sequence[ComparedFact], caption: str, words: Words) -> StaticTable:
    heads = [(words(f"compare.js.{name}"), False) for name in ("condition", "category", "head_a", "head_b", "state")]
    rows = [
        [
            [fact.name],
            [words(f"compare.js.category_{fact.category}")],
            [formats.UNKNOWN if fact.a is None else fact.a],
            [formats.UNKNOWN if fact.b is None else fact.b],
            [words(f"compare.js.state_{'mixed' if fact.mixed else fact.state}")],
        ]
        for fact in facts
    ]
    return StaticTable(caption, heads, rows)


# What changed --------------------------------------------------------------------------------------------------------


def _changes(made: Comparison, words: Words) -> StaticTable:
    groups = {metric.id: group.id for group in GROUPS for metric in group.metrics}
    rows: list[list[Cell]] = []
    for group, values in groupby(made.values, lambda value: groups[value.value.metric.id]):
        rows += [[[words(f"group.{group}")]], *(_change(value, words) for value in values)]
    heads = [*_heads(words, "metric", "statistic"), (words("compare.js.percent"), True)]
    heads += [(words(f"compare.js.{name}"), False) for name in ("direction", "judged")]
    return StaticTable(words("compare.js.changes_caption"), heads, rows)


def _change(value: ComparedValue, words: Words) -> list[Cell]:
    found, unit = value.judgement, value.value.unit
    shown = "" if unit in ("", "bytes", "%") else f" {unit}"
    difference = [signed(unit, found.difference)]
    if found.low is not None:
        difference.append(words("compare.js.interval", low=signed(unit, found.low), high=signed(unit, found.high)))
    return [
        [f"{words(value.value.label_key)}{shown}"],
        [value.value.statistic],
        _values(unit, value.a, found.mean_a),
        _values(unit, value.b, found.mean_b),
        difference,
        [percent(found.change)],
        [words(f"compare.js.{value.direction}") if value.direction else formats.UNKNOWN],
        [judged_text(found, len(value.a), len(value.b), words)],
    ]


def _values(unit: str, values: Sequence[float | None], mean: float | None) -> Cell:
    """The mean of a side, and the range of its runs where there are several."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return [amount(unit, mean)]
    low, high = amount(unit, min(known)), amount(unit, max(known))
    return [amount(unit, mean), f"{low} \N{EN DASH} {high}, n={len(known)}"]


# What lies behind ----------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _distributions(a: Side, b: Side, words: Words) -> Iterator[StaticTable]:
    for metric in LATENCIES:
        left, right = ([run["curves"][metric.id] for run in side if run["curves"][metric.id]] for side in (a, b))
        if not left or not right:
            continue
        rows = []
        for probability in PERCENTILES:
            at = min(range(len(CURVE_PROBABILITIES)), key=lambda i: abs(CURVE_PROBABILITIES[i] - probability))
            ends = (_mean([curve[at] for curve in side]) for side in (left, right))
            rows.append([[_percentile(probability, words)], *_amounts(metric.unit, *ends)])
        label = words(f"metric.{metric.id}.label")
        caption = words("compare.js.distribution_table", metric=label)
        yield StaticTable(f"{caption}, {metric.unit}", _heads(words, "percentile"), rows)


def _percentile(probability: float, words: Words) -> str:
    if probability in (0, 1):
        return words(f"compare.js.{'largest' if probability else 'smallest'}")
    return f"p{formats.number(100 * probability)}"


def _amounts(unit: str, a: float | None, b: float | None) -> list[Cell]:
    return [[amount(unit, a)], [amount(unit, b)], [signed(unit, _difference(a, b))]]


def _cuts(a: Side, b: Side, words: Words) -> Iterator[StaticTable]:
    for name in ("ttft", "gap"):
        pooled = {part: [_pooled(side, name, part) for side in (a, b)] for part in ("all", "slow")}
        if not all(cut["n"] for cut in pooled["all"]):
            continue
        counts = [formats.number(cut["n"]) for cut in pooled["all"]]
        heads = [(words("compare.js.piece"), False)]
        for part in ("all", "slow"):
            heads += [(f"{words(f'compare.js.where_{part}')}: {head}", True) for head, _ in _heads(words)]
        used = [piece for piece in PIECES if any(cut["pieces"].get(piece) for cut in pooled["all"])]
        rows = [[[words(f"piece.{piece}")], *_cut_cells(pooled, piece)] for piece in used]
        rows.append([[words("compare.js.where_sum")], *_cut_cells(pooled, None)])
        caption = words(f"compare.js.where_{name}_caption", n_a=counts[0], n_b=counts[1])
        yield StaticTable(caption, heads, rows)


def _pooled(side: Side, name: str, part: str) -> dict[str, Any]:
    cuts = [run["cuts"][name][part] for run in side]
    pieces = {piece: sum(cut["pieces"].get(piece, 0) for cut in cuts) for piece in PIECES}
    return {"n": sum(cut["n"] for cut in cuts), "total_ns": sum(cut["total_ns"] for cut in cuts), "pieces": pieces}


def _cut_cells(pooled: dict[str, list[dict[str, Any]]], piece: str | None) -> Iterator[Cell]:
    """Milliseconds of the mean value of each part; of all pieces together for no piece."""
    for cuts in pooled.values():
        known = all(cut["n"] for cut in cuts) and (piece is None or any(cut["pieces"][piece] for cut in cuts))
        sums = [cut["total_ns"] if piece is None else cut["pieces"][piece] for cut in cuts]
        means = [ns / cut["n"] for ns, cut in zip(sums, cuts, strict=True)] if known else [None, None]
        a, b = means
        change = _difference(a, b)
        yield [amount("ms", None if a is None else a / 1e6)]
        yield [amount("ms", None if b is None else b / 1e6)]
        yield [signed("ms", None if change is None else change / 1e6)]


def _happened(a: Side, b: Side, words: Words) -> StaticTable:
    rows: list[list[Cell]] = []
    for name, kind in HAPPENED.items():
        label = words(f"event.{kind.name}")
        for measure, unit, scale in (("count", "", 1.0), ("bytes", "bytes", 1.0), ("duration_ns", "ms", 1e-6)):
            ends = [_mean([run["happened"][name][measure] for run in side]) for side in (a, b)]
            if measure != "count" and not any(ends):
                continue
            told = label if measure == "count" else words(f"compare.js.event_{measure}", what=label)
            ends = [None if end is None else end * scale for end in ends]
            rows.append(_happened_row(told, unit, "count" if measure == "count" else "amount", ends, words))
    for metric in COUNTS:
        ends = [_mean([run["values"][metric] for run in side]) for side in (a, b)]
        rows.append(_happened_row(words(f"metric.{metric}.label"), "", METRICS[metric].change, ends, words))
    heads = [*_heads(words, "what"), (words("compare.js.direction"), False)]
    return StaticTable(words("compare.js.happened_caption"), heads, rows)


def _happened_row(label: str, unit: str, kind: Change, ends: Sequence[float | None], words: Words) -> list[Cell]:
    a, b = ends
    change = _difference(a, b)
    word = formats.UNKNOWN if change is None else words(f"compare.js.{direction_word(kind, change)}")
    shown = (amount(unit, a), amount(unit, b), signed(unit, change))
    return [[label], *([with_unit(unit, text)] for text in shown), [word]]
