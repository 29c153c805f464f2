"""Runs an experiment: each run in a fresh process, one failing run does not stop the others, and it can be resumed.

The folder of an experiment holds::

    experiment.json     the plan as understood, and what became of each run (cbtrace.traces.experiment)
    runs/RUN.cbt        the trace of each run
    logs/RUN.log        what its process printed
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from cbtrace.recorder.experiments.correctness import Answers, answers_of, check_run, compare_with
from cbtrace.recorder.experiments.job import Job, Report
from cbtrace.recorder.experiments.plan import BASELINE, Plan
from cbtrace.recorder.experiments.process import Ending, RunProcess
from cbtrace.recorder.experiments.stages import (
    STAGES,
    PlannedVariant,
    check_pins,
    plan_as_data,
    plan_digest,
    runs_of,
    variants_of,
)
from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.experiment import Experiment, RunEntry, read_experiment, write_experiment
from cbtrace.traces.reader import Trace, open_trace
from cbtrace.traces.schema import EventKind, Facts, Severity

RUNS = "runs"
LOGS = "logs"
_LEFT = ("planned", "running")


@dataclass(frozen=True)
class Progress:
    """How far an experiment is, before a run begins or after it has ended."""

    run: RunEntry
    number: int
    """Which of the runs this is, from 1."""
    total: int
    left_s: float | None
    """Seconds until the end, as the runs so far let expect; ``None`` while that is not known."""
    report: Report | None = None
    """What the run under way has just said."""


class Runner:
    """Runs what is left of an experiment.

    Args:
        plan: what to run.
        plan_folder: what file names in the plan are relative to.
        folder: the experiment's folder; a folder that holds an experiment of the same plan is taken up again.
        mix: let runs of different software or hardware into one experiment.
        retry_failed: run failed runs again, too.
        on_progress: told before and after each run, and while it goes on.

    Raises:
        CbtraceError: the folder holds something else, another plan, or a runner is at work in it.
    """

    def __init__(
        self,
        plan: Plan,
        plan_folder: Path,
        folder: Path,
        *,
        mix: bool = False,
        retry_failed: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.folder = folder
        self._plan = plan
        self._plan_folder = plan_folder
        self._mix = mix
        self._tell = on_progress or (lambda _progress: None)
        self._variants = {variant.name: variant for variant in variants_of(plan)}
        self._answers: dict[str, Answers] = {}
        self.experiment = self._take_up(retry_failed)

    def run(self) -> Experiment:
        """Run all that is left; return the experiment.

        Raises:
            KeyboardInterrupt: it was interrupted; what was recorded is there, and the run under way will be repeated.
            CbtraceError: conditions are not those of the runs before.
        """
        with _alone(self.folder):
            for name in (RUNS, LOGS):
                (self.folder / name).mkdir(exist_ok=True)
            self._save()
            for number, run in enumerate(self.experiment.runs, 1):
                if run.status in _LEFT:
                    self._tell(self._progress(run, number))
                    self._run_one(run, number)
                    self._tell(self._progress(run, number))
        return self.experiment

    # Taking up -------------------------------------------------------------------------------------------------------

    def _take_up(self, retry_failed: bool) -> Experiment:
        found = read_experiment(self.folder) if self.folder.is_dir() else None
        if found is None:
            self._make_folder()
            return new_experiment(self._plan)
        if found.plan_digest != plan_digest(self._plan):
            raise UsageError(
                f"{self.folder} holds an experiment of another plan, or this one was changed since: "
                "name another folder, or take the changes back.",
                slug="plan-changed",
            )
        for run in found.runs:
            again = run.status == "running" or (run.status == "skipped" and run.failure is None and _waits(run))
            if again or (retry_failed and run.status == "failed"):
                _reset(run)
        return found

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            occupied = any(self.folder.iterdir())
        except OSError as error:
            raise CbtraceError(
                f"{self.folder} cannot be made ({error.strerror}): choose another folder with -o.",
                slug="output-unwritable",
            ) from error
        if occupied:
            raise UsageError(
                f"{self.folder} is not empty and holds no experiment: choose a new folder with -o.",
                slug="folder-not-empty",
            )

    def _save(self) -> None:
        write_experiment(self.experiment, self.folder)

    def _progress(self, run: RunEntry, number: int, report: Report | None = None) -> Progress:
        runs = self.experiment.runs
        ended = [run.seconds for run in runs if run.status in ("done", "failed")]
        left = sum(run.status in _LEFT for run in runs)
        return Progress(run, number, len(runs), left * sum(ended) / len(ended) if ended else None, report)

    # One run ---------------------------------------------------------------------------------------------------------

    def _run_one(self, run: RunEntry, number: int) -> None:
        variant = self._variants[run.variant]
        obstacle = self._obstacle(variant)
        if obstacle:
            run.status, run.text = "skipped", obstacle
            self._save()
            return
        job = self._job(run, variant)
        run.status, run.trace, run.settings = "running", f"{RUNS}/{run.id}.cbt", dict(job.settings)
        run.started_ns = time.time_ns()
        self._save()
        log = self.folder / LOGS / f"{run.id}.log"
        process = RunProcess(
            job, log, self._plan.time_limits, lambda report: self._tell(self._progress(run, number, report))
        )
        ending = process.wait()
        if ending.differing:
            _reset(run)
            self._save()
            raise CbtraceError(
                f"This is not where the experiment began: {'; '.join(ending.differing[:3])}. Name another folder, "
                "or allow it with --mix.",
                slug="conditions-differ",
            )
        self._note(run, ending)
        self._save()

    def _obstacle(self, variant: PlannedVariant) -> str:
        """Why a variant is not run; empty when it is."""
        if variant.needs == "cuda" and self.experiment.conditions.get("hardware.gpu.count") == 0:
            return f"It needs {variant.needs.upper()}, which this machine does not have."
        if variant.needs == "cuda" and self._plan.model.device == "cpu":
            return "It needs CUDA, and the plan's device is the CPU."
        return check_pins(variant, self._resolved())

    def _resolved(self) -> Facts | None:
        """What the engine of the first finished run of the baseline resolved its settings to."""
        for run in self.experiment.runs:
            if run.variant == BASELINE and run.status == "done":
                engines = open_trace(self.folder / run.trace).engines
                return engines[-1].resolved if engines else None
        return None

    def _job(self, run: RunEntry, variant: PlannedVariant) -> Job:
        plan = self._plan
        model = plan.model
        changes = {"dtype": variant.dtype or model.dtype, "attention": variant.attention or model.attention}
        return Job(
            trace=str((self.folder / RUNS / f"{run.id}.cbt").absolute()),
            name=f"{run.variant} #{run.repeat}",
            tags=self._tags(run, variant),
            plan_folder=str(self._plan_folder.absolute()),
            model=msgspec.structs.replace(model, **changes),
            generation=plan.generation,
            workload=plan.workload_named(variant.workload),
            workload_name=variant.workload,
            seed=plan.seed,
            settings=variant.resolved_settings(self._resolved() or {}),
            kind=variant.kind,
            batch_size=variant.batch_size or 1,
            batch_by=variant.batch_by,
            warmup_requests=plan.warmup_requests,
            conditions={} if self._mix else self.experiment.conditions,
        )

    def _tags(self, run: RunEntry, variant: PlannedVariant) -> dict[str, str]:
        changes = ", ".join(f"{name}={value}" for name, value in variant.changes)
        return {
            "experiment": self._plan.name,
            "stage": str(run.stage),
            "variant": run.variant,
            "repeat": str(run.repeat),
            "workload": variant.workload,
            "batching": variant.kind,
            "based_on": variant.based_on,
            "changes": changes,
            "pinned": ", ".join(variant.pinned),
        }

    def _note(self, run: RunEntry, ending: Ending) -> None:
        """Take over how a run ended, and check its answers."""
        experiment = self.experiment
        run.status = "done" if ending.done else "failed"
        run.failure, run.phase, run.text = ending.failure, ending.phase, ending.text
        run.seconds, run.submit_lag = round(ending.seconds, 3), ending.lag
        if ending.done:
            run.phase = ""
        if ending.workload is not None:
            experiment.workloads[self._variants[run.variant].workload] = ending.workload
        if ending.conditions is not None and not experiment.conditions:
            experiment.conditions = ending.conditions
        experiment.mixed = experiment.mixed or self._mix
        trace = _readable(self.folder / run.trace)
        if ending.done and (stopped := _recording_stopped(trace)):
            run.status, run.failure, run.phase, run.text = "failed", "error", "recording", stopped
        if trace is None:
            run.trace = ""
            return
        if run.status == "failed":
            run.phase = _phase_in(trace) or run.phase
        self._check(run, trace)

    # Correctness -----------------------------------------------------------------------------------------------------

    def _check(self, run: RunEntry, trace: Trace) -> None:
        """Check the answers of a run, and again those of runs that had no reference before."""
        self._answers[run.id] = answers_of(trace)
        planned = self.experiment.workloads.get(self._variants[run.variant].workload, {}).get("workload.requests")
        run.correctness = check_run(int(planned or 0), self._answers[run.id], run.failure)
        for other in self.experiment.runs:
            if other.correctness is not None and not other.correctness.reference:
                self._compare(other)

    def _compare(self, run: RunEntry) -> None:
        correctness = run.correctness
        reference = self._reference(run)
        if correctness is None:
            return
        if self._variants[run.variant].kind == "static" and reference is None:
            correctness.remark = "Other runs of this workload are compared with this one."
        elif self._plan.generation.do_sample:
            correctness.remark = "Tokens were not compared: they are sampled."
        elif reference is None:
            correctness.remark = "Tokens were not compared: no run of static batching of this workload is done."
        else:
            compare_with(correctness, self._answers_of(run), reference.id, self._answers_of(reference))
            correctness.remark = self._excuse(run, reference) if correctness.equal < correctness.compared else ""

    def _reference(self, run: RunEntry) -> RunEntry | None:
        """The first finished run of static batching of the same workload, if possible of the same numbers; ``None``
        for that run itself."""
        variant = self._variants[run.variant]
        found = [
            other
            for other in self.experiment.runs
            if other.status == "done"
            and (static := self._variants[other.variant]).kind == "static"
            and static.workload == variant.workload
        ]
        alike = [other for other in found if self._variants[other.variant].dtype == variant.dtype]
        chosen = next(iter(alike or found), None)
        return None if chosen is run else chosen

    def _answers_of(self, run: RunEntry) -> Answers:
        if run.id not in self._answers:
            self._answers[run.id] = answers_of(open_trace(self.folder / run.trace))
        return self._answers[run.id]

    def _excuse(self, run: RunEntry, reference: RunEntry) -> str:
        variant, other = self._variants[run.variant], self._variants[reference.variant]
        dtype, other_dtype = variant.dtype or self._plan.model.dtype, other.dtype or self._plan.model.dtype
        if dtype != other_dtype:
            return f"The reference computes in {other_dtype}, this run in {dtype}."
        if dtype != "float32":
            return f"In {dtype}, batches of other shapes round differently, and a near tie may fall the other way."
        return ""


def new_experiment(plan: Plan) -> Experiment:
    """An experiment of which nothing has been run."""
    variants = variants_of(plan)
    used = {variant.stage for variant in variants}
    return Experiment(
        name=plan.name,
        plan=plan_as_data(plan),
        plan_digest=plan_digest(plan),
        stages=[stage for stage in STAGES if stage.number in used],
        variants=[variant.entry() for variant in variants],
        runs=runs_of(plan, variants),
        workloads={},
        slos=msgspec.to_builtins(plan.slos),
        tool_version=version("cbtrace"),
    )


def _reset(run: RunEntry) -> None:
    fresh = RunEntry(run.id, run.variant, run.stage, run.repeat)
    for name in RunEntry.__struct_fields__:
        setattr(run, name, getattr(fresh, name))


def _waits(run: RunEntry) -> bool:
    """Whether a skipped run may be possible now."""
    return "baseline" in run.text


def _readable(path: Path) -> Trace | None:
    try:
        return open_trace(path)
    except CbtraceError:
        return None


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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """See to it that one runner at a time works in a folder; the system lets go of the lock when it dies."""
    try:
        import fcntl
    except ImportError:  # No such lock on Windows.
        yield
        return
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
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


for _slug, _cause, _remedy in (
    ("plan-changed", "The folder holds an experiment whose plan is not this one.", "Name another folder with -o."),
    ("folder-not-empty", "The folder for a new experiment holds other files.", "Name a new folder with -o."),
    (
        "conditions-differ",
        "Software or hardware is not what it was when the experiment began, so its runs could not be compared.",
        "Name another folder with -o, or allow mixing with --mix; reports then say so.",
    ),
    ("experiment-busy", "Another process runs the experiment in this folder.", "Wait for it to end."),
):
    declare(_slug, Severity.BROKEN, _cause, _remedy)
