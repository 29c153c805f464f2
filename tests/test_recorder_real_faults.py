"""Faults that the system itself makes, not the tests: generation goes on, and the trace says why it ends."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import RecordingStopped, record
from cbtrace.recorder.session import Recording
from cbtrace.recorder.sink import Sink
from cbtrace.traces import TraceWriter, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import Severity
from engines import Case, prompts, tiny_llama

pytestmark = pytest.mark.engine

CASE = Case(prompts(8, 10, 40), new_tokens=96, settings={"num_blocks": 40})


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def expected(llama: Any) -> dict[str, list[int]]:
    return CASE.run_at_once(llama)


def when_recorded(recording: Recording, steps: int, act: Any) -> threading.Thread:
    def wait() -> None:
        while recording.steps < steps:
            time.sleep(0.001)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def messages(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if issubclass(warning.category, RecordingStopped)]


def test_a_file_size_limit_of_the_system(llama: Any, expected: Any, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resource.setrlimit(resource.RLIMIT_FSIZE, (11_000, before[1]))
        try:
            with record(tmp_path / "run.cbt"):
                tokens = CASE.run_at_once(llama)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tokens.values()) == list(expected.values())
    (told,) = messages(caught)
    assert f"(io_error: {os.strerror(errno.EFBIG)})" in told
    assert (tmp_path / "run.cbt").stat().st_size <= 11_000
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.footer is not None and trace.footer.reason == "io_error"
    assert trace.recovery.status == "stopped" and len(trace.steps.index) > 20
    assert [finding for finding in check(trace) if finding.severity == Severity.BROKEN] == []


def test_a_disk_that_is_full_from_one_write_on(llama: Any, expected: Any, tmp_path: Path) -> None:
    """The descriptor is turned into one of /dev/full, whose every write fails as a full disk's does."""
    if not Path("/dev/full").exists():
        pytest.fail("this system has no /dev/full: the test cannot be run here")
    writers: list[TraceWriter] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(tmp_path / "run.cbt") as recording:
            spare = recording._spare
            assert isinstance(spare, Sink)
            writers.append(spare._writer)
            full = os.open("/dev/full", os.O_WRONLY)
            thread = when_recorded(recording, 30, lambda: os.dup2(full, writers[0]._file))
            tokens = CASE.run_at_once(llama)
            thread.join()
            os.close(full)
    assert list(tokens.values()) == list(expected.values())
    (told,) = messages(caught)
    assert f"(disk_full: {os.strerror(errno.ENOSPC)})" in told
    trace = open_trace(tmp_path / "run.cbt")
    # Nothing more could be written, the reason neither: the trace ends without its end mark, after its last step.
    assert trace.recovery.status == "cut" and len(trace.steps.index) >= 29
    assert [finding for finding in check(trace) if finding.severity == Severity.BROKEN] == []


@pytest.mark.parametrize("ring", [False, True])
def test_a_folder_that_is_removed_under_the_recorder(llama: Any, expected: Any, tmp_path: Path, ring: bool) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    limits: dict[str, Any] = {"max_size": "64KiB", "ring": True} if ring else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(folder / "run.cbt", **limits) as recording:
            thread = when_recorded(recording, 20, lambda: shutil.rmtree(folder))
            tokens = CASE.run_at_once(llama)
            thread.join()
    assert list(tokens.values()) == list(expected.values())
    assert messages(caught) == ["the trace run.cbt was removed while cbtrace recorded it: nothing of it is left"]
    assert recording.paths == []
    assert not folder.exists()


def test_a_target_that_may_not_be_written_is_an_error_before_the_work() -> None:
    with pytest.raises(PermissionError):
        record("/sys/run.cbt")


@pytest.mark.parametrize("after_s", [0.05, 0.4, 0.9])
def test_a_killed_recording_reads_up_to_its_last_step(llama: Any, tmp_path: Path, after_s: float) -> None:
    """The campaign in benchmarks/fault_campaign.py does this 200 times at random instants."""
    path = tmp_path / "run.cbt"
    child = os.fork()
    if child == 0:  # pragma: no cover
        with record(path):
            while True:
                CASE.run_at_once(llama)
    while not path.exists() or path.stat().st_size < 7_000:
        time.sleep(0.005)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    trace = open_trace(path)
    assert {finding.slug for finding in trace.recovery.findings} <= {"cut", "unfinished"}
    assert trace.recovery.after_step == len(trace.steps.index) - 1
    assert trace.steps.members_known.all()
    assert [finding for finding in check(trace) if finding.severity == Severity.BROKEN] == []
