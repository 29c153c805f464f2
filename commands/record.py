"""``cbtrace record``: run a program and record its continuous batching."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class WhenFull(str, Enum):
    """What to do when a trace has reached its limit."""

    stop = "stop"
    ring = "ring"


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
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Most that a trace may take on the disk, as in 50MB or 1.5GiB.", show_default=False
        ),
    ] = None,
    when_full: Annotated[
        WhenFull | None,
        typer.Option(
            help="At that size, stop recording, or go on as a ring that gives up the oldest steps.  [default: stop]",
            show_default=False,
        ),
    ] = None,
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
      cbtrace record -o serve.cbt --max-size 50MB --when-full ring -- transformers serve --continuous-batching
    """
    from cbtrace.commands.tags import parse_tags
    from cbtrace.recorder.launch import Settings, launch
    from cbtrace.recorder.size_limit import parse_size
    from cbtrace.traces.errors import UsageError

    if when_full is not None and max_size is None:
        raise UsageError(
            f"--when-full {when_full.value} needs a limit: name it too, as in --max-size 50MB.", slug="no-size-limit"
        )
    settings = Settings(
        path=output,
        overwrite=overwrite,
        name=name,
        tags=parse_tags(tag or []),
        token_ids=with_token_ids,
        paths=with_paths,
        max_size=None if max_size is None else parse_size(max_size),
        ring=when_full is WhenFull.ring,
    )
    launch(program or [], settings)
