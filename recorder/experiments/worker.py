"""The process of one run: ``python -m cbtrace.recorder.experiments.worker``, started by the runner.

It gets its :class:`Job` as the first line of standard input and writes :class:`Report` lines to standard output. What
libraries print goes to standard error, which the runner keeps as the run's log. When its runner is gone it ends, too,
so that no orphan goes on writing a trace that the next runner takes up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from cbtrace.recorder.experiments.failures import EngineDiedError, failure_kind
from cbtrace.recorder.experiments.job import Job, Report
from cbtrace.recorder.experiments.one_run import OneRun
from cbtrace.traces.errors import CbtraceError

_HEARTBEAT_S = 0.5


class Line:
    """The line to the runner: what phase the run is in and how far it has come."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lock = threading.Lock()
        self.phase = "start"
        self.progress: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns steps done and requests pending."""

    def say(self, **fields: Any) -> None:
        """Send one report."""
        data = msgspec.json.encode(Report(phase=self.phase, **fields)) + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._file.write(data)
            self._file.flush()

    def enter(self, phase: str) -> None:
        """The run enters a phase."""
        self.phase = phase
        self.say()

    def beat(self) -> None:
        """Go on telling how far the run is, on a thread of its own."""
        pause = threading.Event()
        while not pause.wait(_HEARTBEAT_S):
            steps, pending = self.progress()
            self.say(steps=steps, pending=pending)


def main() -> NoReturn:
    """Run the job on standard input."""
    line = Line(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=_end_with_runner, daemon=True).start()
    threading.Thread(target=line.beat, daemon=True).start()
    faulthandler.enable(all_threads=True)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, _cancel)
    try:
        OneRun(job, line).run()
    except BaseException as error:
        traceback.print_exc()
        line.say(failure=failure_kind(error), text=sentence_of(error))
    # An engine's thread that hangs, or one that waits for it, must not keep the process.
    sys.stderr.flush()
    os._exit(0)


def _end_with_runner() -> None:
    """The runner never writes again: what is read here is the end of its life."""
    sys.stdin.buffer.read()
    os._exit(1)


def _cancel(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def sentence_of(error: BaseException) -> str:
    """What an error says, in one line and without paths."""
    cause = error.__cause__ if isinstance(error, EngineDiedError) and error.__cause__ is not None else error
    if isinstance(cause, KeyboardInterrupt):
        return "It was asked to end."
    first = (str(cause).strip() or "no message").splitlines()[0][:300]
    shown = re.sub(r"(?:/[^/\s'\":]+){2,}", lambda path: path[0].rpartition("/")[2], first)
    return shown if isinstance(cause, CbtraceError) else f"{type(cause).__name__}: {shown}"


if __name__ == "__main__":
    main()
