"""A progress bar on standard error, where there is a terminal to see it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]
"""Told how many parts are done, and how many there are."""


@contextmanager
def progress_bar(label: str) -> Iterator[Advance | None]:
    """Show a bar while the block runs; the value is what to tell progress, or None when nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
