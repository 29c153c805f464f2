"""``cbtrace workload``: what the workload of a plan will send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cbtrace.recorder.experiments.plan_spec import Plan
    from cbtrace.recorder.experiments.workload import Workload

workload = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@workload.callback()
def _workload() -> None:
    """Look at the workload of a plan before anything is run."""


@workload.command()
def show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="Plan to read.", show_default=False)],
    name: Annotated[str, typer.Option("--workload", metavar="NAME", help="Which of the plan's workloads.")] = "default",
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", min=0, help="Also list the first N requests.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print every request as a line of JSON.")] = False,
) -> None:
    """Print and plot what a workload sends: lengths, limits, arrivals, shared prefixes. Sends nothing.

    \b
    Examples:
      cbtrace workload show plan.toml
      cbtrace workload show plan.toml --workload shared_prefix --requests 10
      cbtrace workload show plan.toml --json | jq .prompt_tokens
    """
    from cbtrace.recorder.experiments.plan import read_plan
    from cbtrace.recorder.experiments.preview import preview

    read = read_plan(plan)
    built = built_workload(read, plan.parent, name)
    if as_json:
        for line in _records(built):
            typer.echo(json.dumps(line))
        return
    typer.echo("\n".join(preview(built, read.seed)))
    for line in _records(built)[:requests]:
        typer.echo(
            f"{line['id']:<12}{line['prompt_tokens']:>8} prompt, {line['new_tokens']:>6} new, "
            f"{line['prefix_tokens']:>6} shared, at {line['at_s']:.6f} s"
        )


def built_workload(plan: Plan, folder: Path, name: str) -> Workload:
    """Work out a workload of a plan. Needs Transformers only where the model's own files have to tell something."""
    from cbtrace.recorder.experiments.model_source import vocabulary_of
    from cbtrace.recorder.experiments.models import load_encoder, vocabulary_size
    from cbtrace.recorder.experiments.plan_spec import DEFAULT_WORKLOAD
    from cbtrace.recorder.experiments.workload import PromptsSpec, build_workload
    from cbtrace.traces.errors import UsageError

    if name not in (DEFAULT_WORKLOAD, *plan.workloads):
        known = ", ".join([DEFAULT_WORKLOAD, *plan.workloads])
        raise UsageError(f"The plan has no workload {name!r}: name one of {known}.")
    spec = plan.workload_named(name)
    vocabulary = vocabulary_of(plan.model, folder) or vocabulary_size(plan.model, folder)
    encode = load_encoder(plan.model, folder) if isinstance(spec, PromptsSpec) else None
    return build_workload(spec, seed=plan.seed, vocabulary=vocabulary, folder=folder, encode=encode, name=name)


def _records(workload: Workload) -> list[dict[str, int | float | str]]:
    return [
        {
            "id": request.id,
            "at_s": request.at_ns / 1e9,
            "prompt_tokens": len(request.prompt),
            "new_tokens": request.new_tokens,
            "prefix_group": request.prefix_group,
            "prefix_tokens": request.prefix_tokens,
        }
        for request in workload.requests
    ]
