"""The variables of an experiment: which settings were changed one at a time, along which values, what else moved."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from cbtrace.site.analysis.comparability import compare_conditions
from cbtrace.site.analysis.compared_settings import ComparedSetting
from cbtrace.site.analysis.experiment import ExperimentRuns, Variant, planned_text

BATCHING = "batching"
WORKLOAD = "workload"


@dataclass(frozen=True)
class Point:
    """One value of a variable."""

    variant: Variant
    value: str
    """What the engine worked with if a trace tells, else what was planned; empty when neither is known."""
    at: float | None
    """The same as a number, if it is one."""
    start: bool
    """It is the setting that the others change."""


@dataclass(frozen=True)
class Variable:
    """One setting, changed from one starting point, with everything else as planned."""

    name: str
    stage: int
    points: list[Point]
    """By value, from small to large; those without an order come in the order of the plan."""

    @property
    def start(self) -> Point:
        """Where the others start from."""
        return next(point for point in self.points if point.start)


def variables(runs: ExperimentRuns) -> list[Variable]:
    """All variables: the variants that change one setting of the same variant, with that one among them."""
    found: dict[tuple[str, str], list[Variant]] = {}
    for variant in runs.variants:
        name = single_change(variant)
        if name is not None and runs.parent(variant) is not None:
            found.setdefault((variant.entry.based_on, name), []).append(variant)
    return [_variable(runs, name, members) for (_, name), members in found.items()]


def single_change(variant: Variant) -> str | None:
    """The one setting that a variant changes; ``None`` when it changes none, several, the workload or the batching."""
    changes = list(variant.entry.changes)
    if len(changes) != 1 or changes[0] in (BATCHING, WORKLOAD) or variant.entry.kind == "static":
        return None
    return changes[0]


def _variable(runs: ExperimentRuns, name: str, members: list[Variant]) -> Variable:
    parent = runs.parent(members[0])
    points = [_point(name, variant, start=False) for variant in members if variant is not parent]
    if parent is not None:
        points.insert(0, _point(name, parent, start=True))
    if all(point.at is not None for point in points):
        points.sort(key=lambda point: (point.at or 0.0, not point.start))
    return Variable(name, members[0].entry.stage, points)


def _point(name: str, variant: Variant, *, start: bool) -> Point:
    value = value_of_setting(variant, name)
    return Point(variant, value, as_number(value), start)


def value_of_setting(variant: Variant, name: str) -> str:
    """The value of a setting in a variant: as resolved, else as asked for, else as planned; empty when unknown.

    Where repeats resolved different numbers, as automatic sizes do, it is the median of them.
    """
    resolved = variant.resolved(name)
    numbers = {as_number(value): value for value in resolved}
    if resolved and None not in numbers:
        return numbers[statistics.median_low(sorted(number for number in numbers if number is not None))]
    if resolved:
        return resolved[0]
    asked = next((run.entry.settings[name] for run in variant.runs if name in run.entry.settings), None)
    known = variant.entry.changes.get(name) if asked is None else asked
    return "" if known is None else planned_text(known)


def as_number(value: str) -> float | None:
    """A setting's value as a number; ``None`` when it is none."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def automatic_pins(runs: ExperimentRuns, variant: Variant) -> list[tuple[str, str]]:
    """Settings that a variant holds at the value which its parent's engine had worked out from free memory.

    Each with that value. What the plan itself gives the parent is no such setting.
    """
    parent = runs.parent(variant)
    if parent is None:
        return []
    asked = {name for run in parent.runs for name in run.entry.settings} | set(parent.entry.changes)
    return [(name, value_of_setting(variant, name)) for name in variant.entry.pinned if name not in asked]


def followers(parent: Variant, variant: Variant) -> list[ComparedSetting]:
    """Settings that the engine resolved to another value than for the parent, though the plan did not change them."""
    found = compare_conditions(parent.conditions, variant.conditions).settings if _both_ran(parent, variant) else []
    return [it for it in found if it.role == "followed" and it.name not in variant.entry.changes]


def _both_ran(one: Variant, other: Variant) -> bool:
    return bool(one.measured) and bool(other.measured)
