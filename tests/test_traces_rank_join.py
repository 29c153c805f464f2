"""Traces of ranks joined by step, on one clock or aligned by wall clocks; and every way in which they may not agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cbtrace.traces import open_trace
from cbtrace.traces.rank_join import UNKNOWN, RankJoin, RankJoiner
from rank_traces import STEP_NS, STEPS, Rank, rank_paths


def joined(*paths: Path) -> RankJoin:
    joiner = RankJoiner()
    for path in paths:
        joiner.add(open_trace(path))
    return joiner.join()


def test_instants_of_all_ranks_are_on_the_clock_of_the_first(tmp_path: Path) -> None:
    late = Rank(1, began_ns=7_000_000, launch_late=lambda step: 1000 * step)
    join = joined(*rank_paths(tmp_path, Rank(0), late))
    assert (join.one_clock, join.uncertain_ns, join.findings) == (True, 0, [])
    assert join.index.tolist() == list(range(STEPS))
    assert join.on_all.all()
    first, second = join.ranks
    assert (first.rank, second.rank) == (0, 1)
    assert first.start_ns.tolist() == second.start_ns.tolist()
    assert (second.prepared_ns - first.prepared_ns).tolist() == [1000 * step for step in range(STEPS)]
    assert (second.ready_ns - first.ready_ns).tolist() == [0] * STEPS
    assert first.gpu_ns.tolist() == [500_000] * STEPS
    trace = open_trace(tmp_path / "run.cbt")
    assert first.done_ns.tolist() == trace.steps.done_ns.tolist()


def test_a_rank_that_was_cut_has_its_steps_up_to_there(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1))
    data = one.read_bytes()
    one.write_bytes(data[: 2 * len(data) // 3])
    left = open_trace(one)
    assert 0 < len(left.steps.index) < STEPS
    join = joined(zero, one)
    assert len(join.index) == STEPS
    assert join.on_all.tolist() == [step < len(left.steps.index) for step in range(STEPS)]
    assert set(join.ranks[1].start_ns[~join.on_all].tolist()) == {UNKNOWN}
    (finding,) = join.findings
    assert (finding.slug, finding.place) == ("rank-incomplete", "rank 1")
    last = left.recovery.after_step
    assert finding.meaning == f"The trace of rank 1 (run.rank1.cbt) is not whole: it is cut after step {last}."


def test_the_first_rank_may_be_the_one_that_was_cut(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1))
    zero.write_bytes(zero.read_bytes()[:-400])
    join = joined(zero, one)
    assert len(join.index) == STEPS and 0 < join.on_all.sum() < STEPS
    assert [finding.slug for finding in join.findings] == ["rank-incomplete"]


def test_another_schedule_is_told_with_its_first_step(tmp_path: Path) -> None:
    join = joined(*rank_paths(tmp_path, Rank(0), Rank(1, prompt=55)))
    (finding,) = join.findings
    assert finding.slug == "rank-schedule-differs"
    # Prompts of 40 and 55 tokens in chunks of 16: the third chunk is the first that differs.
    assert "differs from that of rank 0 in 2 of 24 steps, first in step 2:" in finding.meaning


def test_whole_traces_of_unlike_length_are_told(tmp_path: Path) -> None:
    join = joined(*rank_paths(tmp_path, Rank(0), Rank(1, steps=STEPS - 4)))
    assert [finding.slug for finding in join.findings] == ["rank-steps-differ"]
    assert "Rank 1 has 20 steps and rank 0 has 24" in join.findings[0].meaning


@pytest.mark.parametrize("boot_ns", [3_600 * 10**9, -5_000_000])
def test_ranks_of_two_hosts_are_aligned_by_their_wall_clocks(tmp_path: Path, boot_ns: int) -> None:
    join = joined(*rank_paths(tmp_path, Rank(0), Rank(1, boot_ns=boot_ns, began_ns=7_000_000)))
    assert not join.one_clock
    assert [finding.slug for finding in join.findings] == ["rank-clocks-differ"]
    assert "the slowest rank of a step is not told" in join.findings[0].meaning
    assert np.abs(join.ranks[1].start_ns - join.ranks[0].start_ns).max() == 0
    # A step takes 0.8 ms from its start to its results: offsets up to that, both ways, let all of them overlap.
    assert join.uncertain_ns == 4 * STEP_NS // 6


@pytest.mark.parametrize("ahead_ns", [40_000_000, -40_000_000])
def test_wall_clocks_that_the_steps_disprove_are_put_right_as_far_as_the_steps_tell(
    tmp_path: Path, ahead_ns: int
) -> None:
    join = joined(*rank_paths(tmp_path, Rank(0), Rank(1, wall_ahead_ns=ahead_ns)))
    assert not join.one_clock
    shift = int(np.abs(join.ranks[1].start_ns - join.ranks[0].start_ns).max())
    assert shift == 4 * STEP_NS // 6 and join.uncertain_ns == 2 * shift


def test_clocks_alike_do_not_help_where_the_steps_cannot_have_overlapped(tmp_path: Path) -> None:
    """Both wall and monotonic clock of rank 1 say that it had each result long before rank 0 began the step."""
    zero, one = map(open_trace, rank_paths(tmp_path, Rank(0), Rank(1)))
    one.header.mono_ns -= 900_000_000
    one.header.wall_ns -= 900_000_000
    for pair in one.clocks:
        pair.wall_ns -= 900_000_000
    joiner = RankJoiner()
    joiner.add(zero)
    joiner.add(one)
    assert not joiner.join().one_clock


def test_clocks_that_claim_the_impossible_break_nothing(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1))
    for mono, wall in ((2**63, 0), (0, 2**64 - 1), (-(2**63), 2**63)):
        trace = open_trace(one)
        trace.header.mono_ns, trace.header.wall_ns = mono, wall
        joiner = RankJoiner()
        joiner.add(open_trace(zero))
        joiner.add(trace)
        assert len(joiner.join().index) == STEPS


def test_one_rank_alone_is_joined_with_nothing(tmp_path: Path) -> None:
    join = joined(*rank_paths(tmp_path, Rank(1)))
    assert (len(join.ranks), join.one_clock, join.findings) == (1, True, [])
