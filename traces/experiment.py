"""``experiment.json``: what an experiment planned, what became of each of its runs, and whether the tokens were right.

It lies in the folder of the experiment, beside the traces it names. Like a trace it is untrusted input: read it with
:func:`read_experiment`. Fields are only ever appended, with a default; a change of meaning raises
:data:`EXPERIMENT_FORMAT`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from .errors import CbtraceError, declare
from .schema import Facts, Scalar, Severity

EXPERIMENT_FILE = "experiment.json"
EXPERIMENT_FORMAT = 1

RunStatus = Literal["planned", "running", "done", "failed", "skipped"]
"""``running`` in a file that nobody writes any more: the experiment itself was ended, and the run will be repeated."""
FailureKind = Literal["oom", "dead_end", "hang", "timeout", "killed", "cancelled", "error"]


class ExperimentError(CbtraceError):
    """An experiment cannot be read."""

    slug = "experiment-unreadable"


class StageEntry(Struct):
    """One of the stages, in order."""

    number: int
    title: str


class VariantEntry(Struct):
    """One setting under test."""

    name: str
    stage: int
    kind: Literal["continuous", "static"]
    workload: str
    based_on: str = ""
    """The variant that this one changes; empty for the baseline."""
    changes: dict[str, Any] = field(default_factory=dict)
    """What it changes in that variant, by setting: as planned (``"50%"`` is a share of what the baseline resolved)."""
    together: bool = False
    """More than one variable was changed on purpose: effects cannot be told apart."""
    pinned: list[str] = field(default_factory=list)
    """Settings that were set to what the baseline's engine resolved them to."""


class SubmitLag(Struct):
    """How late requests were submitted, against their planned instants."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Difference(Struct):
    """A request whose tokens differ from the reference's."""

    request: str
    position: int
    """First token that differs, from 1. One behind the shorter of the two: they agree as far as both go."""
    expected: int
    """Token id of the reference; -1 when it has none at this position."""
    found: int


class Correctness(Struct):
    """Whether a run's requests are complete and equal to the reference's."""

    requests: int
    """Planned."""
    complete: int
    """Ended by an end token or by their limit, with at least one token."""
    failures: dict[str, int]
    """Requests that are not complete, by kind: the kinds of a run's failure, ``empty`` and ``unfinished``."""
    reference: str = ""
    """Id of the run that tokens were compared with; empty when there is none."""
    compared: int = 0
    """Requests that are complete in both."""
    equal: int = 0
    same_termination: int = 0
    """Of those compared: ended for the same reason (end token or limit)."""
    differences: list[Difference] = field(default_factory=list)
    differences_left_out: int = 0
    """Differences beyond those listed; all of them where token ids were not stored."""
    remark: str = ""
    """Why tokens were not compared, or what may explain a difference."""


class RunEntry(Struct):
    """One run."""

    id: str
    variant: str
    stage: int
    repeat: int
    status: RunStatus = "planned"
    trace: str = ""
    """Path of its trace, relative to the folder; empty when there is none."""
    failure: FailureKind | None = None
    phase: str = ""
    """What the run was at when it failed: ``model load``, ``cache creation``, ``prefill``, ``decode growth``, ..."""
    text: str = ""
    """What happened, in a sentence."""
    seconds: float = 0.0
    """From the start of its process to its end."""
    started_ns: int = 0
    """Wall clock, nanoseconds since the epoch."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that the engine was asked for, with all shares worked out."""
    submit_lag: SubmitLag | None = None
    correctness: Correctness | None = None
    machine: str = ""
    """A digest of the name of the machine of a cluster that it ran on; empty where the experiment itself was run."""
    lost: list[str] = field(default_factory=list)
    """Earlier attempts of it that were lost with their machine or worker, a sentence each."""


class Experiment(Struct):
    """All of ``experiment.json``."""

    name: str
    plan: dict[str, Any]
    """The plan as it was understood, defaults filled in; of folders only the name."""
    plan_digest: str
    stages: list[StageEntry]
    variants: list[VariantEntry]
    runs: list[RunEntry]
    """In the order they are run."""
    workloads: dict[str, Facts]
    """By name, what the traces' fingerprints say of each."""
    slos: dict[str, Scalar] = field(default_factory=dict)
    conditions: Facts = field(default_factory=dict)
    """Software and hardware of the first run that began: the others have the same, unless ``mixed``."""
    mixed: bool = False
    """Runs of different conditions were let into one experiment on purpose."""
    tool_version: str = ""
    format: int = EXPERIMENT_FORMAT

    def run(self, run_id: str) -> RunEntry:
        """The run of that id."""
        return next(run for run in self.runs if run.id == run_id)


def read_experiment(folder: str | os.PathLike[str]) -> Experiment | None:
    """Read the experiment in a folder; ``None`` when there is none.

    Raises:
        ExperimentError: the file is damaged, too new, or names files outside its folder.
    """
    path = Path(folder) / EXPERIMENT_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
    return decode_experiment(data, str(path))


def decode_experiment(data: bytes, name: str) -> Experiment:
    """Read the content of an ``experiment.json``; ``name`` is what messages call it.

    Raises:
        ExperimentError: it is damaged, too new, or names files outside its folder.
    """
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > EXPERIMENT_FORMAT:
            raise ExperimentError(
                f"{name} is of format {found}, and this cbtrace reads up to {EXPERIMENT_FORMAT}: install a newer one.",
                slug="experiment-too-new",
            )
        experiment = msgspec.json.decode(data, type=Experiment)
    except msgspec.MsgspecError as error:
        raise ExperimentError(f"{name} is damaged ({error}): run the experiment again in a new folder.") from error
    for run in experiment.runs:
        trace = Path(run.trace)
        if trace.is_absolute() or ".." in trace.parts:
            raise ExperimentError(f"{name} names a trace outside its folder: it was not written by cbtrace.")
    return experiment


class _Format(Struct):
    format: int = 1


def write_experiment(experiment: Experiment, folder: Path) -> None:
    """Write ``experiment.json``: whoever reads it at any moment finds the old one or the new one, whole."""
    path = folder / EXPERIMENT_FILE
    aside = path.with_name(f".{EXPERIMENT_FILE}.new")
    data = msgspec.json.format(msgspec.json.encode(experiment, order="deterministic"), indent=1)
    aside.write_bytes(data + b"\n")
    aside.replace(path)


declare(
    "experiment-unreadable",
    Severity.BROKEN,
    "The file experiment.json of a folder cannot be read or was not written by cbtrace.",
    "Run the experiment again, in a new folder.",
)
declare(
    "experiment-too-new",
    Severity.BROKEN,
    "The file experiment.json was written by a newer cbtrace.",
    "Install a newer cbtrace, as the message says.",
)
