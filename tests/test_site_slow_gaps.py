"""The slowest gaps: found, ordered, and tied to the steps that they span."""

from __future__ import annotations

from pathlib import Path

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.slow_gaps import SLOWEST, SlowGap
from cbtrace.traces import Trace
from site_gaps import true_gaps
from site_runs import busy_run
from trace_builder import TraceBuilder


def found_in(trace: Trace) -> list[SlowGap]:
    return attribute(trace).slowest


def test_the_list_is_the_top_of_all_gaps(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", stall_step=30)
    gaps = found_in(trace)
    everything = sorted(true_gaps(trace), key=lambda gap: (-gap[2], *gap[:2]))
    assert len(everything) > SLOWEST
    assert [(gap.request, gap.position, gap.duration_ns) for gap in gaps] == everything[:SLOWEST]
    stalled = [gap for gap in gaps if gap.longest_step == 30]
    assert stalled, "the step that was 50 times as long is behind a slow gap"


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
    assert (worst.first_step, worst.last_step, worst.steps, worst.steps_with_request) == (1, 4, 4, 1)
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
