"""``cbtrace upgrade``: an old trace in the newest format version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbtrace.commands.plain_text import plain


def upgrade(
    trace: Annotated[Path, typer.Argument(metavar="RUN.cbt", help="Trace to read.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="NEW.cbt", help="Trace to write.", show_default=False)
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace NEW.cbt if it exists; it may be RUN.cbt itself.")
    ] = False,
) -> None:
    """Write a trace of an older format version again in the newest one.

    cbtrace reads every older version for ever, so this is for other tools that know only the newest. A damaged trace is
    refused: its copy would look whole.

    \b
    Examples:
      cbtrace upgrade old.cbt -o new.cbt
      cbtrace upgrade run.cbt -o run.cbt --overwrite
    """
    from cbtrace.commands.output_file import writing
    from cbtrace.traces import upgrade_trace
    from cbtrace.traces.schema import FORMAT_VERSION

    with writing(output):
        version = upgrade_trace(trace, output, overwrite=overwrite)
    typer.echo(f"{plain(str(output))}: format version {FORMAT_VERSION}, from version {version}")
