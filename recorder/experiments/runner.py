"""Runs an experiment: each run in a fresh process, one failing run does not stop the others, and it can be resumed.

The folder of an experiment holds::

    experiment.json     the plan as understood, and what became of each run (cbtrace.traces.experiment)
    runs/RUN.cbt        the trace of each run
    logs/RUN.log        what its process printed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from cbtrace.recorder.experiments.estimate import LEFT, longest_s, remaining_s
from cbtrace.recorder.experiments.experiment_folder import (
    LOGS,
    RUNS,
    check_runs,
    make_folder,
    readable,
    working_in,
    writing_in,
)
from cbtrace.recorder.experiments.job import Job, Report
from cbtrace.recorder.experiments.plan_spec import BASELINE, Plan
from cbtrace.recorder.experiments.process import Ending, RunProcess
from cbtrace.recorder.experiments.run_checks import RunChecks
from cbtrace.recorder.experiments.stages import (
    STAGES,
    PlannedVariant,
    check_pins,
    plan_as_data,
    plan_digest,
    runs_of,
    variants_of,
)
from cbtrace.recorder.experiments.time_budget import TimeBudget
from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.experiment import Experiment, RunEntry, read_experiment, write_experiment
from cbtrace.traces.reader import Trace, open_trace
from cbtrace.traces.schema import EventKind, Facts, Severity


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
        max_time_s: start no run that would not end within so many seconds, going by the runs of its variant so far, or
            else by the longest of all. What is left stays planned.
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
        max_time_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.folder = folder
        self.out_of_time = False
        """Whether runs are left because there was no time for them."""
        self._plan = plan
        self._plan_folder = plan_folder
        self._mix = mix
        self._max_time_s = max_time_s
        self._tell = on_progress or (lambda _progress: None)
        self._variants = {variant.name: variant for variant in variants_of(plan)}
        self.experiment = self._take_up(retry_failed)
        self._checks = RunChecks(self.experiment, folder, plan, self._variants)

    def run(self) -> Experiment:
        """Run all that is left; return the experiment.

        Raises:
            KeyboardInterrupt: it was interrupted; what was recorded is there, and the run under way will be repeated.
            CbtraceError: conditions are not those of the runs before.
        """
        budget = None if self._max_time_s is None else TimeBudget(self._max_time_s)
        with working_in(self.folder):
            self._save()
            for number, run in enumerate(self.experiment.runs, 1):
                if run.status in LEFT:
                    if budget is not None and not budget.allows(longest_s(self.experiment, run)):
                        self.out_of_time = True
                        break
                    self._tell(self._progress(run, number))
                    self._run_one(run, number)
                    self._tell(self._progress(run, number))
        return self.experiment

    # Taking up -------------------------------------------------------------------------------------------------------

    def _take_up(self, retry_failed: bool) -> Experiment:
        found = read_experiment(self.folder) if self.folder.is_dir() else None
        if found is None:
            make_folder(self.folder)
            return new_experiment(self._plan)
        if found.plan_digest != plan_digest(self._plan):
            raise UsageError(
                f"{self.folder} holds an experiment of another plan, or this one was changed since: "
                "name another folder, or take the changes back.",
                slug="plan-changed",
            )
        check_runs(found, self._plan, self.folder)
        for run in found.runs:
            again = run.status == "running" or (run.status == "skipped" and run.failure is None and _waits(run))
            lost = run.status == "done" and not (self.folder / run.trace).is_file()
            if again or lost or (retry_failed and run.status == "failed"):
                _reset(run)
        return found

    def _save(self) -> None:
        with writing_in(self.folder):
            write_experiment(self.experiment, self.folder)

    def _progress(self, run: RunEntry, number: int, report: Report | None = None) -> Progress:
        return Progress(run, number, len(self.experiment.runs), remaining_s(self.experiment), report)

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
            token_ids=plan.token_ids,
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
            self._skip_what_lacks_a_device()
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


for _slug, _cause, _remedy in (
    ("plan-changed", "The folder holds an experiment whose plan is not this one.", "Name another folder with -o."),
    (
        "conditions-differ",
        "Software or hardware is not what it was when the experiment began, so its runs could not be compared.",
        "Name another folder with -o, or allow mixing with --mix; reports then say so.",
    ),
):
    declare(_slug, Severity.BROKEN, _cause, _remedy)
