"""Variables whose best value is at the edge of what was tried: the next value to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cbtrace.site.analysis.compared_settings import UNASKED
from cbtrace.site.analysis.experiment import ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import SPEED, effect
from cbtrace.site.analysis.experiment_step import Step
from cbtrace.site.analysis.experiment_variables import Point, Variable, variables
from cbtrace.site.analysis.experiment_verdict import Verdict

SHARES = ("safety_margin", "max_memory_percent", "cpu_offload_space_safety_threshold")
"""Settings that are shares of one: their next value lies half way to the end."""
FROM_MEMORY = ("num_blocks", "max_memory_percent")
"""Sizes that an engine, left to itself, makes as large as memory allows: there is nothing beyond."""
MOST_FACTOR = 4.0
WRONG = ("failed", "incomplete", "tokens_differ")
"""Rules of verdicts after which speed does not matter."""


@dataclass(frozen=True)
class _Place:
    """A point of a variable, as it stands against the point that the others start from."""

    point: Point
    at: float
    wrong: bool
    gains: list[str]
    losses: list[str]


def edges(runs: ExperimentRuns, verdicts: Sequence[Verdict]) -> Iterator[Step]:
    """A step for each variable whose best point has nothing beyond it that ran."""
    rules = {verdict.variant.name: verdict.rule for verdict in verdicts}
    for variable in variables(runs):
        step = _edge(variable, _places(variable, rules))
        if step is not None:
            yield step


def _places(variable: Variable, rules: dict[str, str]) -> list[_Place]:
    found = []
    for point in variable.points:
        if point.at is None:
            return []
        words = {key: _word(variable.start.variant, point.variant, key) for key in SPEED} if not point.start else {}
        gains, losses = ([key for key, word in words.items() if word == wanted] for wanted in ("better", "worse"))
        wrong = rules.get(point.variant.name) in WRONG
        found.append(_Place(point, point.at, wrong, gains, losses))
    return found


def _word(start: Variant, variant: Variant, key: str) -> str:
    return effect(start.values(key), variant.values(key), key).word


def _edge(variable: Variable, places: list[_Place]) -> Step | None:
    best = _best(places)
    if best is None:
        return None
    at = places.index(best)
    for upward, outside, inside in (
        (True, places[at + 1 :], places[:at]),
        (False, places[:at][::-1], places[at + 1 :]),
    ):
        if not inside or any(not place.wrong for place in outside):
            continue
        if upward and variable.name in FROM_MEMORY and _automatic(best.point.variant, variable.name):
            continue
        nearest = inside[-1] if upward else inside[0]
        if outside:
            rule, value = "between", _between(best.at, outside[0].at)
        else:
            rule, value = "edge", next_value(variable.name, best.at, nearest.at)
        if value is not None:
            return _step(rule, variable, best, value, upward)
    return None


def _automatic(variant: Variant, name: str) -> bool:
    """Whether the engine was left to choose a setting."""
    asked = [run.conditions.requested.get(name) for run in (it.traced for it in variant.measured) if run is not None]
    return any(value in UNASKED for value in asked)


def _step(rule: str, variable: Variable, best: _Place, value: float | int, upward: bool) -> Step:
    variant = best.point.variant
    numbers = {"setting": variable.name, "value": value, "edge": best.point.value}
    side = "up" if upward else "down"
    return Step(f"{rule}_{side}", variant, numbers, variant.seconds * max(1, len(variant.runs)))


def _best(places: list[_Place]) -> _Place | None:
    """The point that gains against the start and loses nothing; the start itself where all others lose.

    Of several, the one with the best median of what they gain first.
    """
    better = [place for place in places if place.gains and not place.losses and not place.wrong]
    if better:
        key = better[0].gains[0]
        rank = [effect(better[0].point.variant.values(key), place.point.variant.values(key), key) for place in better]
        wanted = 1 if rank[0].value.better == "higher" else -1
        changes = [wanted * (it.judgement.difference or 0.0) for it in rank]
        return better[changes.index(max(changes))]
    others = [place for place in places if not place.point.start and not place.wrong]
    if others and all(place.losses and not place.gains for place in others):
        return next((place for place in places if place.point.start), None)
    return None


def next_value(name: str, edge: float, inner: float) -> float | int | None:
    """The next value to try beyond ``edge``, coming from ``inner``: by the same factor again, at most fourfold.

    ``None`` where there is nothing beyond. Shares of one go half way to the end.
    """
    if name in SHARES:
        value = round((edge + (1.0 if edge > inner else 0.0)) / 2, 3)
        return value if 0.0 < value < 1.0 and value != edge else None
    if edge <= 0 or inner <= 0 or edge == inner:
        return None
    value = edge * min(max(edge / inner, 1 / MOST_FACTOR), MOST_FACTOR)
    return _like(value, edge, inner)


def _between(good: float, failed: float) -> float | int | None:
    """A value between one that ran and one that failed."""
    if good <= 0 or failed <= 0:
        return round((good + failed) / 2, 3)
    return _like(math.sqrt(good * failed), good, failed)


def _like(value: float, *others: float) -> float | int | None:
    """``value`` as a whole number where the others are; ``None`` when it is then one of them."""
    if not all(other.is_integer() for other in others):
        return round(value, 3)
    whole = round(value)
    return whole if whole > 0 and whole not in others else None
