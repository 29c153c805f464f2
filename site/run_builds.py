"""Builds the files of many runs, in several processes where that is quicker. The bytes do not depend on how many."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path

from cbtrace.site.folder import OutputWriteError, explained, write_texts
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.records import as_kept, record_path, record_text
from cbtrace.site.run_files import FinishedRun, RunSource, run_files
from cbtrace.site.workers import BuildWorkerError, Done, Told, can_fork, described, spread
from cbtrace.traces.errors import TraceError, declare
from cbtrace.traces.schema import Severity

WORTH_A_PROCESS = 500_000
"""Bytes of traces that take longer to build than a process takes to start."""
WORTH_SPLITTING = 10_000_000
"""Bytes of a trace that several processes build sooner than one, though they have to begin first."""
MOST_A_RUN = 4
"""More processes would save little, since one alone reads the trace, and each takes memory of its own: with four, the
site of a million steps still takes less than 2 GiB."""


@dataclass(frozen=True)
class RunTask:
    """One run to build."""

    source: RunSource
    record: str
    """Path of its record, relative to the site."""


@dataclass(frozen=True)
class FailedRun:
    """A trace that has no page, and why."""

    source: Path
    text: str
    """One sentence."""
    slug: str


Outcomes = Generator[tuple[RunTask, FinishedRun | FailedRun], None, None]
Builder = Callable[[Chrome, Sequence[RunTask], Path], Outcomes]
"""Builds runs below a folder, in which they lack nothing but their place; yields them as they are finished. The record
is the last of the files of each."""


declare(
    "page-failed",
    Severity.BROKEN,
    "The trace was read, but its page could not be made: a mistake in cbtrace.",
    "Report the sentence, with the trace if you can. The other runs of the site are not affected.",
)


def run_tasks(sources: Iterable[RunSource], maker: str) -> list[RunTask]:
    """What there is to build. ``maker`` stands for all that pages depend on beside the traces."""
    return [RunTask(source, record_path(maker, source)) for source in sources]


Tell = Callable[[float, str], object]
"""Called with how many runs are built, a share of one included, and the name of a file at hand."""


def build_runs(
    chrome: Chrome, tasks: Sequence[RunTask], aside: Path, jobs: int, tell: Tell = lambda done, name: None
) -> Outcomes:
    """Build each run below ``aside``, in a folder that lacks nothing but its place; yield them as they are finished.

    ``jobs`` is how many processes are busy at most: one for each run, or more for long ones if runs are few. ``tell``
    hears of runs while they are built.

    Close it when an error ends the loop over it: that ends its processes, too.

    Raises:
        OutputWriteError: something could not be written.
        BuildWorkerError: the system ended a process.
    """
    workers, each = processes_by_run(tasks, jobs)
    if max([workers, *each]) > 1:
        yield from _in_processes(chrome, list(zip(tasks, each, strict=True)), aside, workers, tell)
        return
    for done, task in enumerate(tasks):
        yield task, build_run(chrome, task, aside, partial(_tell_share, tell, done, task.source.path.name))


def processes_by_run(tasks: Sequence[RunTask], jobs: int) -> tuple[int, list[int]]:
    """How many runs are built at a time, and how many processes build each of them."""
    size = sum(task.source.size for task in tasks)
    workers = min(jobs, len(tasks), 1 + size // WORTH_A_PROCESS)
    most = min(jobs // max(workers, 1), MOST_A_RUN) if can_fork() else 1
    return workers, [most if task.source.size >= WORTH_SPLITTING else 1 for task in tasks]


def _tell_share(tell: Tell, done: int, name: str, share: float) -> None:
    tell(done + share, name)


def build_run(
    chrome: Chrome, task: RunTask, aside: Path, told: Told = lambda share: None, processes: int = 1
) -> FinishedRun | FailedRun:
    """Build one run below ``aside``. Whatever is wrong with its trace is told, not raised."""
    path = task.source.path

    def write(name: str, text: str) -> int:
        with explained(aside):
            return write_texts(aside, {name: text})[name]

    try:
        made = run_files(chrome, task.source, write, told, processes)
        record = as_kept(made.record)
    except (OutputWriteError, BuildWorkerError):
        raise
    except TraceError as error:
        return FailedRun(path, str(error), error.slug)
    except Exception as error:
        text = f"The page of {path.name} could not be made ({described(error)}): report this."
        return FailedRun(path, text, "page-failed")
    size = write(task.record, record_text(record, made.sizes))
    return FinishedRun(record, made.sizes | {task.record: size})


Plan = Sequence[tuple[RunTask, int]]
"""Runs, and in how many processes each is built."""


def _in_processes(chrome: Chrome, plan: Plan, aside: Path, workers: int, tell: Tell) -> Outcomes:
    plan = sorted(plan, key=lambda planned: -planned[0].source.size)  # so that no long one is begun last
    shares = [0.0] * len(plan)
    with closing(spread(_context(), partial(_build_planned, chrome, plan, aside), len(plan), workers)) as hearing:
        for heard in hearing:
            task, _ = plan[heard.number]
            shares[heard.number] = 1.0 if isinstance(heard, Done) else heard.share
            tell(sum(shares), task.source.path.name)
            if isinstance(heard, Done):
                yield task, heard.result


def _build_planned(chrome: Chrome, plan: Plan, aside: Path, number: int, told: Told) -> FinishedRun | FailedRun:
    task, processes = plan[number]
    return build_run(chrome, task, aside, told, processes)


def _context() -> BaseContext:
    """A way to start processes that is safe beside threads: one of them draws the progress bar."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, and not by every process
    return context
