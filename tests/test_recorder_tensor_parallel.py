"""A real model split over two processes with gloo, started by torchrun under ``cbtrace record``: joined, exactly.

One rank schedules every step 8 ms late, so that it is known who the others wait for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cbtrace.site.analysis.ranks import analyze_ranks
from cbtrace.site.build import build_site
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.rank_groups import rank_groups, rank_of_file
from cbtrace.traces.rank_join import INSTANTS, SCHEDULE
from cbtrace.traces.schema import RequestFlag
from conftest import COMMAND, PROGRAMS, Cbtrace

pytestmark = pytest.mark.engine
REQUESTS, NEW_TOKENS, RANKS = 8, 24, 2
LATE_RANK, DELAY_MS = 1, 8


@dataclass(frozen=True)
class Recorded:
    """What one launch left behind."""

    paths: list[Path]
    traces: list[Trace]
    tokens: dict[str, list[int]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    program = [PROGRAMS / "tensor_parallel.py", folder / "model", str(LATE_RANK), str(DELAY_MS)]
    done = subprocess.run(
        [COMMAND, "record", "-o", folder / "run.cbt", "--", *torchrun, *program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cbtrace: recorded") == RANKS
    paths = [folder / "run.cbt", folder / "run.rank1.cbt"]
    assert sorted(folder.glob("*.cbt")) == paths
    return Recorded(paths, [open_trace(path) for path in paths], json.loads(done.stdout))


def test_the_ranks_are_found_together(recorded: Recorded) -> None:
    (group,) = rank_groups(file for path in reversed(recorded.paths) if (file := rank_of_file(path)) is not None)
    assert list(group.paths) == recorded.paths
    assert (group.ranks, group.missing, group.findings()) == (range(RANKS), [], [])
    assert [file.split_over for file in group.files] == [RANKS] * RANKS


def test_both_ranks_record_the_same_schedule_and_the_same_tokens(recorded: Recorded) -> None:
    first, second = recorded.traces
    for name in (*SCHEDULE, "index", "kv_used", "kv_cached", "waiting", "active", "stop"):
        assert np.array_equal(getattr(first.steps, name), getattr(second.steps, name)), name
    assert int(first.steps.new_tokens.sum()) == REQUESTS * NEW_TOKENS
    for trace in recorded.traces:
        assert trace.recovery.status == "clean"
        hashes = dict(zip(trace.requests.id, trace.requests.output_hash, strict=True))
        assert hashes.keys() == recorded.tokens.keys() and len(hashes) == REQUESTS
        assert len({*hashes.values()} - {b""}) > 1
        assert {len(tokens) for tokens in recorded.tokens.values()} == set(trace.requests.generated.tolist())
    assert first.requests.output_hash == second.requests.output_hash


def test_only_the_driver_knows_when_requests_were_submitted(recorded: Recorded) -> None:
    first, second = (trace.requests for trace in recorded.traces)
    assert not (first.flags & RequestFlag.SUBMIT_UNSEEN).any()
    assert (second.flags & RequestFlag.SUBMIT_UNSEEN).all()
    zero = recorded.traces[1].header.mono_ns - recorded.traces[0].header.mono_ns
    assert (second.submit_ns + zero > first.submit_ns).all(), "the other rank hears of a request after it was submitted"


def test_a_rank_has_its_part_of_the_model_and_of_the_cache(recorded: Recorded) -> None:
    head_dim, layers, block, item = 8, 2, 16, 4
    for trace in recorded.traces:
        (engine,) = trace.engines
        assert (engine.model["kv_heads"], engine.model["tensor_parallel"]) == (2, RANKS)
        assert engine.kv.unit_bytes == 2 * layers * block * (2 // RANKS) * head_dim * item, "keys and values"
        assert engine.model["parameter_bytes"] == item * int(str(engine.model["parameters"]))
        attention, mlp, norms, vocabulary = 2 * 32 * 32 + 2 * 16 * 32, 3 * 32 * 64, 5 * 32, 128 * 32
        every_version = layers * (attention + mlp) // RANKS + norms
        # Versions differ in whether embedding and head are split, too.
        halves = (int(str(engine.model["parameters"])) - every_version) / (vocabulary // 2)
        assert halves in (2, 3, 4)
    parts = [trace.engines[0].model["weights_sample"] for trace in recorded.traces]
    assert parts[0] != parts[1]


def test_the_ranks_are_joined_on_one_clock(recorded: Recorded) -> None:
    found = analyze_ranks(recorded.traces)
    first, second = recorded.traces
    assert (found.join.one_clock, found.join.findings) == (True, [])
    assert found.join.index.tolist() == first.steps.index.tolist() and found.compared == len(first.steps.index)
    shift = second.header.mono_ns - first.header.mono_ns
    for name in INSTANTS:
        assert np.array_equal(found.join.of_all(name)[1], getattr(second.steps, name) + shift), name
    # The engine makes the ranks wait for each other in every step.
    assert (found.join.of_all("start_ns").max(axis=0) <= found.join.of_all("ready_ns").min(axis=0)).all()


def test_the_late_rank_is_found_and_by_how_much(recorded: Recorded) -> None:
    found = analyze_ranks(recorded.traces)
    assert found.waits is not None
    slowest = [wait.slowest for wait in found.waits]
    assert sum(slowest) == found.compared
    # On a busy machine the other rank is the late one now and then.
    assert slowest[LATE_RANK] / found.compared > 0.8
    lag_ms = float(np.median(found.lag_ns)) / 1e6
    assert DELAY_MS <= lag_ms < 4 * DELAY_MS
    waited = [wait.launch_ns for wait in found.waits]
    assert waited[1 - LATE_RANK] > 0.8 * found.compared * DELAY_MS * 1e6 > waited[LATE_RANK]
    assert found.skew_share is not None and 0 < found.skew_share < 1


def test_they_are_one_run_of_a_site(recorded: Recorded, tmp_path: Path) -> None:
    report = build_site(recorded.paths, tmp_path / "site")
    assert [(run.name, run.complete, run.source.name) for run in report.runs] == [("run", True, "run.cbt")]
    assert report.joined == 1
    assert f"Rank {LATE_RANK} was the last to launch in" in (report.out / report.runs[0].page).read_text()


def test_a_missing_and_a_truncated_rank_are_reported(recorded: Recorded, tmp_path: Path, cbtrace: Cbtrace) -> None:
    zero, one = (Path(shutil.copy(path, tmp_path)) for path in recorded.paths)
    sound = cbtrace("check", ".")
    assert sound.returncode == 0, sound.stdout
    one.write_bytes(one.read_bytes()[:-1500])
    last = open_trace(one).recovery.after_step
    assert 0 < last < len(recorded.traces[1].steps.index) - 1
    cut = cbtrace("check", "run.cbt")
    assert cut.returncode == 1
    assert f"The trace of rank 1 (run.rank1.cbt) is not whole: it is cut after step {last}." in cut.stdout
    found = analyze_ranks(map(open_trace, (zero, one)))
    assert found.compared == last + 1
    zero.unlink()
    alone = cbtrace("check", ".")
    assert "Of the 2 ranks of this run, rank 0 has no trace here; rank 1 stands in for rank 0" in alone.stdout


def test_hashes_are_those_of_the_tokens(recorded: Recorded) -> None:
    """The same hash as anyone can make of the tokens that the program printed."""
    requests = recorded.traces[1].requests
    for name, found in zip(requests.id, requests.output_hash, strict=True):
        tokens = np.array(recorded.tokens[name], dtype="<i8").tobytes()
        assert found == hashlib.blake2b(tokens, digest_size=8).digest()
