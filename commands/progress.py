"""A progress bar on standard error, where there is a terminal to see it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cbtrace.commands.plain_text import plain

Advance = Callable[[float, int, str], None]
"""Told how many parts are done (a share of one may be), how many there are, and the name of the one at hand."""


def counting(advance: Advance | None) -> Callable[[int, int], None]:
    """What tells ``advance``, if anybody sees it, how many parts of one thing are done and how many there are."""

    def told(done: int, total: int) -> None:
        if advance is not None:
            advance(done, total, "")

    return told


@contextmanager
def progress_bar(label: str) -> Iterator[Advance | None]:
    """Show a bar while the block runs; the value is what to tell progress, or None when nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(plain(label)), total=None)

        def advance(done: float, total: int, name: str) -> None:
            text = escape(plain(f"{label}: {name}" if name else label))
            bar.update(task, completed=done, total=total, description=text)

        yield advance
