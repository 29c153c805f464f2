"""Of the processes of one program, exactly one replaces the old trace, and only when it records; what is said then."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cbtrace.recorder.claim import claimed, identity
from cbtrace.recorder.outcome import sentences


def race(path: Path, replaces: list[int], start: Any, told: Any) -> None:
    start.wait()
    with claimed(path, replaces) as first:
        if first:
            path.unlink()
            path.write_text(str(os.getpid()))
    told.put(first)


def test_one_of_many_processes_replaces_the_old_file(tmp_path: Path) -> None:
    """A new file often gets the number of the old one: times, and holding the old one open, tell them apart."""
    path = tmp_path / "run.cbt"
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        path.write_text("old")
        replaces = identity(path)
        assert replaces is not None
        start, told = context.Event(), context.Queue()
        processes = [context.Process(target=race, args=(path, replaces, start, told)) for _ in range(6)]
        for process in processes:
            process.start()
        start.set()
        answers = [told.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        assert sorted(answers) == [False] * 5 + [True]
        assert path.read_text() != "old"


def test_what_is_not_the_old_file_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    assert identity(path) is None
    with claimed(path, None) as first:
        assert not first
    path.write_text("old")
    replaces = identity(path)
    path.rename(tmp_path / "aside.cbt")
    with claimed(path, replaces) as first:
        assert not first, "it is gone"
    path.write_text("new")
    with claimed(path, replaces) as first:
        assert not first, "somebody has recorded meanwhile"


def recording(folder: Path, *names: str, stopped: str = "") -> Any:
    paths = [folder / name for name in names]
    for path in paths:
        path.touch()
    why = {folder / stopped: ("stopped-disk-full", "No space left on device")} if stopped else {}
    return SimpleNamespace(paths=paths, stopped=why, began_ns=paths[0].stat().st_mtime_ns)


def older(path: Path) -> None:
    path.touch()
    os.utime(path, (1, 1))


def test_the_last_line_names_what_there_is_and_what_is_only_there_in_part(tmp_path: Path) -> None:
    run = recording(tmp_path, "run.cbt", "run-2.cbt", "run-3.cbt", stopped="run-2.cbt")
    assert list(sentences(run, replaced=False)) == [
        (f"recorded {tmp_path}/run.cbt, {tmp_path}/run-3.cbt", ""),
        (
            f"recorded {tmp_path}/run-2.cbt only up to when the recording stopped early (No space left on device)",
            "stopped-disk-full",
        ),
    ]


def test_neighbors_of_a_trace_that_was_replaced_are_named_and_left(tmp_path: Path) -> None:
    for name in ("run-2.cbt", "run.pid77.cbt", "run.rank1.cbt", "run-x.cbt", "running-2.cbt", "run-2.txt", "other.cbt"):
        older(tmp_path / name)
    (tmp_path / "run-9.cbt").touch()
    run = recording(tmp_path, "run.cbt", "run-3.cbt")
    run.began_ns = (tmp_path / "run-9.cbt").stat().st_mtime_ns
    said = list(sentences(run, replaced=True))
    assert [slug for _, slug in said] == ["", "older-traces"]
    assert said[1][0].endswith("left alone: run-2.cbt, run.pid77.cbt, run.rank1.cbt")
    assert len(list(sentences(run, replaced=False))) == 1
