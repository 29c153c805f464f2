"""A file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

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
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.unlink(missing_ok=True)
        # Whoever else may write in this folder cannot lead us to another file by a link of this name.
        with aside.open("x", encoding="utf-8") as file:
            yield file
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
