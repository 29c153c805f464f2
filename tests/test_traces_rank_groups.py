"""Which files are ranks of one run, and what is said when they are not all there."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.traces import open_trace
from cbtrace.traces.rank_groups import MOST_RANKS, RankFile, rank_groups, rank_of_file, rank_of_trace, ranks_in_words
from rank_traces import Rank, group_of, rank_paths
from trace_builder import eventful


def groups(*paths: Path) -> list[list[str]]:
    files = [file for path in paths if (file := rank_of_file(path)) is not None]
    return [[path.name for path in group.paths] for group in rank_groups(files)]


def test_a_file_says_its_place_in_its_first_frames(tmp_path: Path) -> None:
    (path,) = rank_paths(tmp_path, Rank(1, world=4))
    found = rank_of_file(path)
    assert found == RankFile(path, "00112233445566aa", 1, 4, 2)
    assert rank_of_trace(open_trace(path)) == found
    assert path.read_bytes()[:1500].count(b"tensor_parallel") == 1
    path.write_bytes(path.read_bytes()[:1500])
    assert rank_of_file(path) == found, "nothing behind the engine is needed"
    assert rank_of_trace(open_trace(path)) == found


def test_what_is_no_rank_has_no_place(tmp_path: Path) -> None:
    eventful(tmp_path / "alone.cbt").close()
    (tmp_path / "note.cbt").write_text("not a trace")
    (tmp_path / "empty.cbt").touch()
    (tmp_path / "folder.cbt").mkdir()
    for name in ("alone", "note", "empty", "folder", "missing"):
        assert rank_of_file(tmp_path / f"{name}.cbt") is None
    assert group_of(tmp_path / "alone.cbt", tmp_path.iterdir()) is None
    (path,) = rank_paths(tmp_path, Rank(0))
    data = bytearray(path.read_bytes())
    data[30] ^= 255  # within the header
    path.write_bytes(data)
    assert rank_of_file(path) is None, "a file that lost its header is of no known run"


def test_ranks_that_make_no_sense_are_none(tmp_path: Path) -> None:
    senseless = [(2, 2, "a"), (-1, 2, "a"), (0, 2, ""), (1, MOST_RANKS + 1, "a"), (1, 1 << 62, "a")]
    for at, (number, world, run_id) in enumerate(senseless):
        (path,) = rank_paths(tmp_path, Rank(number, world=world, run_id=run_id), stem=f"{at}")
        assert rank_of_file(path) is None


def test_ranks_of_one_run_are_put_together_whatever_their_order(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1))
    others = rank_paths(tmp_path, Rank(0, run_id="b"), Rank(1, run_id="b"), stem="other")
    assert groups(one, *others, zero) == [["run.cbt", "run.rank1.cbt"], ["other.cbt", "other.rank1.cbt"]]
    group = group_of(one, [zero, one, *others])
    assert group is not None and group.paths == (zero, one)
    assert (group.missing, group.findings()) == ([], [])


def test_missing_ranks_are_named_and_the_lowest_stands_in(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=4, split=4) for number in (1, 3)))
    (group,) = rank_groups(file for path in paths if (file := rank_of_file(path)) is not None)
    assert group.missing == [0, 2]
    (finding,) = group.findings()
    assert finding.slug == "rank-missing"
    assert finding.meaning == (
        "Of the 4 ranks of this run, ranks 0, 2 have no trace here; rank 1 stands in for rank 0, the only one "
        "that sees requests come."
    )


def test_groups_of_a_launch_that_answer_requests_of_their_own_are_runs_of_their_own(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=4, split=2) for number in range(4)))
    assert groups(*paths) == [["run.cbt", "run.rank1.cbt"], ["run.rank2.cbt", "run.rank3.cbt"]]
    assert group_of(paths[3], paths[:1]).ranks == range(2, 4)  # type: ignore[union-attr]
    alone = rank_paths(tmp_path, Rank(0, split=1), Rank(1, split=1), stem="alone")
    assert groups(*alone) == [["alone.cbt"], ["alone.rank1.cbt"]]
    assert [group.missing for group in rank_groups(filter(None, map(rank_of_file, alone)))] == [[], []]


def test_an_older_recorders_ranks_are_one_run(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0, split=None), Rank(1, split=None))
    assert groups(*paths) == [["run.cbt", "run.rank1.cbt"]]


def test_a_rank_cut_before_its_engine_belongs_to_the_group_that_others_tell(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=4, split=2) for number in range(4)))
    data = paths[3].read_bytes()
    paths[3].write_bytes(data[: data.index(b"\xc1\xb7", 20) + 5])
    found = rank_of_file(paths[3])
    assert found is not None and found.split_over is None
    assert groups(*paths) == [["run.cbt", "run.rank1.cbt"], ["run.rank2.cbt", "run.rank3.cbt"]]


def test_copies_are_kept_apart_and_told(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), Rank(1))
    (tmp_path / "copy").mkdir()
    copies = [Path(shutil.copy(path, tmp_path / "copy")) for path in paths]
    found = rank_groups(filter(None, map(rank_of_file, [*paths, *copies])))
    assert [group.paths for group in found] == [tuple(paths), tuple(copies)]
    assert [[finding.slug for finding in group.findings()] for group in found] == [["rank-twice"]] * 2
    assert "several files of ranks 0, 1 under this run id" in found[0].findings()[0].meaning
    named = group_of(copies[1], [*paths, *copies])
    assert named is not None and copies[1] in named.paths


@settings(max_examples=60, deadline=None)
@given(
    world=st.integers(2, 12),
    split=st.sampled_from([None, 1, 2, 3, 4]),
    numbers=st.lists(st.integers(0, 11), max_size=20),
)
def test_every_file_is_in_exactly_one_group(world: int, split: int | None, numbers: list[int]) -> None:
    files = [RankFile(Path(f"{i}.cbt"), "a", number % world, world, split) for i, number in enumerate(numbers)]
    found = rank_groups(files)
    assert sorted(str(path) for group in found for path in group.paths) == sorted(str(file.path) for file in files)
    for group in found:
        ranks = [file.rank for file in group.files]
        assert ranks == sorted(set(ranks)) and set(ranks) <= set(group.ranks)
        assert sorted([*ranks, *group.missing]) == list(group.ranks)


def test_many_ranks_are_counted() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words(range(14)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
