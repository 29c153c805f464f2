"""``cbtrace export``: a trace in the formats of other tools."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.commands.progress import Advance
    from cbtrace.traces import Trace


class Target(str, Enum):
    """What a trace can be exported to."""

    perfetto = "perfetto"
    parquet = "parquet"
    csv = "csv"
    json = "json"


def export(
    trace: Annotated[Path, typer.Argument(metavar="RUN.cbt", help="Trace to read.", show_default=False)],
    to: Annotated[Target, typer.Option(help="Format to write.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", help="File to write; a folder for parquet and csv.", show_default=False
        ),
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Export a trace to the formats of other tools.

    \b
    perfetto  Chrome JSON: open it at https://ui.perfetto.dev
    parquet   tables, one file each, in a folder
    csv       the same tables as text
    json      the run's summary, as cbtrace info --json prints it

    \b
    Examples:
      cbtrace export run.cbt --to perfetto -o run.json
      cbtrace export run.cbt --to parquet -o tables/
    """
    from cbtrace.commands.output_file import check_not_input, writing
    from cbtrace.commands.progress import progress_bar
    from cbtrace.traces import open_trace

    check_not_input(trace, output)
    opened = open_trace(trace)
    with progress_bar(f"Exporting {trace.name}") as advance, writing(output):
        files = _write(opened, to, output, overwrite, advance)
    typer.echo("\n".join(plain(str(file)) for file in files))


def _write(trace: Trace, to: Target, output: Path, overwrite: bool, advance: Advance | None) -> list[Path]:
    """Write and return the files."""
    from cbtrace.commands.progress import counting

    progress = counting(advance)
    if to is Target.perfetto:
        from cbtrace.traces.export.perfetto import write_perfetto

        write_perfetto(trace, output, overwrite=overwrite, progress=progress)
        return [output]
    if to is Target.json:
        _write_summary(trace, output, overwrite)
        return [output]
    from cbtrace.traces.export.tables import write_tables

    return write_tables(trace, output, to.value, overwrite=overwrite, progress=progress)


def _write_summary(trace: Trace, output: Path, overwrite: bool) -> None:
    from cbtrace.site.analysis.summary import summarize, summary_json
    from cbtrace.traces.export.new_file import new_file

    with new_file(output, overwrite=overwrite) as file:
        json.dump(summary_json(summarize(trace)), file, indent=2, allow_nan=False)
        file.write("\n")
