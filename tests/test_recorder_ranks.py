"""Runs over several processes: a file for each rank, found together by the run's id."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import ranks
from cbtrace.recorder.session import Recording
from cbtrace.recorder.supported import is_verified
from cbtrace.traces import open_trace
from conftest import COMMAND, PROGRAMS

PROGRAM = PROGRAMS / "ranks.py"
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "GROUP_WORLD_SIZE": "2",
}


@pytest.fixture
def launched(monkeypatch: Any) -> Any:
    """Give the id of the next trace of a fresh process, in an environment."""

    def run_id(environment: dict[str, str], world_size: int = 2, earlier: int = 0) -> str:
        for name in (*TORCHRUN, "CBTRACE_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(ranks, "_traces", itertools.count(earlier))
        return ranks.run_id(world_size)

    return run_id


def test_ranks_of_one_launch_share_an_id_and_others_do_not(launched: Any) -> None:
    same = launched(TORCHRUN)
    assert launched(TORCHRUN) == same and len(same) == 16
    for other in (
        {"TORCHELASTIC_RUN_ID": "another"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"MASTER_PORT": "29501"},
        {"CBTRACE_RUN_ID": "mine"},
    ):
        assert launched(TORCHRUN | other) != same, other
    assert launched(TORCHRUN, earlier=1) != same


def test_an_id_of_ones_own_goes_before_the_launchers(launched: Any) -> None:
    assert launched({"CBTRACE_RUN_ID": "mine"}) == launched(TORCHRUN | {"CBTRACE_RUN_ID": "mine"})
    assert "mine" not in launched({"CBTRACE_RUN_ID": "mine"})


def test_processes_that_are_no_ranks_have_ids_of_their_own(launched: Any) -> None:
    alone = TORCHRUN | {"CBTRACE_RUN_ID": "left over in the shell"}
    assert launched(alone, world_size=1) != launched(alone, world_size=1)
    assert launched({}) != launched({})


def test_a_launch_without_a_name_is_told_from_the_next_by_its_parent(launched: Any, monkeypatch: Any) -> None:
    nameless = TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "1"}
    several_nodes = nameless | {"GROUP_WORLD_SIZE": "2"}  # each has a parent of its own
    first, first_of_several = launched(nameless), launched(several_nodes)
    assert launched(nameless) == first
    monkeypatch.setattr(os, "getppid", lambda: 12345)
    assert launched(nameless) != first
    assert launched(several_nodes) == first_of_several


def test_a_rank_that_makes_no_sense_is_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "one")
    Recording(tmp_path / "run.cbt").close()
    header = open_trace(tmp_path / "run.cbt").header
    assert (header.rank, header.world_size) == (0, 1)


def assert_two_ranks(folder: Path) -> None:
    """Two engines on each of two ranks: the first of both ranks is one run, the second another."""
    names = ["run-2.cbt", "run.cbt", "run.rank1-2.cbt", "run.rank1.cbt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    second, first, second_of_1, first_of_1 = traces = [open_trace(folder / name) for name in names]
    assert [(trace.header.rank, trace.header.world_size) for trace in traces] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert first.header.run_id == first_of_1.header.run_id
    assert second.header.run_id == second_of_1.header.run_id != first.header.run_id
    assert [len(trace.tokens.request) for trace in traces] == [4 * 8, 4 * 8, 5 * 8, 5 * 8]
    assert {trace.recovery.status for trace in traces} == {"clean"}
    facts = [trace.header.fingerprint for trace in traces]
    assert [fact["environment.RANK"] for fact in facts] == ["0", "0", "1", "1"]
    # The processes have found the version under test, too.
    assert {fact["software.transformers"] for fact in facts} == {is_verified()[0]}


@pytest.mark.engine
def test_two_processes_over_gloo_each_record_their_engine(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | TORCHRUN | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    children = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "--record", tmp_path / "run.cbt"],
            env=shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert [out for out, _ in said] == ["[72, 72]\n", ""]
    assert_two_ranks(tmp_path)


@pytest.mark.engine
def test_torchrun_under_cbtrace_record(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PROGRAM]
    done = subprocess.run(
        [COMMAND, "record", "-o", "run.cbt", "--", *torchrun],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[72, 72]\n"), done.stderr
    assert done.stderr.count("cbtrace: recorded") == 2
    assert_two_ranks(tmp_path)
