"""``cbtrace compress`` and ``cbtrace decompress``: a trace in a third of its size, to be stored, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbtrace.commands.plain_text import plain

_ENDING = ".zst"
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file to write, if it is a trace.")]


def compress(
    trace: Annotated[Path, typer.Argument(metavar="RUN.cbt", help="Trace to read.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RUN.cbt.zst", help="File to write; by default beside the trace."),
    ] = None,
    overwrite: _Overwrite = False,
) -> None:
    """Compress a trace to about a third of its size, to be stored.

    Every command reads what this writes, and cbtrace decompress gives the trace back byte for byte. The trace itself
    stays. A damaged trace is refused: its copy would look whole.

    \b
    Examples:
      cbtrace compress run.cbt
      cbtrace compress run.cbt -o stored/run.cbt.zst
    """
    from cbtrace.commands.output_file import check_not_input, writing
    from cbtrace.commands.progress import counting, progress_bar
    from cbtrace.traces.archive import compress_trace

    output = output or Path(f"{trace}{_ENDING}")
    with progress_bar(f"Compressing {trace.name}") as advance, writing(output):
        check_not_input(trace, output)
        compress_trace(trace, output, overwrite=overwrite, progress=counting(advance))
    before, after = trace.stat().st_size, output.stat().st_size
    typer.echo(f"{plain(str(output))}: {after:,} bytes, {after / before:.0%} of {plain(trace.name)}")


def decompress(
    trace: Annotated[Path, typer.Argument(metavar="RUN.cbt.zst", help="Trace to read.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RUN.cbt", help="File to write; by default beside the trace."),
    ] = None,
    overwrite: _Overwrite = False,
) -> None:
    """Write a compressed trace as it was recorded, byte for byte.

    Nothing in cbtrace needs this: every command reads compressed traces. It is for other tools.

    \b
    Examples:
      cbtrace decompress run.cbt.zst
      cbtrace decompress stored/run.cbt.zst -o run.cbt
    """
    from cbtrace.commands.output_file import check_not_input, without_ending, writing
    from cbtrace.traces.archive import decompress_trace

    output = output or without_ending(trace, _ENDING)
    with writing(output):
        check_not_input(trace, output)
        decompress_trace(trace, output, overwrite=overwrite)
    typer.echo(plain(str(output)))
