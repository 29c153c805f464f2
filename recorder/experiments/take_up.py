"""Takes up the experiment in a folder, or begins one: what is done stays, what was under way is planned again."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec

from cbtrace.recorder.experiments.experiment_folder import check_runs
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.stages import STAGES, plan_as_data, plan_digest, runs_of, variants_of
from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.experiment import Experiment, RunEntry, read_experiment
from cbtrace.traces.schema import Severity


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


def take_up(plan: Plan, folder: Path, *, retry_failed: bool = False) -> Experiment:
    """The experiment of a plan as the folder has it, or a new one. Runs that are to be repeated are planned again.

    Nothing is written. A folder whose experiment had fewer repeats of the same plan gets further runs.

    Raises:
        UsageError: the folder holds an experiment of another plan, or of more repeats.
        ExperimentError: what it holds cannot be read.
    """
    found = read_experiment(folder) if folder.is_dir() else None
    if found is None:
        return new_experiment(plan)
    repeats = _repeats(found)
    if plan_digest(msgspec.structs.replace(plan, repeats=repeats or plan.repeats)) != found.plan_digest:
        raise UsageError(
            f"{folder} holds an experiment of another plan, or this one was changed since: "
            "name another folder, or take the changes back.",
            slug="plan-changed",
        )
    if repeats > plan.repeats:
        raise UsageError(
            f"{folder} holds {repeats} repeats of each variant, and the plan now has {plan.repeats}: more can be "
            "added, and none is taken away. Set repeats back, or name another folder.",
            slug="plan-changed",
        )
    check_runs(found, msgspec.structs.replace(plan, repeats=repeats or plan.repeats), folder)
    if repeats != plan.repeats:
        found = _with_further_runs(found, plan)
    for run in found.runs:
        again = run.status == "running" or (run.status == "skipped" and run.failure is None and _waits(run))
        removed = run.status == "done" and not (folder / run.trace).is_file()
        if again or removed or (retry_failed and run.status == "failed"):
            plan_again(run, lost=run.lost if again else [])
    return found


def plan_again(run: RunEntry, lost: list[str]) -> None:
    """Make a run one that was only planned, with what is told of attempts that were lost."""
    fresh = RunEntry(run.id, run.variant, run.stage, run.repeat, lost=lost)
    for name in RunEntry.__struct_fields__:
        setattr(run, name, getattr(fresh, name))


def _repeats(experiment: Experiment) -> int:
    """How often its plan runs each variant; 0 when it does not tell."""
    given = experiment.plan.get("repeats")
    return given if type(given) is int and given > 0 else 0


def _with_further_runs(found: Experiment, plan: Plan) -> Experiment:
    """The experiment with the runs that a higher number of repeats adds, all in the order of the plan."""
    known = {run.id: run for run in found.runs}
    larger = new_experiment(plan)
    runs = [known.get(run.id, run) for run in larger.runs]
    return msgspec.structs.replace(found, plan=larger.plan, plan_digest=larger.plan_digest, runs=runs)


def _waits(run: RunEntry) -> bool:
    """Whether a skipped run may be possible now."""
    return "baseline" in run.text


declare(
    "plan-changed",
    Severity.BROKEN,
    "The folder holds an experiment whose plan is not this one.",
    "Name another folder with -o. Only a higher number of repeats is taken over.",
)
