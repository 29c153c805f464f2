"""``cbtrace run``: run an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbtrace.commands.live_runs import LiveRuns, duration
from cbtrace.commands.where import AddressOption, OnOption, ray_wanted

if TYPE_CHECKING:
    from cbtrace.recorder.experiments.places import Place
    from cbtrace.recorder.experiments.plan_spec import Plan
    from cbtrace.recorder.experiments.runner import Runner
    from cbtrace.recorder.experiments.storage_copy import StorageCopy
    from cbtrace.traces.experiment import Experiment, VariantEntry


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="Plan to run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder of the experiment; one that was interrupted is taken up.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and how long they may take.")] = False,
    mix: Annotated[
        bool, typer.Option("--mix", help="Let runs of different software or hardware into one experiment.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again, too.")] = False,
    max_time: Annotated[
        str | None,
        typer.Option(
            "--max-time",
            metavar="TIME",
            help="Start no run that would not end within this time (540s, 9m, 1.5h); what is left is for next time.",
            show_default=False,
        ),
    ] = None,
    on: OnOption = "local",
    address: AddressOption = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep the experiment there as well (s3://, gs://, a shared folder); take it up from there.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run the experiment of a plan: each run in a process of its own, with a trace of its own.

    A run that fails is noted with what it was at, and the rest goes on. Ctrl-C ends the experiment in good order; the
    same command takes it up again and repeats only the run that was under way.

    \b
    Examples:
      cbtrace run plan.toml --dry-run
      cbtrace run plan.toml -o experiment
      cbtrace run plan.toml -o experiment --retry-failed
      cbtrace run plan.toml -o experiment --max-time 9m
      cbtrace run plan.toml -o experiment --on ray --storage s3://bucket/experiment
    """
    from cbtrace.commands.experiment_table import experiment_table
    from cbtrace.recorder.experiments.plan import read_plan
    from cbtrace.recorder.experiments.runner import Runner
    from cbtrace.recorder.experiments.time_budget import parse_duration
    from cbtrace.traces.errors import UsageError

    read = read_plan(plan)
    max_time_s = parse_duration(max_time) if max_time is not None else None
    on_ray = ray_wanted(on, address)
    if dry_run:
        _show(read, plan.parent, output)
        return 0
    if output is None:
        raise UsageError("Name the folder of the experiment with -o DIR, or look at the runs with --dry-run.")
    copy = _copy(storage) if storage is not None else None
    with ExitStack() as stack:
        runs = stack.enter_context(LiveRuns())
        place = _on_cluster(stack, read, address, mix, runs) if on_ray else None
        runner = Runner(
            read,
            plan.parent,
            output,
            mix=mix,
            retry_failed=retry_failed,
            max_time_s=max_time_s,
            on_progress=runs.tell,
            place=place,
            copy=copy,
        )
        try:
            runner.run()
        except KeyboardInterrupt:
            runs.note("Interrupted: what was recorded is readable, and the same command goes on from here.")
            return 130
    experiment_table(runner.experiment, output)
    return _end(runner, output, max_time)


def _copy(storage: str) -> StorageCopy:
    from cbtrace.recorder.cluster.storage import Storage
    from cbtrace.recorder.experiments.storage_copy import StorageCopy

    return StorageCopy(Storage(storage))


def _on_cluster(stack: ExitStack, plan: Plan, address: str | None, mix: bool, runs: LiveRuns) -> Place:
    """The cluster to run on; this process is connected to it as long as the stack is open."""
    from cbtrace.recorder.cluster.connection import connected
    from cbtrace.recorder.experiments.ray_place import RayCluster

    stack.enter_context(connected(address))
    return RayCluster(plan, mix=mix, note=runs.note)


def _end(runner: Runner, output: Path, max_time: str | None) -> int:
    """Say what is left to do; return the exit code."""
    from cbtrace.recorder.experiments.estimate import runs_left

    runs = runner.experiment.runs
    failed = sum(entry.status == "failed" for entry in runs)
    if failed:
        typer.echo(f"{failed} of {len(runs)} runs failed; their logs are in {output / 'logs'}.")
    if runner.out_of_time:
        left = len(runs_left(runner.experiment))
        typer.echo(
            f"No further run fits into {max_time}: {left} of {len(runs)} are left, and the same command goes on."
        )
    typer.echo(f"Next: cbtrace build {output} -o site")
    return 1 if failed == len(runs) else 0


def _show(plan: Plan, folder: Path, output: Path | None) -> None:
    from cbtrace.recorder.experiments.estimate import estimate
    from cbtrace.recorder.experiments.take_up import new_experiment, take_up
    from cbtrace.traces.errors import UsageError

    try:
        experiment = new_experiment(plan) if output is None else take_up(plan, output)
    except UsageError:  # What another plan did in that folder is nothing that this one can go on with.
        experiment = new_experiment(plan)
    for line in _plan_lines(experiment):
        typer.echo(line)
    expected = estimate(experiment, _spans(plan, folder), plan.time_limits.run_s)
    typer.echo(f"About {duration(expected.seconds)} ({expected.basis}).")


def _plan_lines(experiment: Experiment) -> Iterator[str]:
    from cbtrace.recorder.experiments.estimate import LEFT, runs_left

    for stage in experiment.stages:
        yield f"Stage {stage.number}: {stage.title}"
        for variant in experiment.variants:
            if variant.stage == stage.number:
                runs = [entry for entry in experiment.runs if entry.variant == variant.name]
                left = sum(entry.status in LEFT for entry in runs)
                yield f"  {variant.name:<32} {left} of {len(runs)} runs left; {_change(variant)}"
    yield f"{len(runs_left(experiment))} of {len(experiment.runs)} runs are left."


def _change(variant: VariantEntry) -> str:
    """What a variant changes, in words."""
    text = "changes " + (", ".join(f"{name} = {value}" for name, value in variant.changes.items()) or "nothing")
    if variant.based_on not in ("", "baseline"):
        text += f" in {variant.based_on!r}"
    if variant.pinned:
        text += f"; takes over {', '.join(variant.pinned)} as the baseline resolved them"
    if variant.together and len(variant.changes) > 1:
        text += "; several variables, on purpose"
    return text


def _spans(plan: Plan, folder: Path) -> dict[str, float]:
    """Seconds from first to last arrival, by workload; those that need the model's tokenizer are left out."""
    from cbtrace.recorder.experiments.model_source import vocabulary_of
    from cbtrace.recorder.experiments.plan_spec import DEFAULT_WORKLOAD
    from cbtrace.recorder.experiments.workload import PromptsSpec, build_workload

    spans = {}
    for name in (DEFAULT_WORKLOAD, *plan.workloads):
        spec = plan.workload_named(name)
        if not isinstance(spec, PromptsSpec):
            vocabulary = vocabulary_of(plan.model, folder) or 2
            spans[name] = build_workload(spec, seed=plan.seed, vocabulary=vocabulary, folder=folder).span_ns / 1e9
    return spans
