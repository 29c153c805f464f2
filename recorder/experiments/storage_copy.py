"""Keeps an experiment in a storage as well, so that another machine can show it or go on with it."""

from __future__ import annotations

from pathlib import Path

from cbtrace.recorder.cluster.storage import Storage
from cbtrace.recorder.experiments.experiment_folder import LOGS, writing_in
from cbtrace.traces.aside import written_aside
from cbtrace.traces.errors import CbtraceError, declare
from cbtrace.traces.experiment import EXPERIMENT_FILE, Experiment, RunEntry, decode_experiment, read_experiment
from cbtrace.traces.schema import Severity

ENDED = ("done", "failed", "skipped")


class StorageCopy:
    """The files of an experiment in a storage: the same ones as in its folder.

    Raises:
        StorageError: nothing can be written there.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._left: bytes | None = None
        """``experiment.json`` as this process left it in the storage."""
        storage.check_writable()

    def bring(self, folder: Path) -> None:
        """Bring the folder to the state of the storage, or the storage to that of the folder: whichever is further.

        Raises:
            ExperimentError: what lies in the storage is no experiment.
            StorageError: it cannot be read or written.
        """
        self._left = self._storage.read(EXPERIMENT_FILE)
        here = read_experiment(folder)
        there = None
        if self._left is not None:
            there = decode_experiment(self._left, f"{self._storage.shown}/{EXPERIMENT_FILE}")
        if there is None or (here is not None and _ended(here) >= _ended(there)):
            known = {run.id: run for run in there.runs} if there is not None else {}
            for run in here.runs if here is not None else []:
                if run.status in ENDED and run != known.get(run.id):
                    self._put(folder, run)
            return
        present = set(self._storage.names())
        with writing_in(folder):
            for run in there.runs:
                if run.status in ENDED and run.trace in present:
                    self._storage.fetch(run.trace, folder / run.trace)
            with written_aside(folder / EXPERIMENT_FILE) as aside:
                aside.write_bytes(self._left or b"")

    def save(self, folder: Path, run: RunEntry | None) -> None:
        """Write ``experiment.json``, and before it the trace and the log of a run that has ended.

        Raises:
            StorageError: it cannot be written; the folder has all of it.
            CbtraceError: another process writes there.
        """
        if self._storage.read(EXPERIMENT_FILE) != self._left:
            raise CbtraceError(
                f"Another cbtrace run writes to {self._storage.shown}: wait for it, or choose another storage.",
                slug="storage-busy",
            )
        if run is not None:
            self._put(folder, run)
        self._left = (folder / EXPERIMENT_FILE).read_bytes()
        self._storage.write(EXPERIMENT_FILE, self._left)

    def _put(self, folder: Path, run: RunEntry) -> None:
        for name in (run.trace, f"{LOGS}/{run.id}.log"):
            if name and (folder / name).is_file():
                self._storage.write(name, folder / name)


def _ended(experiment: Experiment) -> int:
    return sum(run.status in ENDED for run in experiment.runs)


declare(
    "storage-busy",
    Severity.BROKEN,
    "The experiment in the storage was changed by another process since this one wrote it.",
    "Wait for the other one to end: the same command then goes on from there.",
)
