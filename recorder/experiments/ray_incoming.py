"""What comes back of a run on another machine: its reports, its trace, its log, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import msgspec

from cbtrace.recorder.experiments.experiment_folder import writing_in
from cbtrace.recorder.experiments.job import Report
from cbtrace.recorder.experiments.places import Task
from cbtrace.recorder.experiments.process import Ending
from cbtrace.recorder.experiments.ray_run import ENDING, LOG, REPORT, TRACE


class Incoming:
    """Takes the messages of one run. The trace is written beside its place, and takes its name once the run has ended:
    nobody ever sees a part of one."""

    def __init__(self, task: Task) -> None:
        self.phase = ""
        """What the run said last that it was at."""
        self._path = Path(task.job.trace)
        self._aside = self._path.with_name(f".{self._path.name}.part")
        self._log = task.log
        self._trace: IO[bytes] | None = None
        with writing_in(self._path.parent):
            self._path.unlink(missing_ok=True)

    def take(self, message: object) -> Report | Ending | None:
        """Take one message; return what it says of the run, if anything.

        Raises:
            msgspec.MsgspecError: no run sends such a message.
            CbtraceError: what came cannot be written here.
        """
        if not isinstance(message, bytes):
            raise msgspec.MsgspecError("no bytes")
        kind, data = message[:1], memoryview(message)[1:]
        if kind == REPORT:
            report = msgspec.json.decode(data, type=Report)
            self.phase = report.phase or self.phase
            return report
        with writing_in(self._path.parent):
            if kind == TRACE:
                self._trace = self._trace or self._aside.open("wb")
                self._trace.write(data)
            elif kind == LOG:
                self._log.write_bytes(data)
            elif kind == ENDING:
                return self._ended(msgspec.json.decode(data, type=Ending))
            else:
                raise msgspec.MsgspecError(f"a message of kind {kind!r}")
        return None

    def _ended(self, ending: Ending) -> Ending:
        if self._trace is not None:
            self._trace.close()
            self._aside.replace(self._path)
        return ending

    def close(self) -> None:
        """Leave nothing behind that has no name."""
        if self._trace is not None:
            self._trace.close()
        self._aside.unlink(missing_ok=True)
