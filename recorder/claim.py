"""Which process of a recorded program takes the name that was asked for, when an old trace has it.

The old trace is replaced by whoever starts the first engine, and not before. Others find that it is no longer the one
that was to be replaced, and take names of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path


def identity(path: str | os.PathLike[str]) -> list[int] | None:
    """What tells a file from any that takes its name later; None when there is no file."""
    try:
        return _identity(Path(path).stat())
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def claimed(path: str | os.PathLike[str], replaces: Sequence[int] | None) -> Iterator[bool]:
    """Whether the file at ``path`` is the one to replace; if so, nobody else claims it until this ends."""
    if replaces is None:
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        # Whoever had the lock before may have put another file in its place. This one's number is not given to that
        # other while it is open here.
        yield identity(path) == _identity(os.fstat(file.fileno())) == list(replaces)


def _identity(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_mtime_ns]
