"""Spreads pieces of work over processes of this machine, hears of them, and leaves none of them behind.

A process is told the number of a piece, and tells what came of it, over a pipe of its own. When all that hold one end
of a pipe are gone, the other end knows: so it is heard that the system ended a process, and none goes on working for
nobody.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from cbtrace.site.analysis.spreading import Finished, in_turn
from cbtrace.traces.errors import CbtraceError, declare
from cbtrace.traces.schema import Severity

Result = TypeVar("Result")
Told = Callable[[float], object]
"""Told now and then which share of a piece of work is done."""
Work = Callable[[int, Told], Result]
"""Does a piece of work by its number. Unless processes are forks, it is pickled, as is what comes of it."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 10.0
"""How long a process may take to end when it is asked to."""


class BuildWorkerError(CbtraceError):
    """A process that built pages was ended from outside."""

    slug = "build-worker-ended"


declare(
    "build-worker-ended",
    Severity.BROKEN,
    "A process that built pages was ended from outside, most likely because memory ran out, or could not be started.",
    "Build again with `--jobs 1`; runs that were finished are kept.",
)


class WorkError(Exception):
    """Work failed in another process; the text is what :func:`described` says of the error there."""


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What came of a piece of work."""

    number: int
    result: Result


@dataclass(frozen=True)
class Underway:
    """Which share of a piece of work is done."""

    number: int
    share: float


@dataclass(frozen=True)
class _Failed:
    error: Exception


def described(error: Exception) -> str:
    """What went wrong, and where in the program."""
    if isinstance(error, WorkError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error}; {Path(place.filename).name}, line {place.lineno}"


def can_fork() -> bool:
    """Whether a process can go on as several; the system's own libraries on macOS do not bear it."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def forked(work: Callable[[int], Result], count: int, processes: int) -> Finished[Result]:
    """Do ``work`` on every number below ``count``; yield each with what came of it, as it is finished.

    One process is this one, which takes the numbers in order. Several are forks of it, which share its memory as long
    as nobody writes there; it waits for them. It must have no other threads then.

    Raises:
        BuildWorkerError: a process was ended from outside.
        WorkError: work in a fork raised an error. One of cbtrace, and any in this process, is raised as it is.
    """
    if processes <= 1:
        yield from in_turn(work, count)
        return
    context = multiprocessing.get_context("fork")
    gc.freeze()  # a collection in a fork would write to every object, and so copy it
    try:
        with closing(spread(context, lambda number, told: work(number), count, processes)) as hearing:
            for heard in hearing:
                if isinstance(heard, Done):
                    yield heard.number, heard.result
    finally:
        gc.unfreeze()


def spread(
    context: BaseContext, work: Work[Result], count: int, processes: int
) -> Generator[Done[Result] | Underway, None, None]:
    """Do ``work`` on every number below ``count`` in processes; yield what is heard. Numbers are begun in order.

    However the loop over it ends, there are no processes afterwards: close it.

    Raises:
        BuildWorkerError: a process was ended from outside, or could not be started.
        WorkError: work raised an error. One of cbtrace is raised as it is.
    """
    workers: dict[Connection, Any] = {}
    numbers = iter(range(count))
    try:
        for _ in range(min(processes, count)):
            _begin(context, work, workers, numbers)
        while count:
            for pipe in wait(list(workers)):
                heard = _hear(pipe, numbers)
                count -= isinstance(heard, Done)
                yield heard
    except (EOFError, ConnectionError) as error:
        raise BuildWorkerError(
            "A process that built pages was ended from outside, most likely because memory ran out: build again with "
            "--jobs 1; runs that were finished are kept."
        ) from error
    except OSError as error:
        raise BuildWorkerError(
            f"A process that builds pages could not be started ({(error.strerror or 'unknown error').lower()}): build "
            "again with --jobs 1; runs that were finished are kept."
        ) from error
    finally:
        _end(workers)


def _begin(context: BaseContext, work: Work[Any], workers: dict[Connection, Any], numbers: Iterator[int]) -> None:
    """Start a process and give it its first number."""
    ours, theirs = context.Pipe()
    inherited = [ours, *workers] if context.get_start_method() == "fork" else []
    process = context.Process(target=_serve, args=(theirs, work, inherited))  # type: ignore[attr-defined]
    with _signals_wait():  # a process that has begun must be known, to be ended, and alone have its end of the pipe
        process.start()
        workers[ours] = process
        theirs.close()
    ours.send(next(numbers))


@contextmanager
def _signals_wait() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear(pipe: Any, numbers: Iterator[int]) -> Done[Any] | Underway:
    """What a process tells. One that is done gets the next number."""
    heard: Done[Any] | Underway | _Failed = pipe.recv()
    if isinstance(heard, _Failed):
        raise heard.error
    if isinstance(heard, Done):
        for number in numbers:
            pipe.send(number)
            break
    return heard


def _end(workers: dict[Connection, Any]) -> None:
    for process in workers.values():
        process.terminate()
    for pipe, process in workers.items():
        with suppress(EOFError, OSError):
            while True:  # forks of the process have the other end of its pipe, too: wait for them as well
                if pipe.poll(_PATIENCE_S):
                    pipe.recv_bytes()
                else:
                    process.kill()
        process.join()
        pipe.close()


def _serve(pipe: Connection, work: Work[Any], inherited: Sequence[Connection]) -> None:
    """Work until nobody wants more. Ends of pipes that a fork has, but that are its parent's, would hide that."""
    for other in inherited:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is left to the process that began the build
    signal.signal(signal.SIGTERM, _leave)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_attempt(work, pipe.recv(), pipe))


def _leave(signum: int, frame: object) -> NoReturn:
    """End as by an error, so that processes of this one are ended."""
    raise SystemExit(128 + signum)


def _attempt(work: Work[Any], number: int, pipe: Connection) -> bytes:
    """Do a piece of work; what there is to tell of it."""
    try:
        return pickle.dumps(Done(number, work(number, lambda share: pipe.send(Underway(number, share)))))
    except CbtraceError as error:
        return pickle.dumps(_Failed(error))
    except Exception as error:
        return pickle.dumps(_Failed(WorkError(described(error))))
