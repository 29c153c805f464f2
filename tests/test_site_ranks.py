"""Ranks side by side: who was last, who waited, for how long; from traces whose lags are known by design."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.site.analysis.ranks import RankAnalysis, analyze_ranks
from cbtrace.traces import open_trace
from rank_traces import STEP_NS, STEPS, Rank, rank_paths

US = 1000


def analyzed(folder: Path, *ranks: Rank) -> RankAnalysis:
    return analyze_ranks(open_trace(path) for path in rank_paths(folder, *ranks))


def test_the_slowest_rank_of_each_step_is_the_last_to_launch(tmp_path: Path) -> None:
    third = Rank(2, world=3, split=3, launch_late=lambda step: 30 * US)
    first = Rank(0, world=3, split=3, launch_late=lambda step: 50 * US if step % 4 == 0 else 0)
    found = analyzed(tmp_path, first, Rank(1, world=3, split=3, began_ns=9_000_000), third)
    assert found.slowest.tolist() == [0 if step % 4 == 0 else 2 for step in range(STEPS)]
    assert found.lag_ns.tolist() == [50 * US if step % 4 == 0 else 30 * US for step in range(STEPS)]
    assert found.waits is not None
    assert [wait.slowest for wait in found.waits] == [6, 0, 18]
    assert [wait.launch_ns for wait in found.waits] == [18 * 30 * US, (6 * 50 + 18 * 30) * US, 6 * 20 * US]
    # A step takes from its start to its update, 5 of 6 parts: the pause between steps is the builder's.
    assert found.skew_share == pytest.approx((6 * 50 + 18 * 30) * US / (STEPS * 5 * STEP_NS // 6))
    assert (found.compared, found.after_pause) == (STEPS, 0)


def test_who_comes_first_to_a_meeting_waits_for_the_last(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(0, come_late=lambda step: 10 * US), Rank(1, come_late=lambda step: 25 * US))
    assert found.waits is not None
    assert [wait.meeting_ns for wait in found.waits] == [(STEPS - 1) * 15 * US, 0], "before the first, ranks start up"
    assert found.lag_ns.tolist() == [0] * STEPS
    assert found.meeting_ns.tolist() == [0] + [15 * US] * (STEPS - 1)


def test_a_meeting_after_a_pause_says_nothing(tmp_path: Path) -> None:
    """The rank that asks for work first waits for work, and not for the other rank: this is counted apart."""
    late = Rank(1, come_late=lambda step: 20 * US, pause_before=10)
    found = analyzed(tmp_path, Rank(0, pause_before=10), late)
    assert (found.after_pause, found.after_pause_ns) == (1, 20 * US)
    assert found.waits is not None
    assert [wait.meeting_ns for wait in found.waits] == [(STEPS - 2) * 20 * US, 0]


def test_a_shorter_trace_is_compared_over_the_steps_that_both_have(tmp_path: Path) -> None:
    long = Rank(0, gpu_ns=lambda step: 300_000 if step < STEPS // 2 else 900_000)
    found = analyzed(tmp_path, long, Rank(1, steps=STEPS // 2, gpu_ns=lambda step: 300_000))
    assert [rank.steps for rank in found.ranks] == [STEPS, STEPS // 2]
    assert [rank.step_ms.n for rank in found.ranks] == [STEPS // 2] * 2
    assert [rank.gpu_ms.p99 for rank in found.ranks] == [0.3, 0.3]


def test_gpu_time_beyond_the_shortest_is_a_wait(tmp_path: Path) -> None:
    long = Rank(1, gpu_ns=lambda step: 500_000 + 7 * US * (step % 2))
    found = analyzed(tmp_path, Rank(0), long)
    assert found.gpu_spread_ns.tolist() == [7 * US * (step % 2) for step in range(STEPS)]
    assert found.waits is not None
    assert [wait.gpu_beyond_ns for wait in found.waits] == [0, STEPS // 2 * 7 * US]
    assert [rank.gpu_ms.n for rank in found.ranks] == [STEPS, STEPS]


def test_one_untimed_step_makes_the_sum_unknown_and_no_other_figure(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(0), Rank(1, gpu_ns=lambda step: -1 if step == 3 else 400_000))
    assert found.waits is not None
    assert [wait.gpu_beyond_ns for wait in found.waits] == [None, None]
    assert found.gpu_spread_ns[3] == -1 and (found.gpu_spread_ns[4:] == 100_000).all()
    assert [rank.gpu_ms.n for rank in found.ranks] == [STEPS, STEPS - 1]


def test_only_steps_of_all_ranks_are_compared(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1, launch_late=lambda step: 10 * US))
    one.write_bytes(one.read_bytes()[:-500])
    found = analyze_ranks(map(open_trace, (zero, one)))
    left = found.ranks[1].steps
    assert 0 < left < STEPS and not found.ranks[1].whole
    assert found.compared == left
    assert found.slowest.tolist() == [1] * left + [-1] * (STEPS - left)
    assert found.waits is not None and found.waits[0].launch_ns == left * 10 * US


def test_without_one_clock_no_rank_is_called_slowest(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(0), Rank(1, boot_ns=3600 * 10**9, launch_late=lambda step: 10 * US))
    assert found.waits is None and set(found.slowest.tolist()) == {-1} and found.skew_share is None
    assert [rank.step_ms.n for rank in found.ranks] == [STEPS, STEPS], "what each rank says of itself still holds"


def test_memory_of_each_rank(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(0), Rank(1))
    for number, rank in enumerate(found.ranks):
        assert rank.memory.marks == {"model_loaded": 5000 + number}
        assert rank.memory.peak is not None and rank.memory.peak.bytes == 6500 + number
        assert rank.memory.weight_bytes == 1000 + number
        assert rank.memory.kv_bytes == 4097 * 1024
        assert rank.memory.device_used == 7000
        # Writing inputs and updating requests: two of the six parts of a step.
        assert rank.host_ms.p50 == pytest.approx(2 * (STEP_NS // 6) / 1e6)


def test_a_rank_alone_waits_for_nobody(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(1))
    assert found.waits is None and [rank.rank for rank in found.ranks] == [1]


def test_ranks_without_a_step_are_no_error(tmp_path: Path) -> None:
    found = analyzed(tmp_path, Rank(0, steps=0), Rank(1, steps=0))
    assert (found.waits, found.compared, found.skew_share) == (None, 0, None)
