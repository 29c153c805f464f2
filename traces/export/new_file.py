"""A file that appears whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..aside import written_aside
from ..errors import TraceExistsError


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool = False) -> Iterator[TextIO]:
    """A text file (UTF-8) to write, which takes its name when the block ends without an error.

    Raises:
        TraceExistsError: a file of that name exists and may not be overwritten.
        OSError: it cannot be written.
    """
    if path.exists() and not overwrite:
        raise TraceExistsError(f"{path} exists already: choose another name, or allow overwriting it.")
    # Whoever else may write in this folder cannot lead us to another file by a link of this name.
    with written_aside(path) as aside, aside.open("x", encoding="utf-8") as file:
        yield file
