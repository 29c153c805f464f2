"""``cbtrace whatif`` on the folder of an experiment: its runs are the recordings, and its page gets the predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cbtrace.traces.errors import UsageError

if TYPE_CHECKING:
    from cbtrace.commands.whatif_study import Study
    from cbtrace.traces.experiment import Experiment
    from cbtrace.traces.predictions import PredictedSetting, Predictions

_OF_THE_MODEL = ("base_run_id", "learned_from", "own", "errors", "tool_version")
"""Fields that are equal when two predictions are of one model of time."""


@dataclass(frozen=True)
class ExperimentSource:
    """The runs of an experiment that predictions can rest on, by id, the one to change first."""

    folder: Path
    traces: dict[str, Path]


def experiment_source(named: list[Path]) -> ExperimentSource | None:
    """The experiment that a command line names; ``None`` when it names traces.

    Raises:
        UsageError: a folder is named that holds no experiment, or together with something else; or no run is there.
        ExperimentError: its file cannot be read.
    """
    from cbtrace.traces.experiment import EXPERIMENT_FILE, read_experiment

    folders = [path for path in named if path.is_dir()]
    if not folders:
        return None
    [folder, *others] = folders
    if others or len(named) > 1:
        raise UsageError(f"{folder} is a folder: name one experiment's folder alone, or recordings.")
    experiment = read_experiment(folder)
    if experiment is None:
        raise UsageError(f"{folder} holds no {EXPERIMENT_FILE}: name recordings, or the folder of an experiment.")
    traces = _traces(experiment, folder)
    if not traces:
        raise UsageError(f"{folder}: no run of the baseline has ended well, so that there is nothing to replay.")
    return ExperimentSource(folder, traces)


def _traces(experiment: Experiment, folder: Path) -> dict[str, Path]:
    """Continuous runs of the baseline's workload, the baseline's first; none when that has none."""
    baseline = next((it for it in experiment.variants if not it.based_on and it.kind == "continuous"), None)
    if baseline is None:
        return {}
    alike = {it.name for it in experiment.variants if it.kind == "continuous" and it.workload == baseline.workload}
    done = [run for run in experiment.runs if run.status == "done" and run.variant in alike and run.trace]
    there = [run for run in done if (folder / run.trace).is_file()]
    there.sort(key=lambda run: run.variant != baseline.name)
    return {run.id: folder / run.trace for run in there} if there and there[0].variant == baseline.name else {}


def write_study(found: Study, source: ExperimentSource) -> tuple[Path, str]:
    """Write what was predicted for the experiment's page; return the file, and what is lost of the one that was there,
    a sentence or nothing.

    Settings that were predicted before from the same recordings stay in it.

    Raises:
        CbtraceError: it cannot be written.
    """
    from importlib.metadata import version

    from cbtrace.commands.output_file import writing
    from cbtrace.commands.whatif_study import doubts_told
    from cbtrace.traces.predictions import (
        PREDICTIONS_FILE,
        PredictedSetting,
        Predictions,
        Values,
        write_predictions,
    )

    ids = {path: run for run, path in source.traces.items()}
    settings = [
        PredictedSetting(
            dict(it.changes),
            it.values,
            doubts_told([it]),
            "" if it.refused is None else str(it.refused),
            it.memory_bytes,
        )
        for it in found.predictions
    ]
    errors: Values = {key: error for key in found.measured if (error := found.error(key)) is not None}
    predictions = Predictions(
        base=ids[found.paths[0]],
        base_run_id=found.run_ids[found.paths[0]],
        learned_from=[ids[path] for path in found.paths],
        own=found.own.values or {},
        errors=errors,
        settings=settings,
        tool_version=version("cbtrace"),
        own_memory_bytes=found.own.memory_bytes,
        considered={ids[path]: run_id for path, run_id in found.run_ids.items()},
    )
    kept, replaced = _kept(predictions, source.folder)
    predictions.settings += kept
    with writing(source.folder / PREDICTIONS_FILE):
        return write_predictions(predictions, source.folder), replaced


def _kept(new: Predictions, folder: Path) -> tuple[list[PredictedSetting], str]:
    """Of the settings in the folder, those that the same model predicted and that are not predicted anew; and what is
    lost, a sentence."""
    from cbtrace.traces.predictions import PredictionsError, read_predictions

    try:
        old = read_predictions(folder)
    except PredictionsError as error:
        return [], f"The earlier predictions are replaced, because they cannot be read: {error}"
    if old is None or not old.settings:
        return [], ""
    if any(getattr(old, name) != getattr(new, name) for name in _OF_THE_MODEL):
        return [], (
            f"Earlier predictions ({len(old.settings)}) were learned from other recordings, or by another version of "
            "cbtrace, and are replaced."
        )
    anew = [setting.changes for setting in new.settings]
    return [setting for setting in old.settings if setting.changes not in anew], ""
