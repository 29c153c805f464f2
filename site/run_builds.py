"""Builds the files of many runs, in several processes where that is quicker. The bytes do not depend on how many."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cbtrace.site.folder import OutputWriteError, explained, write_texts
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.records import as_kept, record_path, record_text
from cbtrace.site.run_files import RunRecord, RunSource, Told, run_files
from cbtrace.traces.errors import CbtraceError, TraceError, declare
from cbtrace.traces.schema import Severity

WORTH_A_PROCESS = 500_000
"""Bytes of traces that take longer to build than a process takes to start."""


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


@dataclass(frozen=True)
class FinishedRun:
    """A run whose files are written, but not in their place yet."""

    record: RunRecord
    sizes: dict[str, int]
    """Size of each file by path relative to the site; the record is the last."""


Outcomes = Generator[tuple[RunTask, FinishedRun | FailedRun], None, None]
Builder = Callable[[Chrome, Sequence[RunTask], Path], Outcomes]
"""Builds runs below a folder, in which they lack nothing but their place; yields them as they are finished."""


class BuildWorkerError(CbtraceError):
    """A process that built pages was ended from outside."""

    slug = "build-worker-ended"


declare(
    "build-worker-ended",
    Severity.BROKEN,
    "A process that built pages was ended from outside, most likely because memory ran out.",
    "Build again with `--jobs 1`; runs that were finished are kept.",
)
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

    ``tell`` hears of a run while it is built in this process.

    Close it when an error ends the loop over it: that ends its processes, too.

    Raises:
        OutputWriteError: something could not be written.
        BuildWorkerError: the system ended a process.
    """
    size = sum(task.source.size for task in tasks)
    workers = min(jobs, len(tasks), 1 + size // WORTH_A_PROCESS)
    if workers > 1:
        yield from _in_processes(chrome, tasks, aside, workers)
        return
    for done, task in enumerate(tasks):
        yield task, build_run(chrome, task, aside, partial(_tell_share, tell, done, task.source.path.name))


def _tell_share(tell: Tell, done: int, name: str, share: float) -> None:
    tell(done + share, name)


def build_run(chrome: Chrome, task: RunTask, aside: Path, told: Told = lambda share: None) -> FinishedRun | FailedRun:
    """Build one run below ``aside``. Whatever is wrong with its trace is told, not raised."""
    path = task.source.path
    sizes: dict[str, int] = {}

    def write(name: str, text: str) -> None:
        with explained(aside):
            sizes.update(write_texts(aside, {name: text}))

    try:
        record = as_kept(run_files(chrome, task.source, write, told))
    except OutputWriteError:
        raise
    except TraceError as error:
        return FailedRun(path, str(error), error.slug)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}; {Path(place.filename).name}, line {place.lineno}"
        return FailedRun(path, f"The page of {path.name} could not be made ({reason}): report this.", "page-failed")
    write(task.record, record_text(record, sizes))
    return FinishedRun(record, sizes)


def _in_processes(chrome: Chrome, tasks: Sequence[RunTask], aside: Path, workers: int) -> Outcomes:
    pool = ProcessPoolExecutor(workers, mp_context=_context(), initializer=_ignore_interrupts)
    try:
        running: dict[Future[FinishedRun | FailedRun], RunTask] = {
            pool.submit(build_run, chrome, task, aside): task for task in tasks
        }
        for future in as_completed(running):
            yield running[future], future.result()
    except BrokenProcessPool as error:
        raise BuildWorkerError(
            "A process that built pages was ended from outside, most likely because memory ran out: build again with "
            "--jobs 1; runs that were finished are kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _context() -> multiprocessing.context.BaseContext:
    """A way to start processes that is safe beside threads: one of them draws the progress bar."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, and not by every process
    return context


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that began the build."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
