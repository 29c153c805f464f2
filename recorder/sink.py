"""Where a recording's frames go, and the guard that keeps every failure away from the engine."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cbtrace.recorder.cost import CostHistogram
from cbtrace.traces.errors import TraceFullError
from cbtrace.traces.schema import Footer, Frame, Notice, Severity
from cbtrace.traces.writer import TraceWriter

_REASONS = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full"}


class RecordingStopped(RuntimeWarning):
    """The recording stopped early; generation goes on."""


class Sink:
    """Takes frames until the recording is closed or something goes wrong.

    Nothing here raises. The first failure, whoever's it is, ends the recording: one warning, a footer that says why if
    it can still be written, and from then on every call returns at once. ``live`` is what hooks look at.
    """

    def __init__(
        self,
        writer: TraceWriter,
        path: Path,
        epoch_ns: int,
        frame_ns: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.live = True
        self.epoch_ns = epoch_ns
        self.clock = clock
        """Tells all times of this trace, in ns; a replay has its own. Hooks take it when they are built."""
        self.cost = CostHistogram(frame_ns)
        self.steps = 0
        """Steps handed over; the end mark counts those that were written."""
        self.requests = 0
        self.stopped_by: tuple[str, str] | None = None
        """Why the recording stopped early, once it has: the name of the message, and what the system said."""
        self.is_ring = writer.is_ring
        """Whether the trace gives up old steps: it then needs rosters more often."""
        self._writer = writer
        self.held: list[Frame | bytes] = []
        """Frames of the generation thread that wait for :meth:`release`."""
        self._closing = threading.Lock()
        _open_sinks.add(self)

    def now(self) -> int:
        """Nanoseconds since the recording began."""
        return self.clock() - self.epoch_ns

    @property
    def wants_roster(self) -> bool:
        """Whether the trace needs a roster soon, because it is a ring and can start anew only at one."""
        return self._writer.wants_roster

    def emit(self, frame: Frame | bytes | None) -> None:
        """Write one frame, or a step that is packed already; ``None`` (a probe that had nothing) is no frame."""
        if not self.live or frame is None:
            return
        try:
            self._writer.write(frame)
        except Exception as error:
            self.fail(error)

    def hold(self, frame: Frame | bytes | None) -> None:
        """Keep one frame of the generation thread for the next :meth:`release`: a step is one write, not several."""
        if self.live and frame is not None:
            self.held.append(frame)

    def release(self) -> None:
        """Write what was held, in one write."""
        frames = self.held
        if not frames:
            return
        self.held = []
        if self.live:
            try:
                if len(frames) == 1:
                    self._writer.write(frames[0])
                else:
                    self._writer.write_all(frames)
            except Exception as error:
                self.fail(error)

    def notice(self, slug: str, severity: Severity, text: str) -> None:
        """Write a remark about the recording itself."""
        self.emit(Notice(self.now(), slug, severity, text))

    def tell_missing(self, hook_points: list[str]) -> None:
        """Say which methods of the engine could not be listened to."""
        if hook_points:
            text = f"Hook points not found: {', '.join(hook_points)}. What they would tell is absent."
            self.notice("hook-missing", Severity.WARNING, text)

    def fail(self, error: Exception) -> None:
        """End the recording because of an error, ours or the disk's, and warn once."""
        reason, text = _reason_of(error)
        if self._end(reason, text):
            self.stopped_by = f"stopped-{reason.replace('_', '-')}", text
            warn_once(f"cbtrace stopped recording {self.path.name} ({reason}: {text}); generation goes on unrecorded")

    def close(self, ended_by: str = "") -> None:
        """End the recording in good order, with the name of the signal or error that ended the program, if one did.
        Idempotent."""
        self._end("closed", ended_by)

    def abandon(self) -> None:
        """Forget the file without touching it: a forked child must not write into its parent's trace."""
        self.live = False

    def _end(self, reason: str, text: str) -> bool:
        with self._closing:
            if not self.live:
                return False
            self.live = False
        with contextlib.suppress(Exception):
            if self.held:
                self._writer.write_all(self.held)
        # The footer, or the closing itself, may fail for the very reason that ended the recording.
        with contextlib.suppress(Exception):
            self._writer.write(self._footer(reason, text))
        with contextlib.suppress(Exception):
            if self._writer.removed:
                warn_once(f"the trace {self.path.name} was removed while cbtrace recorded it: nothing of it is left")
        with contextlib.suppress(Exception):
            self._writer.close()
        return True

    def _footer(self, reason: str, text: str) -> Footer:
        return Footer(
            t_ns=self.now(),
            reason=reason,
            steps=self._writer.steps,
            requests=self.requests,
            frames=self._writer.frames + 1,
            cost_ns=self.cost.total_ns,
            cost_p50_ns=self.cost.percentile(0.50),
            cost_p99_ns=self.cost.percentile(0.99),
            text=text,
        )


def _reason_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, TraceFullError):
        return error.footer_reason, f"{error.limit} bytes"
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, "io_error"), os.strerror(error.errno) if error.errno else "I/O error"
    return "recorder_error", f"{type(error).__name__} at {_place_of(error)}"


def _place_of(error: Exception) -> str:
    """Name where our code failed, without the paths of the machine (a trace holds none)."""
    frame: Any = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame is not None else "unknown place"


def warn_once(text: str) -> None:
    """Warn that something is not recorded; called once for each thing."""
    # A filter that turns warnings into errors must not reach the engine.
    with contextlib.suppress(Exception):
        warnings.warn(text, RecordingStopped, stacklevel=2)


_open_sinks: weakref.WeakSet[Sink] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for sink in list(_open_sinks):
        sink.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
