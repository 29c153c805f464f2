"""How long the GPU worked on a step, from two events on the engine's compute stream, and without ever waiting for them.

Put :meth:`GpuStepTimer.begin` and :meth:`GpuStepTimer.end` directly around ``model_runner.compute_batch``. There, the
stream already waits for the step's inputs to be copied, so the copy is not counted; and the engine records its own
*compute over* event later on the same stream, so whenever the host has a step's results, the step's end event has
passed and :meth:`GpuStepTimer.collect` finds it done.

The figure is the time between two points of the stream. It includes gaps in which the GPU waited for the host to launch
the next kernel (eager execution), and, in a step that captures a graph, the capture itself. So it is an upper bound of
the time in kernels, and close to it when a graph is replayed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

_IN_FLIGHT = 8
"""Steps whose events are kept. The engine has at most two in flight."""


class StepTimer(Protocol):
    """Tells how long the device worked on each step."""

    reason: str
    """Why there are no times; empty while all is well."""
    not_ready: int
    """Steps whose time was lost."""

    def begin(self, step: int) -> None:
        """The engine is about to launch ``step``."""

    def end(self, step: int) -> None:
        """The engine has launched ``step``."""

    def collect(self, step: int) -> int:
        """Nanoseconds of device time of ``step``, once its results are there; -1 unknown."""


class GpuStepTimer:
    """Times the steps of one engine on its compute stream. Never raises, never synchronizes.

    ``compute_stream`` returns the stream the engine computes on, or ``None`` for the current one; it is asked at every
    step, since an engine may replace its inputs. ``device`` is a ``torch.device`` or its name. Off CUDA every method
    does nothing and :meth:`collect` returns -1; :attr:`reason` says why. The events are made at the first steps and
    used again, so a step allocates nothing.
    """

    def __init__(self, compute_stream: Callable[[], Any], device: Any) -> None:
        self.reason = ""
        """Why there are no GPU times; empty while all is well."""
        self.not_ready = 0
        """Steps asked for before they were done: their time is lost rather than waited for."""
        self._compute_stream = compute_stream
        self._steps = [-1] * _IN_FLIGHT
        self._begins: list[Any] = []
        self._ends: list[Any] = []
        try:
            torch = importlib.import_module("torch")
            if torch.device(device).type != "cuda":
                self.reason = "the model is not on a CUDA device"
                return
            self._begins = [torch.cuda.Event(enable_timing=True) for _ in range(_IN_FLIGHT)]
            self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(_IN_FLIGHT)]
        except Exception as error:
            self._give_up(error)

    def begin(self, step: int) -> None:
        """The engine is about to launch ``step``. A step that begins and never ends has no time."""
        if self.reason:
            return
        try:
            slot = step % _IN_FLIGHT
            self._steps[slot] = -1
            self._begins[slot].record(self._compute_stream())
        except Exception as error:
            self._give_up(error)

    def end(self, step: int) -> None:
        """The engine has launched ``step``."""
        if self.reason:
            return
        try:
            slot = step % _IN_FLIGHT
            self._ends[slot].record(self._compute_stream())
            self._steps[slot] = step
        except Exception as error:
            self._give_up(error)

    def collect(self, step: int) -> int:
        """Nanoseconds of GPU time of ``step`` (the events resolve about 0.5 µs), or -1: not measured, not done yet, or
        already collected."""
        slot = step % _IN_FLIGHT
        if self.reason or self._steps[slot] != step:
            return -1
        self._steps[slot] = -1
        try:
            if not self._ends[slot].query():
                self.not_ready += 1
                return -1
            milliseconds: float = self._begins[slot].elapsed_time(self._ends[slot])
            return round(milliseconds * 1e6)
        except Exception as error:
            self._give_up(error)
            return -1

    def _give_up(self, error: Exception) -> None:
        self.reason = f"CUDA events failed: {type(error).__name__}"
