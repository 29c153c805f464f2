"""One run on a machine of a cluster: the task that Ray executes there, and what it sends.

The run itself is a process of its own there, as it is everywhere. The task sends bytes, each message with its kind in
front, and no Python objects: JSON that is checked as it is read, and the trace, which is read as any other is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from cbtrace.recorder.experiments.job import Job
from cbtrace.recorder.experiments.plan_spec import TimeLimits
from cbtrace.recorder.experiments.process import RunProcess
from cbtrace.recorder.facts import NONE, digest

REPORT, TRACE, LOG, ENDING = b"R", b"T", b"L", b"E"
"""Kinds of messages. Reports come first, then the parts of the trace, the end of the log, and how the run ended."""
_PART = 4 << 20
_LOG = 1 << 20
"""Bytes of a log that are sent, from its end."""


def run_there(job: bytes, limits: bytes, files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Run a job; yield messages. ``files`` are those that its workload reads, by path relative to the plan."""
    task: Job = msgspec.json.decode(job, type=Job)
    with tempfile.TemporaryDirectory(prefix="cbtrace-") as name:
        folder = Path(name)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        trace, log = folder / "run.cbt", folder / "run.log"
        task.trace, task.plan_folder = str(trace), str(folder)
        task.placement = {**task.placement, "placement.gpus": _gpus()}
        process = RunProcess(task, log, msgspec.json.decode(limits, type=TimeLimits))
        with closing(process.reports()) as reports:
            for report in reports:
                yield REPORT + msgspec.json.encode(report)
        if trace.is_file():
            with trace.open("rb") as file:
                while part := file.read(_PART):
                    yield TRACE + part
        yield LOG + log.read_bytes()[-_LOG:]
        yield ENDING + msgspec.json.encode(process.ending)


def _gpus() -> str:
    """Which GPUs of the machine the run got, by number."""
    import ray

    given = ",".join(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", [])))
    return given if re.fullmatch(r"[\d,]+", given) else digest(given) if given else NONE
