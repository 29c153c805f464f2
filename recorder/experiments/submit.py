"""Submits a workload to an engine at its planned instants, and says how late it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cbtrace.recorder.experiments.workload import Workload

_HEAD_START_NS = 20_000_000
"""The first planned instant lies so far ahead that the submitting thread is there in time."""


class Planning(Protocol):
    """What a recording offers to whoever submits by a plan."""

    def plan(self, request_id: str, planned_monotonic_ns: int) -> None:
        """Tell when a request was planned to be submitted."""


@dataclass
class Submission:
    """How submitting went. Lags are nanoseconds from the planned instant to the call of ``add_request``."""

    lags_ns: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Requests that the engine did not take."""
    error: BaseException | None = None


class Submitter:
    """Sends the requests of a workload to one manager.

    A workload that arrives at once is queued before the engine's first batch, so that this one sees all of it and the
    schedule is the same every time. Otherwise a thread of its own submits, so that nobody's reading of results makes a
    request late. ``begun`` is called when the first batch has what it needs.
    """

    def __init__(
        self,
        manager: Any,
        workload: Workload,
        recording: Planning | None,
        submission: Submission,
        begun: Callable[[], None],
    ) -> None:
        self.submission = submission
        self._manager = manager
        self._workload = workload
        self._recording = recording
        self._begun = begun
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Queue everything now, or begin to submit each request at its planned instant."""
        if self._workload.at_once:
            self._queue_all()
            return
        start_ns = time.monotonic_ns() + _HEAD_START_NS
        self._thread = threading.Thread(target=self._run, args=(start_ns,), name="cbtrace-submit", daemon=True)
        self._thread.start()

    def _queue_all(self) -> None:
        """The planned instant of each request is this one."""
        now = time.monotonic_ns()
        for request in self._workload.requests:
            self._submit(request, now)
        self._begun()

    @property
    def finished(self) -> bool:
        """Whether everything was submitted or given up."""
        return self._thread is None or not self._thread.is_alive()

    def stop(self) -> None:
        """Submit nothing more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, start_ns: int) -> None:
        try:
            for request in self._workload.requests:
                planned = start_ns + request.at_ns
                if self._wait_until(planned):
                    return
                self._submit(request, planned)
                self._begun()
        except Exception as error:
            self.submission.error = error

    def _wait_until(self, planned_ns: int) -> bool:
        """Wait; return whether submitting was stopped meanwhile."""
        while (left := planned_ns - time.monotonic_ns()) > 0:
            if self._stop.wait(left / 1e9):
                return True
        return self._stop.is_set()

    def _submit(self, request: Any, planned_ns: int) -> None:
        if self._recording is not None:
            self._recording.plan(request.id, planned_ns)
        self.submission.lags_ns.append(time.monotonic_ns() - planned_ns)
        taken = self._manager.add_request(
            request.prompt, request_id=request.id, max_new_tokens=request.new_tokens, streaming=False
        )
        if taken is None:
            self.submission.refused.append(request.id)
