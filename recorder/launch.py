"""Starts a program under recording.

The process of ``cbtrace record`` *becomes* the program (``exec``), so its exit code, signals, terminal, process id and
streams are its own and pass through nobody. cbtrace enters through a ``sitecustomize`` module first on ``PYTHONPATH``
(:mod:`cbtrace.recorder.bootstrap`), in the program's own Python and before its first line.

Every process that runs continuous batching writes a file of its own. The first takes the name asked for; with
``torchrun`` that is rank 0, and rank N writes ``run.rankN.cbt``; any other process writes ``run.pidN.cbt``. A child
forked from a process that already records is not recorded: it would have to write into its parent's trace.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cbtrace.recorder import bootstrap
from cbtrace.recorder.claim import identity
from cbtrace.recorder.program import find_program
from cbtrace.traces.errors import CbtraceError, TraceExistsError, UsageError, declare
from cbtrace.traces.schema import Severity
from cbtrace.traces.writer import TraceWriter

SETTINGS = "CBTRACE_RECORD"
"""Environment variable that carries the settings of the recording into the program, as JSON."""
MAIN = "CBTRACE_RECORD_MAIN"
"""Environment variable in which the first Python of the program leaves its process id."""


@dataclass(frozen=True)
class Settings:
    """How to record a program. The fields beside ``path`` and ``overwrite`` are arguments of ``record``."""

    path: Path
    overwrite: bool = False
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    token_ids: bool = False
    paths: bool = False
    max_size: int | None = None
    ring: bool = False


def launch(command: Sequence[str], settings: Settings) -> NoReturn:
    """Replace this process with a program, recorded.

    Raises:
        UsageError: there is no such program, or no trace can be written under that name.
        CbtraceError: the program's Python lacks what recording needs, or the program cannot be executed.
    """
    program = find_program(command)
    replaces = _check_target(settings)
    if program.note and sys.stderr is not None:
        print(f"cbtrace: {program.note}", file=sys.stderr, flush=True)
    environment = _environment(settings, replaces)
    # Python ignores these, and what is ignored stays so across exec: give the program the system's defaults.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program.executable, program.arguments, environment)
    except OSError as error:
        raise CbtraceError(
            f"{program.executable} cannot be executed ({error.strerror}): name its interpreter before it.",
            slug="program-not-executable",
        ) from error


def _environment(settings: Settings, replaces: list[int] | None) -> dict[str, str]:
    environment = dict(os.environ)
    # The outermost Python of this program is to speak for it, also when it runs inside another recorded program.
    environment.pop(MAIN, None)
    folder = str(Path(bootstrap.__file__).parent)
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([folder, others]) if others else folder
    environment[SETTINGS] = json.dumps(
        {
            "path": str(settings.path.absolute()),
            "overwrite": settings.overwrite,
            "replaces": replaces,
            "name": settings.name,
            "tags": dict(settings.tags),
            "token_ids": settings.token_ids,
            "paths": settings.paths,
            "max_size": settings.max_size,
            "ring": settings.ring,
        }
    )
    return environment


def _check_target(settings: Settings) -> list[int] | None:
    """Check that a trace can be written under the name asked for; return the identity of the one it is to replace.

    The program takes the name when it starts its engine, minutes later perhaps: what can be known to fail fails now.
    Until then an old trace stays where it is, and for good if the program never gets that far.
    """
    path = settings.path
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the trace to write in it, such as {path / 'run.cbt'}.")
    if not path.parent.is_dir():
        raise UsageError(f"The folder {path.parent} does not exist: create it, or name another.", slug="no-folder")
    try:
        TraceWriter.check_target(path, overwrite=settings.overwrite)
        replaces = identity(path)
        probe = path if replaces is None else path.with_name(f".{path.name}.{os.getpid()}")
        TraceWriter(probe).close()
        probe.unlink()
        return replaces
    except TraceExistsError as error:
        if settings.overwrite:
            raise
        raise TraceExistsError(
            f"{path} exists: choose another name, or replace it with --overwrite, which replaces nothing but traces."
        ) from error
    except OSError as error:
        raise CbtraceError(
            f"{path} cannot be written ({error.strerror}): choose another place.", slug="trace-unwritable"
        ) from error


declare(
    "no-folder",
    Severity.BROKEN,
    "The folder that the output is to be written in does not exist.",
    "Create it, or name another.",
)
declare(
    "trace-unwritable",
    Severity.BROKEN,
    "The system refuses to write the trace there.",
    "Choose another place, or make room and allow writing in it.",
)
declare(
    "program-not-executable",
    Severity.BROKEN,
    "The system refuses to execute the program, for one because it has no first line that names an interpreter.",
    "Name the interpreter before it, as in `-- bash run.sh`.",
)
