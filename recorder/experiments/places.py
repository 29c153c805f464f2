"""Where the runs of an experiment are executed: here, one after the other, or elsewhere, several at a time.

The runner decides which run is next and what becomes of it; a place has room for runs and says how they go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cbtrace.recorder.experiments.job import Job, Report
from cbtrace.recorder.experiments.plan_spec import TimeLimits
from cbtrace.recorder.experiments.process import Ending, RunProcess
from cbtrace.traces.experiment import Experiment, RunEntry


@dataclass(frozen=True)
class Seat:
    """Room for one run."""

    machine: str = ""
    """What ``experiment.json`` calls the machine: a digest; empty for this one."""
    shown: str = ""
    """What a person calls it."""
    takes: Callable[[RunEntry], bool] = lambda _run: True
    """Whether a run may go there."""


@dataclass(frozen=True)
class Task:
    """One run that is to be executed."""

    run: RunEntry
    job: Job
    log: Path
    """Where what its process prints is kept."""
    seat: Seat


Begin = Callable[[Seat], Task | None]
"""Gives the next run for a seat, which then is under way; ``None`` when there is none just now."""
Hear = Callable[[Task, Report], None]
"""Is told how a run goes."""
Endings = Generator[tuple[Task, Ending], None, None]


class Place(Protocol):
    """Where runs are executed."""

    def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
        """Execute runs as long as ``begin`` gives one; yield each with its ending.

        ``begin`` is asked again whenever a run has ended. Close the generator when its loop is left early: that ends,
        in good order, what is under way.

        Args:
            experiment: as it is; it tells where earlier runs went, and under which conditions.
        """


class ThisMachine:
    """One run at a time, each in a process of its own, on this machine."""

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits

    def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
        """Execute runs one after the other."""
        while (task := begin(Seat())) is not None:
            process = RunProcess(task.job, task.log, self._limits)
            with closing(process.reports()) as reports:
                for report in reports:
                    hear(task, report)
            yield task, process.ending
