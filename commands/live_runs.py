"""Says how an experiment goes: a line for each run that has ended, and on a terminal what is going on meanwhile."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from cbtrace.recorder.experiments.runner import Progress


class LiveRuns:
    """Use as a context, and tell it all progress.

    On a terminal a table on standard error has a row for each run under way.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, Progress] = {}
        self._live: Live | None = None

    def __enter__(self) -> LiveRuns:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live(
                console=console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, progress: Progress) -> None:
        """Take one piece of news."""
        run = progress.run
        if progress.news in ("begins", "goes on"):
            self._under_way[run.id] = progress
        else:
            self._under_way.pop(run.id, None)
            self.note(_line(progress))
        self._show()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        if self._live is not None:
            self._live.stop()
        typer.echo(plain(text))
        if self._live is not None:
            self._live.start()

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        for progress in self._under_way.values():
            report = progress.report
            steps = f"{report.steps} steps, {report.pending} pending" if report is not None and report.steps else ""
            cells = (_number(progress), progress.run.id, progress.where, report.phase if report else "start", steps)
            table.add_row(*(Text(plain(cell), no_wrap=True, overflow="ellipsis") for cell in cells))
        return table


def _number(progress: Progress) -> str:
    return f"[{progress.number}/{progress.total}]"


def _line(progress: Progress) -> str:
    """What became of a run."""
    run, where = progress.run, f" on {progress.where}" if progress.where else ""
    if progress.news == "again":
        why = run.lost[-1] if run.lost else "That machine is not like the others."
        again = f" Attempt {len(run.lost) + 1} of 3 follows." if run.lost else " It goes to another one."
        return f"{_number(progress)} {run.id} was begun{where}. {why}{again}"
    what = {"failed": f"failed ({run.failure}, {run.phase})", "skipped": f"skipped: {run.text}"}
    left = f", about {duration(progress.left_s)} left" if progress.left_s else ""
    took = f" in {run.seconds:.1f} s" if run.seconds else ""
    return f"{_number(progress)} {run.id} {what.get(run.status, run.status)}{where}{took}{left}"


def duration(seconds: float) -> str:
    """A time that something may take, in words."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
