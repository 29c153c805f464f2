"""What each variable of an experiment taught: how its values compare with the one that they started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cbtrace.site.analysis.compared_settings import ComparedSetting
from cbtrace.site.analysis.experiment import ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import Effect, effects
from cbtrace.site.analysis.experiment_variables import Point, Variable, followers, variables
from cbtrace.site.analysis.experiment_verdict import Verdict
from cbtrace.traces.experiment import StageEntry


@dataclass(frozen=True)
class PointResult:
    """One value of a variable against the start: the variant that all of them change."""

    point: Point
    verdict: Verdict
    """The verdict on its variant, which may be against another rival."""
    effects: list[Effect]
    """Start A, this value B; empty for the start itself."""
    followed: list[ComparedSetting]
    """What the engine changed with it."""

    def changed(self, word: str) -> list[Effect]:
        """The changes of that verdict."""
        return [effect for effect in self.effects if effect.word == word]


@dataclass(frozen=True)
class VariableResult:
    """One variable with all that was found along it."""

    variable: Variable
    points: list[PointResult]


@dataclass(frozen=True)
class StageResult:
    """One stage: its variables, and the variants that are on none."""

    stage: StageEntry
    variables: list[VariableResult]
    others: list[Verdict]


def stage_results(runs: ExperimentRuns, verdicts: Sequence[Verdict]) -> list[StageResult]:
    """The stages in order. A variable belongs to the stage of its first variant."""
    by_name = {verdict.variant.name: verdict for verdict in verdicts}
    results = [_variable(runs, variable, by_name) for variable in variables(runs)]
    placed = {point.point.variant.name for result in results for point in result.points if not point.point.start}
    return [
        StageResult(
            stage,
            [result for result in results if result.variable.stage == stage.number],
            [it for it in verdicts if it.variant.entry.stage == stage.number and it.variant.name not in placed],
        )
        for stage in sorted(runs.experiment.stages, key=lambda stage: stage.number)
    ]


def _variable(runs: ExperimentRuns, variable: Variable, verdicts: Mapping[str, Verdict]) -> VariableResult:
    start = variable.start.variant
    return VariableResult(variable, [_point(point, start, verdicts[point.variant.name]) for point in variable.points])


def _point(point: Point, start: Variant, verdict: Verdict) -> PointResult:
    if point.start:
        return PointResult(point, verdict, [], [])
    return PointResult(point, verdict, effects(start, point.variant), followers(start, point.variant))
