"""Which traces a command line names: files, and all that lie in folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

ENDINGS = (".cbt", ".cbt.zst")


def trace_files(named: Iterable[Path]) -> list[Path]:
    """Return the files named, and those with one of :data:`ENDINGS` in folders named, at any depth; each once.

    Raises:
        UsageError: a folder holds no trace.
    """
    files: dict[Path, None] = {}
    for path in named:
        found = sorted(file for ending in ENDINGS for file in path.rglob(f"*{ending}")) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"{path} is a folder without traces: name one that holds files ending in .cbt or .cbt.zst.",
                slug="no-traces",
            )
        files.update(dict.fromkeys(found))
    return list(files)


declare(
    "name-too-long",
    Severity.BROKEN,
    "The system has no names of files as long as one that was given.",
    "Use a shorter name.",
)
declare(
    "no-traces",
    Severity.BROKEN,
    "A folder that was named holds no file ending in `.cbt` or `.cbt.zst`, at any depth.",
    "Name a trace, or a folder that holds traces.",
)
