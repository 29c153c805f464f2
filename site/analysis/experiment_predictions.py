"""Settings of an experiment that were predicted, which of them is worth running next, and what was measured of them.

Predictions are no runs: nothing here enters a statistic or a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cbtrace.site.analysis.experiment import ExperimentRuns, Variant, planned_text
from cbtrace.site.analysis.experiment_effects import THROUGHPUT
from cbtrace.site.analysis.experiment_slos import Slo, latency_limits, slos_of
from cbtrace.site.analysis.experiment_variables import Variable, as_number
from cbtrace.traces.predictions import PredictedSetting, Predictions, Values

COUNTS = ("soft_resets", "offloads", "graph_captures")
"""Values whose error is a number; that of all others is a share."""

State = Literal["worth", "misses", "no_gain", "ran", "refused"]
"""Worth running; predicted to miss an SLO on a latency; to give no more throughput; a variant ran it; no numbers."""
_ORDER: tuple[State, ...] = ("worth", "ran", "misses", "no_gain", "refused")


@dataclass(frozen=True)
class Forecast:
    """One predicted setting."""

    setting: PredictedSetting
    changes: dict[str, str]
    """What it changes in the run that was replayed, as texts."""
    state: State
    missed: list[Slo]
    """Limits on latencies that it is predicted to miss."""
    mended: int
    """How many limits it keeps that the settings of the replayed run are predicted to miss."""
    variant: Variant | None
    """The variant that has run it."""
    gain: float | None
    """Throughput by that predicted for the settings of the replayed run, less 1."""

    def value(self, key: str) -> float | None:
        """A predicted value; ``None`` is unknown."""
        return (self.setting.values or {}).get(key)


def forecasts(runs: ExperimentRuns) -> list[Forecast]:
    """All of them: those worth running first, those that keep more of the limits and then the largest gain first.

    Worth running is what is predicted to give more throughput, or to keep a limit that the replayed run's settings
    miss, and to miss none that these keep.
    """
    predictions = runs.predictions
    if predictions is None or is_outdated(runs):
        return []
    limits = latency_limits(slos_of(runs.experiment))
    found = [_forecast(runs, setting, predictions, limits) for setting in predictions.settings]
    return sorted(found, key=_place)


def _place(it: Forecast) -> tuple[int, int, float]:
    return _ORDER.index(it.state), -it.mended, -(it.gain if it.gain is not None else -math.inf)


def is_outdated(runs: ExperimentRuns) -> bool:
    """Whether the run that was replayed is not among those of the page any more, or was run anew."""
    base = next((run for variant in runs.variants for run in variant.runs if _is_base(runs, run.entry.id)), None)
    if runs.predictions is None or base is None or base.traced is None:
        return runs.predictions is not None
    return base.traced.summary.run_id != runs.predictions.base_run_id


@dataclass(frozen=True)
class Since:
    """Runs of the base's workload that are there now, and how many of them came, or were run anew, since it was
    learned how long steps take."""

    now: int
    new: int


def since_learned(runs: ExperimentRuns, predictions: Predictions) -> Since:
    """Count them."""
    base = next(variant for variant in runs.variants if any(_is_base(runs, run.entry.id) for run in variant.runs))
    known = predictions.considered or dict.fromkeys(predictions.learned_from, "")
    ids = {
        run.entry.id: run.traced.summary.run_id
        for variant in runs.variants
        if (variant.entry.kind, variant.entry.workload) == ("continuous", base.entry.workload)
        for run in variant.measured
        if run.traced is not None
    }
    return Since(len(ids), sum(name not in known or known[name] not in ("", run_id) for name, run_id in ids.items()))


def _is_base(runs: ExperimentRuns, run_id: str) -> bool:
    return runs.predictions is not None and run_id == runs.predictions.base


def _forecast(runs: ExperimentRuns, setting: PredictedSetting, predictions: Predictions, limits: list[Slo]) -> Forecast:
    changes = {key: planned_text(value) for key, value in setting.changes.items()}
    values = setting.values or {}
    before, after = predictions.own.get(THROUGHPUT), values.get(THROUGHPUT)
    gain = after / before - 1 if before and after is not None else None
    missed, missed_before = _missed(limits, values), _missed(limits, predictions.own)
    mended = sum(slo not in missed for slo in missed_before)
    variant = _variant_of(runs, changes)
    state: State = "worth"
    if setting.values is None:
        state = "refused"
    elif variant is not None:
        state = "ran"
    elif any(slo not in missed_before for slo in missed):
        state = "misses"
    elif not mended and (gain is None or gain <= 0):
        state = "no_gain"
    return Forecast(setting, changes, state, missed, mended, variant, gain)


def _missed(limits: list[Slo], values: Values) -> list[Slo]:
    return [slo for slo in limits if (value := values.get(slo.metric)) is not None and value > slo.limit]


def _variant_of(runs: ExperimentRuns, changes: dict[str, str]) -> Variant | None:
    """The variant with runs that count whose changes of the baseline are these, and no others."""
    for variant in runs.variants:
        if variant.measured and variant is not runs.baseline and _all_changes(runs, variant) == _as_numbers(changes):
            return variant
    return None


def belongs_to(runs: ExperimentRuns, forecast: Forecast, variable: Variable) -> bool:
    """Whether it is one more value of the variable, with everything else as where the others start from."""
    start = _all_changes(runs, variable.start.variant) | {variable.name: ""}
    return variable.name in forecast.changes and _as_numbers(forecast.changes | {variable.name: ""}) == start


def _all_changes(runs: ExperimentRuns, variant: Variant) -> dict[str, str | float]:
    """What a variant changes in the baseline, directly or by the variants that it was made from."""
    changes: dict[str, str] = {}
    at: Variant | None = variant
    seen: set[str] = set()
    while at is not None and at.name not in seen:
        seen.add(at.name)
        changes = {key: planned_text(value) for key, value in at.entry.changes.items()} | changes
        at = runs.parent(at)
    return _as_numbers(changes)


def _as_numbers(changes: dict[str, str]) -> dict[str, str | float]:
    """Equal values are equal, however they were written."""
    return {
        key: number if (number := as_number(value)) is not None else value.lower() for key, value in changes.items()
    }


def band(predictions: Predictions, key: str, value: float) -> tuple[float, float] | None:
    """Between which values it may lie by the error of the predictions; ``None`` where that is not known."""
    error = predictions.errors.get(key)
    if error is None:
        return None
    off = abs(error) if key in COUNTS else abs(error * value)
    return max(0.0, value - off), value + off
