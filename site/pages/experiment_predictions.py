"""Predicted settings of an experiment: which to run next, what they would do, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import ExperimentRun, ExperimentRuns
from cbtrace.site.analysis.experiment_effects import MEMORY, SPEED, THROUGHPUT
from cbtrace.site.analysis.experiment_predictions import (
    COUNTS,
    Forecast,
    band,
    belongs_to,
    forecasts,
    is_outdated,
    since_learned,
)
from cbtrace.site.analysis.experiment_variables import Variable, as_number
from cbtrace.site.pages.experiment_effects import slo_label, value_label, value_text
from cbtrace.site.pages.experiment_verdicts import ValueColumn, value_columns
from cbtrace.site.words import Words
from cbtrace.traces.predictions import Predictions

KEYS = (*SPEED, "soft_resets")
_KEPT = 0.9
"""Share of new predictions that keep the error of many runs; of few, the largest error of n is kept by n in n + 1."""
_DOUBTS = 3
"""Doubts of a prediction that are told."""


@dataclass(frozen=True)
class ForecastCell:
    """One predicted number."""

    value: str
    change: str
    """From what is predicted for the settings of the replayed run."""
    measured: str
    """Median of the runs of the same setting; empty where nobody ran it."""


@dataclass(frozen=True)
class ForecastRow:
    """One predicted setting."""

    label: str
    """By which charts call it: ``P1``."""
    setting: str
    state: str
    state_text: str
    cells: list[ForecastCell]
    memory: str
    """Of the device, as the engine's model reckons; a dash where it is not known."""
    notes: list[str]


@dataclass(frozen=True)
class ForecastSection:
    """All of them; without rows there are none, and ``intro`` says why."""

    intro: str
    stale: str
    """That runs came since; empty where none did."""
    error: str
    memory: str
    """What the memory reckoned is worth; empty where it is not known."""
    columns: list[ValueColumn]
    errors: list[str]
    """Of each column, memory the last: ``± 12 %``. So are the following two."""
    own: list[str]
    """Predicted for the settings of the replayed run."""
    measured: list[str]
    """Measured in that run."""
    base: str
    rows: list[ForecastRow]


def forecast_section(runs: ExperimentRuns, words: Words) -> ForecastSection:
    """The section of predicted settings."""
    predictions, found = runs.predictions, forecasts(runs)
    if predictions is None or not found:
        return ForecastSection(_why_none(runs, words), "", "", "", [], [], [], [], "", [])
    base = next(run for variant in runs.variants for run in variant.runs if run.entry.id == predictions.base)
    learned, since = len(predictions.learned_from), since_learned(runs, predictions)
    error = "error" if any(value is not None for value in predictions.errors.values()) else "no_error"
    return ForecastSection(
        intro=words("experiment.predicted.intro", base=predictions.base, runs=learned),
        stale=words("experiment.predicted.stale", learned=learned, new=since.new, now=since.now) if since.new else "",
        error=words(f"experiment.predicted.{error}", share=formats.percent(min(_KEPT, learned / (learned + 1)))),
        memory=_memory(predictions, base, words),
        columns=value_columns(KEYS, words),
        errors=[*(_error(predictions, key) for key in KEYS), formats.UNKNOWN],
        own=[*(value_text(key, predictions.own.get(key)) for key in KEYS), formats.size(predictions.own_memory_bytes)],
        measured=[value_text(key, base.value(key)) for key in (*KEYS, MEMORY)],
        base=predictions.base,
        rows=[_row(forecast, number, predictions, words) for number, forecast in enumerate(found, 1)],
    )


def _memory(predictions: Predictions, base: ExperimentRun, words: Words) -> str:
    own, measured = predictions.own_memory_bytes, base.value(MEMORY)
    if own is None or measured is None:
        return ""
    return words(
        "experiment.predicted.memory_text",
        own=formats.size(own),
        measured=formats.size(measured),
        base=predictions.base,
    )


def _why_none(runs: ExperimentRuns, words: Words) -> str:
    if runs.unread_predictions:
        return words("experiment.predicted.unread", text=runs.unread_predictions)
    return words(f"experiment.predicted.{'outdated' if is_outdated(runs) else 'none'}")


def _error(predictions: Predictions, key: str) -> str:
    error = predictions.errors.get(key)
    if error is None:
        return formats.UNKNOWN
    return f"\N{PLUS-MINUS SIGN}{formats.number(abs(error)) if key in COUNTS else formats.percent(abs(error))}"


def _row(forecast: Forecast, number: int, predictions: Predictions, words: Words) -> ForecastRow:
    slos = ", ".join(slo_label(slo, words) for slo in forecast.missed)
    variant = forecast.variant.name if forecast.variant is not None else ""
    return ForecastRow(
        label=f"P{number}",
        setting=setting_text(forecast),
        state=forecast.state,
        state_text=words(f"experiment.predicted.state.{forecast.state}", slos=slos, variant=variant),
        cells=[_cell(forecast, key, predictions, words) for key in KEYS],
        memory=formats.size(forecast.setting.memory_bytes),
        notes=list(_notes(forecast, slos, words)),
    )


def _notes(forecast: Forecast, slos: str, words: Words) -> Iterator[str]:
    if forecast.setting.refused:
        yield forecast.setting.refused
    if slos and forecast.state not in ("misses", "refused"):
        yield words("experiment.predicted.state.misses", slos=slos)
    for doubt in forecast.setting.doubts[:_DOUBTS]:
        yield words("experiment.predicted.beyond", doubt=doubt)


def setting_text(forecast: Forecast) -> str:
    """``num_blocks=96, safety_margin=0.0``."""
    return ", ".join(f"{key}={value}" for key, value in forecast.changes.items())


def _cell(forecast: Forecast, key: str, predictions: Predictions, words: Words) -> ForecastCell:
    value, before = forecast.value(key), predictions.own.get(key)
    runs = forecast.variant.values(key) if forecast.variant is not None else []
    measured = value_text(key, statistics.median(runs)) if runs else ""
    return ForecastCell(
        value=value_text(key, value),
        change=_share(value / before - 1) if before and value is not None and key not in COUNTS else "",
        measured=words("experiment.predicted.measured", value=measured) if measured else "",
    )


def _share(share: float) -> str:
    sign = "+" if share > 0 else "\N{MINUS SIGN}" if share < 0 else "\N{PLUS-MINUS SIGN}"
    return f"{sign}{formats.percent(abs(share))}"


def forecast_answer(runs: ExperimentRuns, words: Words) -> str:
    """The settings worth running next with their gains, in a line; empty where none is predicted to be."""
    worth = [it for it in forecasts(runs) if it.state == "worth"]
    told = [f"{setting_text(it)} ({value_label(THROUGHPUT, words)} {_share(it.gain or 0.0)})" for it in worth[:_DOUBTS]]
    return words("experiment.predicted.answer", settings="; ".join(told)) if told else ""


# Charts --------------------------------------------------------------------------------------------------------------


def variable_forecasts(runs: ExperimentRuns, variable: Variable, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Predicted values of one variable, each with its values and bands in the order of ``keys``."""
    found = [it for it in forecasts(runs) if belongs_to(runs, it, variable) and it.setting.values is not None]
    return [
        {
            "label": it.changes[variable.name],
            "values": [it.value(key) for key in keys],
            "bands": [_band(runs, it, key) for key in keys],
        }
        for it in found
    ]


def value_labels(labels: Sequence[str], predicted: Sequence[str]) -> list[str]:
    """All values of a variable in order: those that ran as they come, and predicted ones among them where all are
    numbers, else behind them."""
    every = list(dict.fromkeys((*labels, *predicted)))
    numbers = {label: as_number(label) for label in every}
    if predicted and all(number is not None for number in numbers.values()):
        return sorted(every, key=lambda label: numbers[label] or 0.0)
    return every


def front_forecasts(runs: ExperimentRuns, latency: str) -> list[dict[str, Any]]:
    """Predicted points of throughput against a latency, with the ends of their bands."""
    rows = []
    for number, it in enumerate(forecasts(runs), 1):
        throughput, slow = it.value(THROUGHPUT), it.value(latency)
        if throughput is not None and slow is not None:
            x, y = (
                _band(runs, it, key) or [value, value] for key, value in ((THROUGHPUT, throughput), (latency, slow))
            )
            rows.append(
                {
                    "number": f"P{number}",
                    "worth": it.state == "worth",
                    "throughput": throughput,
                    "latency": slow,
                    "ends": [*x, *y],
                }
            )
    return rows


def _band(runs: ExperimentRuns, forecast: Forecast, key: str) -> list[float] | None:
    value = forecast.value(key)
    if runs.predictions is None or value is None:
        return None
    found = band(runs.predictions, key, value)
    return None if found is None else list(found)
