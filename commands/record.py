"""``cbtrace record``: run a program and record its continuous batching."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TRACE = typer.Option("--output", "-o", metavar="RUN.cbt", help="Trace to write.", show_default=False)


def record(
    output: Annotated[Path, TRACE],
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM [ARGUMENT]...", help="Program to run.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run in reports.  [default: the trace's name]", show_default=False),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Label of the run; may be repeated.", show_default=False),
    ] = None,
    with_token_ids: Annotated[
        bool, typer.Option("--with-token-ids", help="Store the generated token ids too, not only lengths and hashes.")
    ] = False,
    with_paths: Annotated[
        bool, typer.Option("--with-paths", help="Store file paths, such as the model's, in the run's conditions.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the trace if it exists.")] = False,
) -> None:
    """Run a program, unchanged, and record its continuous batching.

    The program is a Python script, a module (-m) or an installed command. It keeps its arguments, streams, signals and
    exit code. A process of it that runs no continuous batching is left alone; each further one that does writes a file
    of its own beside RUN.cbt.

    \b
    Examples:
      cbtrace record -o run.cbt -- python script.py --batch 64
      cbtrace record -o run.cbt --name "64 blocks" --tag blocks=64 -- python -m my.job
      cbtrace record -o serve.cbt -- transformers serve --continuous-batching
    """
    from cbtrace.commands.tags import parse_tags
    from cbtrace.recorder.launch import Settings, launch

    settings = Settings(
        path=output,
        overwrite=overwrite,
        name=name,
        tags=parse_tags(tag or []),
        token_ids=with_token_ids,
        paths=with_paths,
    )
    launch(program or [], settings)
