"""Builds the files of many runs on the machines of a Ray cluster. The bytes are those that this machine would make.

A trace travels to a machine as bytes and is read there as any other is; what comes back are the files of its page. Both
are bytes, and never Python objects; names are checked before anything is written under them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from cbtrace.recorder.cluster.connection import ray_library
from cbtrace.recorder.cluster.machines import Machine, is_there, survey
from cbtrace.site.folder import explained
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.records import StoredRecord, maker_digest
from cbtrace.site.run_builds import FailedRun, Outcomes, RunTask, build_run
from cbtrace.site.run_files import FinishedRun, RunRecord, RunSource
from cbtrace.site.workers import BuildWorkerError

MOST_RETRIES = 2
"""How often a run is built again after its machine or worker was lost."""


class _Built(msgspec.Struct):
    """What a machine sends."""

    files: dict[str, bytes] = {}
    text: str = ""
    """Why there is no page, in a sentence that calls the trace :data:`_NAMELESS`."""
    slug: str = ""
    other_maker: bool = False
    """That machine would make other pages: its cbtrace, or a library that pages depend on, is another one."""


_NAMELESS = "\0"


def ray_builds(note: Callable[[str], None]) -> Callable[[Chrome, Sequence[RunTask], Path], Outcomes]:
    """What builds runs on the cluster that this process is connected to; ``note`` is told which machines it leaves out.

    The function returned raises:
        ClusterError: no machine can be used.
        BuildWorkerError: machines are lost again and again.
        OutputWriteError: something could not be written.
    """

    def build(chrome: Chrome, tasks: Sequence[RunTask], aside: Path) -> Outcomes:
        packages = ("zstandard",) if any(task.source.path.suffix == ".zst" for task in tasks) else ()
        found = survey(packages)
        for text in found.left_out:
            note(text)
        yield from _Builds(chrome, aside, found.machines, note).build(tasks)

    return build


class _Builds:
    """Builds under way."""

    def __init__(self, chrome: Chrome, aside: Path, machines: Sequence[Machine], note: Callable[[str], None]) -> None:
        self._chrome = chrome
        self._aside = aside
        self._note = note
        self._maker = maker_digest(chrome)
        self._site = ray_library().put(chrome)
        # One a core, machines in turn.
        slots = [(number, machine) for machine in machines for number in range(max(1, int(machine.cpus)))]
        self._free = [machine for _, machine in sorted(slots, key=lambda slot: slot[0])]
        self._left_out: set[str] = set()
        self._under_way: dict[Any, tuple[RunTask, Machine]] = {}
        self._tries: dict[RunTask, int] = {}
        self._build_there = ray_library().remote(num_cpus=1, max_retries=0)(build_there)

    def build(self, tasks: Sequence[RunTask]) -> Outcomes:
        """Build all; yield each as it is finished."""
        ray = ray_library()
        left = list(reversed(tasks))
        try:
            while left or self._under_way:
                while left and self._free:
                    task = left.pop()
                    data = _data(task.source)
                    if data is None:  # What cannot be read here is said here.
                        yield task, build_run(self._chrome, task, self._aside)
                    else:
                        self._start(task, data)
                if not self._under_way:
                    if left:
                        raise BuildWorkerError(
                            "No machine of the cluster is left to build pages on: build again, or without --on ray; "
                            "runs that were finished are kept."
                        )
                    return
                [ended], _ = ray.wait(list(self._under_way), num_returns=1)
                task, machine = self._under_way.pop(ended)
                outcome = self._outcome(task, machine, ended)
                if outcome is None:
                    left.append(task)
                else:
                    yield task, outcome
        finally:
            for reference in self._under_way:
                ray.cancel(reference)

    def _start(self, task: RunTask, data: list[bytes]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        machine = self._free.pop(0)
        there = self._build_there.options(
            num_cpus=min(1.0, machine.cpus),
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False),
        )
        self._under_way[there.remote(self._site, self._maker, task, data)] = (task, machine)

    def _outcome(self, task: RunTask, machine: Machine, reference: Any) -> FinishedRun | FailedRun | None:
        """What came of a build; ``None`` when it is to be tried again."""
        from ray.exceptions import RayError

        try:
            built = msgspec.msgpack.decode(ray_library().get(reference), type=_Built)
            stored = msgspec.json.decode(built.files.get(task.record, b"null"), type=StoredRecord | None)
            if stored is None and not (built.other_maker or built.slug):
                raise msgspec.MsgspecError("no record")
        except (RayError, msgspec.MsgspecError, TypeError) as error:
            self._lost(task, machine, error)
            return None
        if built.other_maker:
            self._leave(machine, "it has another version of cbtrace or of a library that pages depend on.")
            return None
        if machine.node not in self._left_out:
            self._free.append(machine)
        if built.slug:
            return FailedRun(task.source.path, built.text.replace(_NAMELESS, str(task.source.path)), built.slug)
        return None if stored is None else self._write(task, built.files, stored.record)

    def _lost(self, task: RunTask, machine: Machine, error: Exception) -> None:
        if machine.node not in self._left_out:
            if is_there(machine):
                self._free.append(machine)
            else:
                self._leave(machine, "it was lost.")
        self._tries[task] = self._tries.get(task, 0) + 1
        if self._tries[task] > MOST_RETRIES:
            raise BuildWorkerError(
                f"The page of {task.source.path.name} could not be built on the cluster: its worker was lost "
                f"{self._tries[task]} times ({type(error).__name__}). Build without --on ray; runs that were finished "
                "are kept."
            )

    def _leave(self, machine: Machine, reason: str) -> None:
        """Give a machine no further trace."""
        if machine.node not in self._left_out:
            self._left_out.add(machine.node)
            self._note(f"Machine {machine.shown} is left out: {reason}")
        self._free = [other for other in self._free if other.node != machine.node]

    def _write(self, task: RunTask, files: Mapping[str, bytes], record: RunRecord) -> FinishedRun:
        """Write the files below the folder for what is not in its place yet. The record is the last of them."""
        with explained(self._aside):
            for name, data in files.items():
                if not belongs(name, task.record):
                    raise BuildWorkerError(
                        f"A machine sent a file named {name[:80]!r}, which no page needs: do not trust it."
                    )
                (self._aside / name).parent.mkdir(parents=True, exist_ok=True)
                (self._aside / name).write_bytes(data)
        return FinishedRun(record, {name: len(data) for name, data in files.items()})


def belongs(name: str, record: str) -> bool:
    """Whether a machine may send a file of that name for a run with that record."""
    path = PurePosixPath(name)
    return name == record or (path.parts[:1] == ("runs",) and ".." not in path.parts)


def _paths(source: RunSource) -> list[Path]:
    """The traces that a run's files are made from: the one that stands for it, and those of its other ranks."""
    ranks = source.ranks.paths if source.ranks is not None else ()
    return list(dict.fromkeys((source.path, *ranks)))


def _data(source: RunSource) -> list[bytes] | None:
    """The content of these traces; ``None`` when one cannot be read."""
    if not source.digest:
        return None
    try:
        return [path.read_bytes() for path in _paths(source)]
    except OSError:
        return None


def build_there(chrome: Chrome, maker: str, task: RunTask, data: Sequence[bytes]) -> bytes:
    """Build one run on a machine of the cluster.

    Args:
        chrome: what all pages of the site share.
        maker: stands for all that pages depend on; a machine that would make others makes none.
        task: the run, with the paths of another machine.
        data: its traces.
    """
    if maker_digest(chrome) != maker:
        return msgspec.msgpack.encode(_Built(other_maker=True))
    with tempfile.TemporaryDirectory(prefix="cbtrace-") as made:
        folder = Path(made)
        moved: dict[Path, Path] = {}
        for number, (path, content) in enumerate(zip(_paths(task.source), data, strict=True)):
            moved[path] = folder / str(number) / path.name
            moved[path].parent.mkdir()
            moved[path].write_bytes(content)
        here, aside = _moved(task.source, moved), folder / "site"
        outcome = build_run(chrome, RunTask(here, task.record), aside)
        if isinstance(outcome, FailedRun):
            return msgspec.msgpack.encode(
                _Built(text=outcome.text.replace(str(here.path), _NAMELESS), slug=outcome.slug)
            )
        return msgspec.msgpack.encode(_Built({path: (aside / path).read_bytes() for path in outcome.sizes}))


def _moved(source: RunSource, moved: Mapping[Path, Path]) -> RunSource:
    """The same traces where they lie now."""
    ranks = source.ranks
    if ranks is not None:
        ranks = replace(ranks, files=tuple(replace(file, path=moved[file.path]) for file in ranks.files))
    return replace(source, path=moved[source.path], ranks=ranks)
