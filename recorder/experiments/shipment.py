"""What a job needs of this machine's files, so that it can be run on another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cbtrace.recorder.experiments.job import Job
from cbtrace.recorder.experiments.model_source import folder_of
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.workload import WorkloadSpec


def packed(job: Job) -> tuple[Job, dict[str, bytes]]:
    """The job as another machine can do it, and the files that its workload reads, by path relative to the plan.

    The folder of a model is named by its whole path: it must be there on every machine.

    Raises:
        SpecError: a file cannot be read.
    """
    folder, files = Path(job.plan_folder), dict[str, bytes]()
    workload: dict[str, Any] = msgspec.to_builtins(job.workload)
    _pack(workload, folder, files)
    model, kept = job.model, folder_of(job.model, folder)
    if kept is not None:
        model = msgspec.structs.replace(model, source=str(kept.absolute()))
    moved = {"workload": msgspec.convert(workload, WorkloadSpec), "model": model}
    return msgspec.structs.replace(job, **moved, plan_folder="", trace=""), files


def _pack(data: dict[str, Any], folder: Path, files: dict[str, bytes]) -> None:
    for key, value in data.items():
        if isinstance(value, dict):
            _pack(value, folder, files)
        elif key == "file":
            path = folder / Path(value).expanduser()
            name = f"{len(files)}/{path.name}"
            try:
                files[name] = path.read_bytes()
            except OSError as error:
                raise SpecError(f"{value} cannot be read ({error.strerror}): the workload needs it.") from error
            data[key] = name
