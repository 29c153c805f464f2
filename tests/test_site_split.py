"""A long run is built by several processes: the same bytes, the same errors, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from cbtrace.site.build import build_site
from cbtrace.site.folder import STATE
from cbtrace.site.run_builds import RunTask, processes_by_run
from cbtrace.site.run_files import RunSource
from cbtrace.site.workers import _PATIENCE_S
from conftest import started
from site_runs import busy_run
from test_site_build import contents

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from long_trace import write_long_trace
from long_workload import Plan


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of three parts of requests, and nine files of steps."""
    path = tmp_path_factory.mktemp("long") / "long.cbt"
    write_long_trace(path, Plan(18_000))
    return path


def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split shorter runs than is worth it."""
    monkeypatch.setattr("cbtrace.site.run_builds.WORTH_SPLITTING", 1)


@pytest.mark.parametrize("jobs", [2, 5])
def test_a_run_that_is_split_has_the_same_bytes(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    build_site([long_run], tmp_path / "one", jobs=1)
    split(monkeypatch)
    told: list[float] = []
    report = build_site(
        [long_run], tmp_path / "many", jobs=jobs, progress=lambda done, total, name: told.append(done / total)
    )
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert report.files == len([name for name in contents(tmp_path / "many") if not name.startswith(STATE)])
    assert (told[0], told[-1]) == (0, 1) and told == sorted(told)
    assert len([share for share in told if 0.55 < share < 1]) > 6  # it is told of while the files are made


def test_few_runs_are_split_and_short_ones_are_not(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [long_run, tmp_path / "short.cbt", tmp_path / "text.cbt"]
    busy_run(paths[1], "short")
    paths[2].write_text("no trace")
    one = build_site(paths, tmp_path / "one", jobs=1)
    monkeypatch.setattr("cbtrace.site.run_builds.WORTH_SPLITTING", long_run.stat().st_size)
    many = build_site(paths, tmp_path / "many", jobs=8)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert [failed.slug for failed in many.failed] == [failed.slug for failed in one.failed] == ["not-a-trace"]


@pytest.mark.parametrize(
    ("sizes", "jobs", "each"),
    [
        ([100], 1, [1]),
        ([100], 4, [4]),
        ([100], 64, [4]),
        ([100, 99, 100], 2, [1, 1, 1]),
        ([100, 99, 100], 7, [2, 1, 2]),
    ],
)
def test_all_runs_together_have_no_more_processes_than_jobs(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], jobs: int, each: list[int]
) -> None:
    monkeypatch.setattr("cbtrace.site.run_builds.WORTH_SPLITTING", 100)
    monkeypatch.setattr("cbtrace.site.run_builds.WORTH_A_PROCESS", 1)
    tasks = [RunTask(RunSource(Path("run.cbt"), "", size, 1), "record") for size in sizes]
    assert processes_by_run(tasks, jobs) == (min(jobs, len(sizes)), each)
    monkeypatch.setattr("cbtrace.site.run_builds.can_fork", lambda: False)
    assert processes_by_run(tasks, jobs) == (min(jobs, len(sizes)), [1] * len(sizes))


SPLIT = """
import multiprocessing, sys
from pathlib import Path
import cbtrace.site.run_builds as builds
builds.WORTH_SPLITTING = 1
{patch}
from cbtrace.commands import main
main()
"""
SEEN_BY_ALL = """
builds._context = lambda: multiprocessing.get_context("fork")  # whose processes have what is changed here
"""


def building(long_run: Path, site: Path, jobs: int, patch: str = "") -> list[str]:
    """A command that builds the run in so many processes."""
    code = SPLIT.format(patch=dedent(patch))
    return [sys.executable, "-c", code, "build", str(long_run), "-o", str(site), "-j", str(jobs)]


def said_by(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("piece", ["request_lists", "request_details"])
def test_a_mistake_in_a_part_is_told_as_any_other(long_run: Path, tmp_path: Path, piece: str) -> None:
    patch = f"""
    import cbtrace.site.pages.request_pieces as pieces
    def fail(*given):
        raise ZeroDivisionError("of ours")
    pieces.{piece} = fail
    {SEEN_BY_ALL.strip()}
    """
    told = [said_by(building(long_run, tmp_path / "site", jobs, patch)) for jobs in (1, 3)]
    assert told[0] == told[1]
    assert told[0][0] == 1 and "(ZeroDivisionError: of ours; <string>, line " in told[0][1]
    assert not (tmp_path / "site").exists()


def test_a_full_disk_in_a_part_is_told_as_any_other(long_run: Path, tmp_path: Path) -> None:
    patch = f"""
    real = Path.write_bytes
    def full(path, data):
        if path.name.startswith("steps-3."):
            raise OSError(28, "No space left on device")
        return real(path, data)
    Path.write_bytes = full
    {SEEN_BY_ALL.strip()}
    """
    told = [said_by(building(long_run, tmp_path / "site", jobs, patch)) for jobs in (1, 3)]
    assert told[0] == told[1]
    assert "no space left on device" in told[0][1] and "[output-unwritable]" in told[0][1]
    assert not (tmp_path / "site").exists()


def forks_of(process: subprocess.Popen[str]) -> tuple[psutil.Process, list[psutil.Process]]:
    """The process that builds the run, and its forks, as soon as there are any."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for server in psutil.Process(process.pid).children():
            for child in server.children():
                if forks := child.children():
                    return child, forks
        time.sleep(0.005)
    raise AssertionError("the run was not split")


def none_left(session: int) -> bool:
    """Whether all processes of a session are gone, or go soon: the one that starts others ends after its parent."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if session not in {_session(pid) for pid in psutil.pids()}:
            return True
        time.sleep(0.05)
    return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


@pytest.mark.parametrize("whose", ["fork", "builder"])
def test_a_process_that_the_system_ends_is_told_and_takes_the_others_along(
    long_run: Path, tmp_path: Path, whose: str
) -> None:
    command = building(long_run, tmp_path / "site", 3)
    with started(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        builder, forks = forks_of(process)
        (forks[0] if whose == "fork" else builder).kill()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "memory ran out" in said and said.endswith("[build-worker-ended]\n") and said.count("\n") == 1
        assert not (tmp_path / "site").exists()
        assert none_left(process.pid)


def test_ctrl_c_ends_all_processes_and_leaves_nothing(long_run: Path, tmp_path: Path) -> None:
    command = building(long_run, tmp_path / "site", 3)
    with started(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        forks_of(process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to its processes as well
        began = time.monotonic()
        said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, ("", ""))
        assert time.monotonic() - began < _PATIENCE_S, "they ended when asked to"
        assert not (tmp_path / "site").exists()
        assert none_left(process.pid)
