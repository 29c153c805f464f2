"""A file that appears whole or not at all: it is written beside its place and then takes its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A new name beside ``path`` to write to. When the block ends without an error, the file there becomes ``path``,
    whatever that was; otherwise nothing is left of it.

    Raises:
        OSError: it cannot be moved.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.unlink(missing_ok=True)
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
