"""Runs an experiment: each run in a fresh process, one failing run does not stop the others, and it can be resumed.

The folder of an experiment holds::

    experiment.json     the plan as understood, and what became of each run (cbtrace.traces.experiment)
    runs/RUN.cbt        the trace of each run
    logs/RUN.log        what its process printed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cbtrace.recorder.experiments.estimate import longest_s, remaining_s, runs_left
from cbtrace.recorder.experiments.experiment_folder import (
    LOGS,
    RUNS,
    make_folder,
    readable,
    working_in,
    writing_in,
)
from cbtrace.recorder.experiments.job import Report
from cbtrace.recorder.experiments.make_job import make_job
from cbtrace.recorder.experiments.places import Place, Seat, Task, ThisMachine
from cbtrace.recorder.experiments.plan_spec import BASELINE, Plan
from cbtrace.recorder.experiments.process import Ending
from cbtrace.recorder.experiments.run_checks import RunChecks
from cbtrace.recorder.experiments.stages import PlannedVariant, check_pins, variants_of
from cbtrace.recorder.experiments.take_up import plan_again, take_up
from cbtrace.recorder.experiments.time_budget import TimeBudget
from cbtrace.traces.errors import CbtraceError, declare
from cbtrace.traces.experiment import Experiment, RunEntry, write_experiment
from cbtrace.traces.reader import Trace, open_trace
from cbtrace.traces.schema import EventKind, Facts, Severity

MOST_RETRIES = 2
"""How often a run is begun again after its machine or worker was lost."""


News = Literal["begins", "goes on", "ended", "again"]
"""``again``: the machine of a run was lost, or is not like the others, and the run will be begun again."""


@dataclass(frozen=True)
class Progress:
    """How far an experiment is."""

    news: News
    run: RunEntry
    number: int
    """Which of the runs this is, from 1."""
    total: int
    left_s: float | None
    """Seconds until the end, as the runs so far let expect, if as many run at once as now; ``None`` while that is not
    known."""
    report: Report | None = None
    """What a run that goes on has just said."""
    where: str = ""
    """What a person calls the machine that it is on; empty for this one."""


class Copy(Protocol):
    """Another place that an experiment is kept in, beside its folder."""

    def bring(self, folder: Path) -> None:
        """Before anything is read: bring the folder to the state of the copy, or the copy to that of the folder."""

    def save(self, folder: Path, run: RunEntry | None) -> None:
        """Take over ``experiment.json``, and before it the files of a run that has ended."""


class Runner:
    """Runs what is left of an experiment.

    Args:
        plan: what to run.
        plan_folder: what file names in the plan are relative to.
        folder: the experiment's folder; a folder that holds an experiment of the same plan is taken up again.
        mix: let runs of different software or hardware into one experiment.
        retry_failed: run failed runs again, too.
        max_time_s: start no run that would not end within so many seconds, going by the runs of its variant so far, or
            else by the longest of all. What is left stays planned.
        on_progress: told before and after each run, and while it goes on.
        place: where runs are executed; this machine if not given.
        copy: where the experiment is kept besides.
    """

    experiment: Experiment
    """As it is; there is one as soon as :meth:`run` has read the folder."""

    def __init__(
        self,
        plan: Plan,
        plan_folder: Path,
        folder: Path,
        *,
        mix: bool = False,
        retry_failed: bool = False,
        max_time_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        place: Place | None = None,
        copy: Copy | None = None,
    ) -> None:
        self.folder = folder
        self.out_of_time = False
        """Whether runs are left because there was no time for them."""
        self._plan = plan
        self._plan_folder = plan_folder
        self._mix = mix
        self._retry_failed = retry_failed
        self._max_time_s = max_time_s
        self._on_progress = on_progress or (lambda _progress: None)
        self._place = place or ThisMachine(plan.time_limits)
        self._copy = copy
        self._variants = {variant.name: variant for variant in variants_of(plan)}

    def run(self) -> Experiment:
        """Run all that is left; return the experiment.

        Raises:
            KeyboardInterrupt: it was interrupted; what was recorded is there, and runs under way will be repeated.
            CbtraceError: the folder holds something else, another plan, or a runner is at work in it; conditions are
                not those of the runs before; or there is nowhere left to run anything.
        """
        self._budget = None if self._max_time_s is None else TimeBudget(self._max_time_s)
        make_folder(self.folder)
        with working_in(self.folder):
            if self._copy is not None:
                self._copy.bring(self.folder)
            self.experiment = take_up(self._plan, self.folder, retry_failed=self._retry_failed)
            self._checks = RunChecks(self.experiment, self.folder, self._plan, self._variants)
            self._save()
            with closing(self._place.run_all(self.experiment, self._begin, self._heard)) as endings:
                for task, ending in endings:
                    self._end(task, ending)
        left = len(runs_left(self.experiment))
        if left and not self.out_of_time:
            raise CbtraceError(
                f"No machine is left to run on, with {left} of {len(self.experiment.runs)} runs to come: what is done "
                "is kept, and the same command goes on.",
                slug="no-machine-left",
            )
        return self.experiment

    def _save(self, ended: RunEntry | None = None) -> None:
        with writing_in(self.folder):
            write_experiment(self.experiment, self.folder)
        if self._copy is not None:
            self._copy.save(self.folder, ended)

    def _tell(self, news: News, run: RunEntry, report: Report | None = None, where: str = "") -> None:
        runs = self.experiment.runs
        left_s = remaining_s(self.experiment)
        if left_s is not None:
            left_s /= max(1, sum(other.status == "running" for other in runs) + (news == "ended"))
        self._on_progress(Progress(news, run, runs.index(run) + 1, len(runs), left_s, report, where))

    # What is next ----------------------------------------------------------------------------------------------------

    def _begin(self, seat: Seat) -> Task | None:
        """The next run that may go to a seat now; it is under way then."""
        for run in self.experiment.runs:
            if run.status != "planned" or not seat.takes(run) or not self._ready(run):
                continue
            variant = self._variants[run.variant]
            if obstacle := self._obstacle(variant):
                run.status, run.text = "skipped", obstacle
                self._save()
                self._tell("ended", run)
                continue
            if self._budget is not None and not self._budget.allows(longest_s(self.experiment, run)):
                self.out_of_time = True
                return None
            return self._task(run, variant, seat)
        return None

    def _task(self, run: RunEntry, variant: PlannedVariant, seat: Seat) -> Task:
        self._tell("begins", run, where=seat.shown)
        run.trace = f"{RUNS}/{run.id}.cbt"
        job = make_job(self._plan, run, variant, self._resolved() or {})
        job.plan_folder, job.trace = str(self._plan_folder.absolute()), str((self.folder / run.trace).absolute())
        job.conditions = {} if self._mix else self.experiment.conditions
        run.status, run.settings = "running", dict(job.settings)
        run.started_ns, run.machine = time.time_ns(), seat.machine
        self._save()
        return Task(run, job, self.folder / LOGS / f"{run.id}.log", seat)

    def _ready(self, run: RunEntry) -> bool:
        """Whether what a run rests on is known: the conditions of the first run, which it must share, and what the
        baseline resolved."""
        runs = self.experiment.runs
        if not (self._mix or self.experiment.conditions) and any(other.status == "running" for other in runs):
            return False
        earlier = runs[: runs.index(run)] if self._variants[run.variant].needs_baseline else []
        return not any(other.variant == BASELINE and other.status in ("planned", "running") for other in earlier)

    def _obstacle(self, variant: PlannedVariant) -> str:
        """Why a variant is not run; empty when it is."""
        return self._lacking_device(variant) or check_pins(variant, self._resolved())

    def _lacking_device(self, variant: PlannedVariant) -> str:
        if variant.needs == "cuda" and self._plan.model.device == "cpu":
            return "It needs CUDA, and the plan's device is the CPU."
        if variant.needs == "cuda" and self.experiment.conditions.get("hardware.gpu.count") == 0:
            return "It needs CUDA, which this machine does not have."
        return ""

    def _skip_what_lacks_a_device(self) -> None:
        """As soon as that is known, so that nobody waits for such runs."""
        for run in self.experiment.runs:
            if run.status == "planned" and (obstacle := self._lacking_device(self._variants[run.variant])):
                run.status, run.text = "skipped", obstacle

    def _resolved(self) -> Facts | None:
        """What the engine of the first finished run of the baseline resolved its settings to."""
        for run in self.experiment.runs:
            if run.variant == BASELINE and run.status == "done":
                engines = open_trace(self.folder / run.trace).engines
                return engines[-1].resolved if engines else None
        return None

    # What became of it -----------------------------------------------------------------------------------------------

    def _heard(self, task: Task, report: Report) -> None:
        if report.conditions is not None:
            self._take_conditions(report.conditions)
        self._tell("goes on", task.run, report, task.seat.shown)

    def _end(self, task: Task, ending: Ending) -> None:
        run = task.run
        if ending.differing or (ending.lost and len(run.lost) < MOST_RETRIES):
            plan_again(run, [*run.lost, ending.lost] if ending.lost else run.lost)
            self._save()
            if ending.differing and not ending.elsewhere:
                raise CbtraceError(
                    f"This is not where the experiment began: {'; '.join(ending.differing[:3])}. Name another folder, "
                    "or allow it with --mix.",
                    slug="conditions-differ",
                )
            self._tell("again", run, where=task.seat.shown)
            return
        self._note(run, ending)
        self._save(run)
        self._tell("ended", run, where=task.seat.shown)

    def _take_conditions(self, conditions: Facts) -> None:
        if not self.experiment.conditions:
            self.experiment.conditions = conditions
            self._skip_what_lacks_a_device()

    def _note(self, run: RunEntry, ending: Ending) -> None:
        """Take over how a run ended, and check its answers."""
        experiment = self.experiment
        run.status = "done" if ending.done else "failed"
        run.failure, run.phase, run.text = ending.failure, ending.phase, ending.text
        run.seconds, run.submit_lag = round(ending.seconds, 3), ending.lag
        if ending.done:
            run.phase = ""
        if ending.lost:
            run.failure, run.text = "killed", f"It was given up after {MOST_RETRIES + 1} attempts. {ending.lost}"
        if ending.workload is not None:
            experiment.workloads[self._variants[run.variant].workload] = ending.workload
        experiment.mixed = experiment.mixed or self._mix
        trace = readable(self.folder / run.trace)
        if ending.done and (stopped := _recording_stopped(trace)):
            run.status, run.failure, run.phase, run.text = "failed", "error", "recording", stopped
        if trace is None:
            run.trace = ""
            return
        if run.status == "failed":
            run.phase = _phase_in(trace) or run.phase
        self._checks.check(run, trace)


def _recording_stopped(trace: Trace | None) -> str:
    """Why the trace of a run that went well does not hold all of it; empty when it does."""
    footer = trace.footer if trace is not None else None
    if footer is None:
        return "The run went well, and its trace has no end."
    return "" if footer.reason == "closed" else f"The run went well, and its recording stopped: {footer.reason}."


def _phase_in(trace: Trace) -> str:
    """What the trace itself says a run was at when memory ran out."""
    events = trace.events
    texts = [text for kind, text in zip(events.kind, events.text, strict=True) if kind == EventKind.OUT_OF_MEMORY]
    return texts[-1].partition(":")[0] if texts else ""


declare(
    "conditions-differ",
    Severity.BROKEN,
    "Software or hardware is not what it was when the experiment began, so its runs could not be compared.",
    "Name another folder with -o, or allow mixing with --mix; reports then say so.",
)
declare(
    "no-machine-left",
    Severity.BROKEN,
    "Every machine of the cluster that the runs could go to was lost, or is not like the one the experiment began on.",
    "Run the same command again when there are machines: only what is left is run.",
)
