"""The folder of an experiment: made when there is none, and worked in by one runner at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.stages import runs_of, variants_of
from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.experiment import EXPERIMENT_FILE, Experiment, ExperimentError
from cbtrace.traces.reader import Trace, open_trace
from cbtrace.traces.schema import Severity

RUNS = "runs"
LOGS = "logs"
_LOCK = ".lock"
_OURS = {RUNS, LOGS, _LOCK}
"""What a runner makes before it writes ``experiment.json``."""


def make_folder(folder: Path) -> None:
    """Make the folder of an experiment, unless it is there already.

    Raises:
        CbtraceError: it cannot be made, or holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        occupied = EXPERIMENT_FILE not in names and bool(names - _OURS)
    except OSError as error:
        raise CbtraceError(
            f"{folder} cannot be made ({error.strerror}): choose another folder with -o.", slug="output-unwritable"
        ) from error
    if occupied:
        raise UsageError(
            f"{folder} is not empty and holds no experiment: choose a new folder with -o.", slug="folder-not-empty"
        )


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """See to it that one runner at a time works in a folder; the system lets go of the lock when it dies.

    Raises:
        CbtraceError: another one does, or nothing can be written there.
    """
    with writing_in(folder):
        for name in (RUNS, LOGS):
            (folder / name).mkdir(exist_ok=True)
    try:
        import fcntl
    except ImportError:  # No such lock on Windows.
        yield
        return
    with writing_in(folder):
        file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CbtraceError(
                f"Another cbtrace run is at work in {folder}: wait for it, or choose another folder with -o.",
                slug="experiment-busy",
            ) from error
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Say in a sentence that something cannot be written: the disk is full, or the folder read-only."""
    try:
        yield
    except OSError as error:
        raise CbtraceError(
            f"{folder} cannot be written ({error.strerror}): see to that, and the same command goes on.",
            slug="output-unwritable",
        ) from error


def check_runs(experiment: Experiment, plan: Plan, folder: Path) -> None:
    """Raise :class:`ExperimentError` when ``experiment.json`` does not hold the runs of its plan."""
    planned = [(run.id, run.variant) for run in runs_of(plan, variants_of(plan))]
    if [(run.id, run.variant) for run in experiment.runs] != planned:
        raise ExperimentError(
            f"{folder / EXPERIMENT_FILE} does not hold the runs of its plan, as if it was changed by hand: "
            "name another folder with -o."
        )


def readable(path: Path) -> Trace | None:
    """The trace at ``path``; ``None`` when it cannot be read."""
    try:
        return open_trace(path)
    except CbtraceError:
        return None


declare(
    "folder-not-empty",
    Severity.BROKEN,
    "The folder for a new experiment holds other files.",
    "Name a new folder with -o.",
)
declare(
    "experiment-busy",
    Severity.BROKEN,
    "Another process runs the experiment in this folder.",
    "Wait for it to end.",
)
