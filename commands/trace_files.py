"""Which traces a command line names: files, and all that lie in folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity


def trace_files(named: Iterable[Path]) -> list[Path]:
    """Return the files named, and the ``*.cbt`` files of folders named, at any depth, in order; each once.

    Raises:
        UsageError: a folder holds no trace.
    """
    files: dict[Path, None] = {}
    for path in named:
        found = sorted(path.rglob("*.cbt")) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"{path} is a folder without traces: name one that holds files ending in .cbt.", slug="no-traces"
            )
        files.update(dict.fromkeys(found))
    return list(files)


declare(
    "no-traces",
    Severity.BROKEN,
    "A folder that was named holds no file ending in `.cbt`, at any depth.",
    "Name a trace, or a folder that holds traces.",
)
