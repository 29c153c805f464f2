"""Starts the process of one run, listens to it, and ends it when it hangs or takes too long."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cbtrace.recorder.experiments.experiment_folder import writing_in
from cbtrace.recorder.experiments.job import Job, Report
from cbtrace.recorder.experiments.plan_spec import TimeLimits
from cbtrace.traces.experiment import FailureKind, SubmitLag
from cbtrace.traces.schema import Facts

_POLL_S = 0.25
_GRACE_S = 15.0
"""How long a run that was asked to end may take to close its trace."""


@dataclass
class Ending:
    """How a run ended and what it told."""

    done: bool = False
    failure: FailureKind | None = None
    phase: str = ""
    text: str = ""
    seconds: float = 0.0
    steps: int = 0
    lag: SubmitLag | None = None
    conditions: Facts | None = None
    workload: Facts | None = None
    differing: list[str] = field(default_factory=list)
    """It was not run: these conditions are not those of the runs before."""
    elsewhere: bool = False
    """It was not run on that machine, and there are others that it may go to."""
    lost: str = ""
    """The machine or the worker it was on is gone, in a sentence; nothing is known of the run itself."""


@dataclass
class Watchdog:
    """Decides when a run is to be given up. All times are seconds on one clock."""

    limits: TimeLimits
    started: float
    steps: int = -1
    pending: int = 0
    moved: float = 0.0
    """When a step was last finished, or nothing was pending, or the phase changed."""
    phase: str = ""

    def heard(self, report: Report, now: float) -> None:
        """The run has told how far it is."""
        if report.steps != self.steps or report.phase != self.phase or not report.pending:
            self.moved = now
        self.steps, self.phase, self.pending = report.steps, report.phase, report.pending

    def verdict(self, now: float) -> FailureKind | None:
        """Why the run is to be ended now, if it is.

        Only an engine that is generating can hang: loading and compiling take as long as they take, up to the limit of
        the whole run. A process that says nothing at all any more while it generates hangs as well.
        """
        if self.phase == "generation" and now - self.moved > self.limits.stall_s:
            return "hang"
        return "timeout" if now - self.started > self.limits.run_s else None


class RunProcess:
    """One run in a process of its own, in a process group of its own: Ctrl-C reaches the runner alone."""

    def __init__(self, job: Job, log: Path, limits: TimeLimits) -> None:
        self.ending = Ending()
        """How it ended, once :meth:`reports` has come to its end."""
        self._started = time.monotonic()
        self._limits = limits
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with writing_in(log.parent):
            errors = log.open("wb")
        with errors:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "cbtrace.recorder.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._listen, daemon=True).start()

    def reports(self) -> Generator[Report, None, None]:
        """What it says, until its end; one that hangs or takes too long is brought to its end.

        Closed early, or interrupted, it ends the run in good order.
        """
        dog = Watchdog(self._limits, self._started, moved=self._started)
        try:
            yield from self._follow(dog)
        except BaseException:
            self._ask_to_end()
            raise
        finally:
            self.ending.seconds = time.monotonic() - self._started
            self._close()
        self._explain()

    def _follow(self, dog: Watchdog) -> Generator[Report, None, None]:
        ending = self.ending
        while True:
            now = time.monotonic()
            verdict = None if ending.done or ending.failure else dog.verdict(now)
            if verdict is not None:
                self._give_up(verdict)
                return
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if line is None:
                return
            report = msgspec.json.decode(line, type=Report)
            dog.heard(report, time.monotonic())
            _take(report, ending)
            yield report

    def _give_up(self, verdict: FailureKind) -> None:
        ending, limits = self.ending, self._limits
        ending.failure = verdict
        if verdict == "hang":
            ending.text = (
                f"No step was finished for {limits.stall_s:g} s with requests pending, after {ending.steps} steps."
            )
        else:
            ending.text = f"It took longer than {limits.run_s:g} s; {ending.steps} steps were done."
        # Its threads' stacks go to the log before it is ended.
        if hasattr(signal, "SIGUSR1"):
            self._send(signal.SIGUSR1)
            time.sleep(0.2)
        self._send(signal.SIGKILL)

    def _ask_to_end(self) -> None:
        self._send(signal.SIGTERM)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _close(self) -> None:
        """Reap the process; let go of the pipes."""
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                if line.endswith(b"\n"):  # Of a process that was killed the last line may be a part.
                    self._lines.put(line)
        self._lines.put(None)

    def _explain(self) -> None:
        """Say what ended a process that said nothing itself."""
        ending, code = self.ending, self._process.returncode
        if ending.done or ending.failure or ending.differing:
            return
        if code < 0:
            name = _signal_name(-code)
            ending.failure = "killed"
            ending.text = f"Its process was ended by {name}"
            ending.text += ", as the system does when memory runs out." if name == "SIGKILL" else "."
        else:
            ending.failure = "error"
            ending.text = f"Its process ended with code {code} and said nothing; its log may tell more."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Most of the real-time signals have no name.
        return f"signal {number}"


def _take(report: Report, ending: Ending) -> None:
    ending.phase = report.phase or ending.phase
    ending.steps = max(ending.steps, report.steps)
    ending.conditions = report.conditions or ending.conditions
    ending.workload = report.workload or ending.workload
    ending.differing = report.differing or ending.differing
    if report.done:
        ending.done, ending.lag = True, report.lag
    elif report.failure is not None:
        ending.failure, ending.text = report.failure, report.text
