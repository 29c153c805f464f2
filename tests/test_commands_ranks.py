"""What the command line says of runs over several ranks: siblings, missing and truncated ones, and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cbtrace
from rank_traces import Rank, rank_paths


def test_info_names_the_other_ranks(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0), Rank(1))
    done = cbtrace("info", "run.rank1.cbt")
    assert done.returncode == 0, done.stderr
    assert "This is rank 1 of a run over 2 tensor-parallel ranks; rank 0 is run.cbt." in done.stdout
    assert "ranks" not in cbtrace("info", "run.cbt", "--json").stdout


def test_check_finds_siblings_and_says_which_are_missing_or_cut(tmp_path: Path, cbtrace: Cbtrace) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=4, split=4) for number in range(4)))
    paths[1].unlink()
    paths[3].write_bytes(paths[3].read_bytes()[:-400])
    done = cbtrace("check", "run.cbt", "--json")
    (first,) = json.loads(done.stdout)["traces"]
    found = {finding["slug"]: finding for finding in first["findings"]}
    assert set(found) == {"rank-of-run", "rank-missing", "rank-incomplete"}
    assert found["rank-of-run"]["meaning"].endswith("; rank 2 is run.rank2.cbt, rank 3 is run.rank3.cbt.")
    assert found["rank-missing"]["meaning"] == "Of the 4 ranks of this run, rank 1 has no trace here."
    assert found["rank-incomplete"]["place"] == "rank 3"
    assert all(finding["remedy"] for finding in found.values())
    assert done.returncode == 1, "something is lost"


def test_check_of_a_folder_reports_a_missing_rank_once(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, *(Rank(number, world=3, split=3) for number in (0, 1)))
    done = cbtrace("check", ".")
    assert done.returncode == 3
    assert done.stdout.count("rank 2 has no trace here. [rank-missing]") == 1
    assert done.stdout.count("[rank-of-run]") == 2


def test_check_says_where_schedules_part(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0), Rank(1, prompt=55))
    done = cbtrace("check", "run.cbt")
    assert done.returncode == 3
    assert "The schedule of rank 1 differs from that of rank 0 in 2 of 24 steps, first in step 2:" in done.stdout


def test_ranks_that_share_no_model_are_runs_of_their_own(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0, split=1), Rank(1, split=1))
    done = cbtrace("check", ".")
    assert (done.returncode, done.stdout.count("sound")) == (0, 2)


@pytest.fixture
def compared(tmp_path: Path, cbtrace: Cbtrace) -> dict[str, Any]:
    for side, world in (("a", 1), ("b", 2)):
        (tmp_path / side).mkdir()
        ranks = [Rank(number, world=world, split=world, run_id=side) for number in range(world)]
        rank_paths(tmp_path / side, *ranks)
    done = cbtrace("diff", "a", "b", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_diff_takes_the_ranks_of_a_run_for_one_run(compared: dict[str, Any]) -> None:
    assert [[run["name"] for run in compared[side]] for side in ("a", "b")] == [["rank 0"], ["rank 0"]]


def test_another_number_of_ranks_is_another_condition_and_the_model_is_not_another(compared: dict[str, Any]) -> None:
    comparability = compared["comparability"]
    facts = {fact["name"]: fact for fact in comparability["conditions"]}
    for name in ("ranks.world_size", "ranks.tensor_parallel"):
        fact = facts[name]
        assert (fact["a"], fact["b"], fact["state"], fact["category"]) == ("1", "2", "differs", "hardware")
    assert "ranks.rank" not in facts, "it is the same"
    # Of the split model only a rank's part is known.
    assert {facts[f"model.{name}"]["state"] for name in ("parameter_bytes", "part.parameter_bytes")} == {"unknown"}
    assert (comparability["kind"], comparability["unlike"]) == ("unlike", ["hardware"])


def test_ranks_of_one_run_on_both_sides_are_refused(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0), Rank(1))
    done = cbtrace("diff", "run.cbt", "run.rank1.cbt")
    assert done.returncode == 2
    assert "run.rank1.cbt holds the same run as run.cbt, or another rank of it" in done.stderr
