"""The measured window of a run, and what happened in it a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import Ints, Requests, Steps
from cbtrace.traces.schema import StepFlag

NS_PER_S = 1e9


@dataclass(frozen=True)
class Window:
    """First submit to last token of all requests, in nanoseconds of the trace's clock. Empty when nothing came out."""

    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns

    def per_second(self, amount: int) -> float | None:
        """``amount`` a second of the window, ``None`` for an empty window."""
        return amount / (self.duration_ns / NS_PER_S) if self.duration_ns > 0 else None


@dataclass(frozen=True)
class GpuBusy:
    """Share of the window in which kernels of a step ran, by the steps' own GPU timing."""

    busy: float | None
    """``None`` when any step of the window is untimed: a sum over some of the steps would be too small."""
    timed_steps: int
    steps: int


def measured_window(requests: Requests) -> Window:
    """The measured window of ``requests``."""
    submitted = requests.submit_ns[requests.submit_ns >= 0]
    tokens = requests.last_token_ns[requests.last_token_ns >= 0]
    if not len(submitted) or not len(tokens):
        return Window(0, 0)
    return Window(int(submitted.min()), int(tokens.max()))


def gpu_busy(steps: Steps, window: Window) -> GpuBusy:
    """Sum of GPU step time over the window."""
    known = steps.gpu_ns >= 0
    timed, total = int(known.sum()), len(known)
    whole = total > 0 and timed == total and window.duration_ns > 0
    return GpuBusy(float(steps.gpu_ns.sum()) / window.duration_ns if whole else None, timed, total)


def step_durations(steps: Steps) -> Ints:
    """Duration of each step in nanoseconds, shape of ``steps.index``.

    Synchronous: from the start of scheduling to the end of the update. Asynchronous: from the previous step's results
    to this step's, since the wait for the GPU sits there; the first one after a break counts from its own start.
    """
    alone = steps.done_ns - steps.start_ns
    if len(alone) < 2:
        return alone
    between = steps.ready_ns[1:] - steps.ready_ns[:-1]
    overlapped = (
        ((steps.flags[1:] & StepFlag.ASYNC) != 0)
        & (steps.index[1:] == steps.index[:-1] + 1)
        & (steps.start_ns[1:] <= steps.done_ns[:-1])
    )
    return np.concatenate([alone[:1], np.where(overlapped, between, alone[1:])])
