"""The file that a command writes: refused in a sentence when it cannot be, and never the one that is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity


@contextlib.contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turn what the system says about writing ``output`` into a sentence.

    Raises:
        CbtraceError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise CbtraceError(
            f"{output} cannot be written ({reason}): choose another place, or make room.", slug="file-unwritable"
        ) from error


def check_not_input(source: Path, output: Path) -> None:
    """Refuse to write over the trace that is read.

    Raises:
        UsageError: both are one file.
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise UsageError(f"{output} is the trace itself: choose another name to write to.", slug="output-is-input")


def without_ending(source: Path, ending: str) -> Path:
    """The file to write when none is named: that beside the trace whose name lacks an ending.

    Raises:
        UsageError: the trace's name does not end so.
    """
    if source.suffix != ending:
        raise UsageError(f"{source} does not end in {ending}: name the file to write with --output.", slug="no-output")
    return source.with_suffix("")


declare(
    "file-unwritable",
    Severity.BROKEN,
    "The system refuses to write the file: there is no such folder, no right to write in it, or no room.",
    "Choose another place, or make room and allow writing in it.",
)
declare(
    "output-is-input",
    Severity.BROKEN,
    "The file to write is the trace that is to be read, and would be lost.",
    "Choose another name for the output.",
)
declare(
    "no-output",
    Severity.BROKEN,
    "The name of the file to write is made of the trace's by leaving out `.zst`, and the trace's does not end so.",
    "Name the file to write with `--output`.",
)
