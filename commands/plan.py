"""``cbtrace plan``: write a plan, or check one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

plan = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@plan.callback()
def _plan() -> None:
    """Write the plan of an experiment, or check one."""


@plan.command()
def init(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PLAN.toml", help="File to write.")] = Path(
        "plan.toml"
    ),
    template: Annotated[str, typer.Option(metavar="NAME", help="A plan that comes with cbtrace.")] = "four_stages",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a plan with the four stages: baseline, input budget, KV cache and reserve, advanced features.

    \b
    Examples:
      cbtrace plan init
      cbtrace plan init -o study.toml --force
    """
    from cbtrace.recorder.experiments.templates import template_text
    from cbtrace.traces.errors import CbtraceError, UsageError

    text = template_text(template)
    if output.exists() and not force:
        raise UsageError(f"{output} exists: name another file with -o, or replace it with --force.", slug="plan-exists")
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CbtraceError(
            f"{output} cannot be written ({error.strerror}): name another file with -o.", slug="output-unwritable"
        ) from error
    typer.echo(f"Wrote {output}: change it to your model and workload, then cbtrace run {output} --dry-run")


@plan.command()
def check(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="Plan to check.", show_default=False)],
) -> None:
    """Check a plan: every mistake is told with its line.

    \b
    Examples:
      cbtrace plan check plan.toml
    """
    from cbtrace.recorder.experiments.plan import read_plan
    from cbtrace.recorder.experiments.stages import variants_of

    read = read_plan(plan_file)
    variants = len(variants_of(read))
    typer.echo(f"{plan_file} is correct: {variants} variants, {variants * read.repeats} runs.")
