"""The slowest gaps: found, those alike as one, ordered, and tied to the steps that they span."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cbtrace.site.analysis import slow_gaps as module
from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.gaps import GapKinds
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.slow_gaps import SLOWEST, SlowGap, slow_gaps
from cbtrace.traces import Trace
from site_gaps import every_gap
from site_runs import busy_run, mixed_run
from trace_builder import TraceBuilder

Kind = tuple[int, ...]


def found_in(trace: Trace) -> list[SlowGap]:
    return slow_gaps(trace, attribute(trace).gaps).slowest


def kind_of(gap: SlowGap) -> Kind:
    return (gap.duration_ns, gap.first_step, gap.last_step, gap.absent_steps, *gap.pieces.tolist())


def told(gap: SlowGap) -> tuple[Kind, int, tuple[int, int]]:
    return kind_of(gap), gap.count, (gap.request, gap.position)


def one_by_one(trace: Trace) -> dict[Kind, tuple[int, tuple[int, int]]]:
    """By what gaps have in common, slowest first: how many there are, and request and position of the first."""
    gaps = every_gap(trace)
    columns = [gaps.total_ns, gaps.first_step, gaps.last_step, gaps.absent_steps, gaps.pieces]
    kinds = [tuple(row) for row in np.column_stack(columns).tolist()]
    count = Counter(kinds)  # in the order of the first of each
    whose = list(zip(gaps.request.tolist(), gaps.position.tolist(), strict=True))
    return {kind: (count[kind], whose[kinds.index(kind)]) for kind in sorted(count, key=lambda kind: -kind[0])}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [1, 7, SLOWEST, 10_000])
def test_rows_are_the_slowest_kinds_of_gaps_counted_whole(tmp_path: Path, seed: int, limit: int) -> None:
    trace = mixed_run(tmp_path / "run.cbt", seed)
    expected = [(kind, *rest) for kind, rest in one_by_one(trace).items()]
    found = slow_gaps(trace, attribute(trace).gaps, limit).slowest
    assert [told(gap) for gap in found] == expected[:limit]
    assert max(count for _, count, _ in expected) > 1


@pytest.mark.parametrize("seed", range(6))
def test_of_each_piece_there_is_the_gap_that_spent_most_on_it(tmp_path: Path, seed: int) -> None:
    trace = mixed_run(tmp_path / "run.cbt", seed)
    gaps, kinds = every_gap(trace), one_by_one(trace)
    most = slow_gaps(trace, attribute(trace).gaps, 3).most
    assert set(most) == {PIECES[column] for column in np.flatnonzero(gaps.pieces.any(axis=0))}
    amounts = []
    for piece, gap in most.items():
        column = PIECES.index(piece)
        first = int(gaps.pieces[:, column].argmax())
        assert told(gap) == (kind_of(gap), *kinds[kind_of(gap)])
        assert (gap.request, gap.position) == (gaps.request[first], gaps.position[first])
        amounts.append(int(gap.pieces[column]))
    assert amounts == sorted(amounts, reverse=True)
    assert {"recompute", "offloaded", "not_scheduled"} & set(most)


def test_few_gaps_are_looked_at_closely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run of any length, only what may be told is compared: memory does not grow with it."""
    most = 0

    def alike(kinds: GapKinds) -> GapKinds:
        nonlocal most
        most = max(most, len(kinds.count))
        return original(kinds)

    original = module.alike
    monkeypatch.setattr(module, "alike", alike)
    trace = busy_run(tmp_path / "run.cbt", requests=400, stall_step=30)
    kinds = attribute(trace).gaps
    assert len(slow_gaps(trace, kinds).slowest) == SLOWEST
    assert most < 4 * SLOWEST < len(kinds.count) / 5


def test_a_stall_that_everybody_feels_is_one_row(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", stall_step=30, resets=0)
    worst, *others = found_in(trace)
    assert (worst.longest_step, worst.count) == (30, 4)
    assert not [gap for gap in others if (gap.first_step, gap.last_step) == (30, 30)]
    assert len(others) == SLOWEST - 1


def test_a_gap_over_a_soft_reset_tells_what_was_recomputed(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    victim, other = build.submit(10, 3), build.submit(4, 9)
    build.admit(victim)
    build.admit(other)
    build.step({victim: 10, other: 4})
    build.soft_reset(victim)
    for _ in range(3):
        build.step([other])
    build.admit(victim)
    build.step({victim: 11, other: 1})
    build.step([victim, other])
    build.finish(victim)
    build.finish(other)
    worst = found_in(build.close())[0]
    assert (worst.request, worst.position) == (victim.ordinal, 2)
    assert (worst.first_step, worst.last_step, worst.steps, worst.absent_steps) == (1, 4, 4, 3)
    assert worst.soft_reset
    assert worst.own_recompute == 10
    assert worst.decode_tokens == 3 + 2
    assert not worst.offloaded


def test_a_neighbor_s_prompt_is_counted(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    reader, prompt = build.submit(3, 3), build.submit(100, 1)
    build.admit(reader)
    build.step({reader: 3})
    build.admit(prompt)
    build.step({reader: 1, prompt: 100})
    build.step([reader])
    build.finish(reader)
    build.finish(prompt)
    gaps = {gap.position: gap for gap in found_in(build.close())}
    assert (gaps[2].prefill_tokens, gaps[2].steps, gaps[2].longest_step) == (100, 1, 1)
    assert gaps[3].prefill_tokens == 0
