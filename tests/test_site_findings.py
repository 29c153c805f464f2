"""Each rule of the findings speaks on a run that has its trouble, and is silent on one that has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.evidence import Evidence
from cbtrace.site.analysis.findings import RULES, Finding, findings
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.pages.finding_section import finding_rows
from cbtrace.site.pages.run import SECTIONS, time_origin
from cbtrace.site.run_ranks import run_ranks
from cbtrace.site.words import load_words
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.schema import (
    AdmissionStop,
    EndReason,
    Engine,
    Event,
    EventKind,
    Footer,
    Frame,
    Gpu,
    GraphKey,
    KvGroup,
    Memory,
    Request,
    Step,
    Visible,
)
from cbtrace.traces.stepcode import pack_times
from rank_traces import Rank, group_of, rank_paths
from trace_builder import CAPACITY, UNIT_BYTES, SimRequest, TraceBuilder

MS = 1_000_000


def told(trace: Trace) -> dict[str, Finding]:
    ranks = run_ranks(trace, group_of(trace.path, trace.path.parent.iterdir()))
    evidence = Evidence(
        trace, summarize(trace), attribute(trace), time_origin(trace), ranks.analysis if ranks else None
    )
    return {finding.rule: finding for finding in findings(evidence)}


class Toy:
    """A run of plain decodes that a test bends: by default nothing about it is worth a word."""

    def __init__(self, path: Path) -> None:
        self.build = TraceBuilder(path, step_ns=6 * MS)
        self.engine: Engine = self.build.frames[1]  # type: ignore[assignment]
        self.stop = AdmissionStop.NOTHING_WAITING
        self.pause = 0
        self.steps = 60
        self.held = 3000
        self.prompt = 150

    def run(self) -> TraceBuilder:
        """Two readers decode; most of the KV cache and of the token budget is in use."""
        build = self.build
        self.readers = [build.submit(self.prompt, self.steps) for _ in range(2)]
        for reader in self.readers:
            build.admit(reader)
            reader.held = self.held // 2
        for reader in self.readers:
            build.step({reader: self.prompt})
        for _ in range(self.steps - 2):
            build.now += self.pause
            build.step(self.readers, stop=self.stop)
        late = build.submit(200, 1)
        build.admit(late)
        build.step({late: 200, **dict.fromkeys(self.readers, 1)})
        build.finish(late)
        return build

    def end(self) -> Trace:
        for reader in self.readers:
            reader.generated = max(reader.generated, 2)
            self.build.finish(reader)
        return self.build.close()


def quiet(path: Path) -> Trace:
    toy = Toy(path)
    toy.run()
    return toy.end()


def change_engine(toy: Toy, **settings: object) -> None:
    """Write the engine again with other settings: the last one counts."""
    toy.engine.resolved |= settings  # type: ignore[arg-type]
    toy.build.write(toy.engine)


def failures(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    broken = build.submit(3, 4)
    build.admit(broken)
    build.step({broken: 3})
    build.finish(broken, EndReason.FAILED, error="ValueError")
    return toy.end()


def oversize(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    build.write(Event(EventKind.OVERSIZE, build.now, build.steps, 0, tokens=9000, bytes=4096))
    return toy.end()


def stopped_by(reason: AdmissionStop) -> Callable[[Path], Trace]:
    def made(path: Path) -> Trace:
        toy = Toy(path)
        change_engine(toy, safety_margin=0.15)
        toy.stop = reason
        toy.run()
        return toy.end()

    return made


def soft_resets(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    victim = toy.readers[0]
    build.soft_reset(victim)
    build.step([toy.readers[1]])
    build.admit(victim)
    build.step({victim: victim.pending + 1, toy.readers[1]: 1})
    build.step(toy.readers)
    return toy.end()


def bound_by_gpu(toy: Toy) -> None:
    """From here on, nearly all of each step is between its inputs and its results."""
    build, write = toy.build, toy.build.write

    def stretched(frame: Frame) -> None:
        if isinstance(frame, Step):
            start, end = build.now - build.step_ns, build.now
            frame.times = pack_times(start, start + 1000, start + 2000, end - 3000, end - 2000, end)
        write(frame)

    build.write = stretched  # type: ignore[method-assign]


def captures(path: Path) -> Trace:
    toy = Toy(path)
    bound_by_gpu(toy)
    build = toy.run()
    for _ in range(12):
        build.step_ns = 60 * MS
        step = build.step(toy.readers)
        build.write(Event(EventKind.GRAPH_CAPTURE, build.now - MS, step, tokens=1, duration_ns=50 * MS))
        build.step_ns = 6 * MS
    return toy.end()


def shared_prefill(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    giant = build.submit(2500, 1)
    build.admit(giant)
    for _ in range(10):
        build.step_ns = 200 * MS
        build.step({giant: 250, **dict.fromkeys(toy.readers, 1)})
    build.finish(giant)
    build.step_ns = 6 * MS
    build.step(toy.readers)
    return toy.end()


def host_bound(path: Path) -> Trace:
    return quiet(path)  # the builder's steps spend half of their time on the host


def idle_engine(path: Path) -> Trace:
    toy = Toy(path)
    toy.pause = 20 * MS
    toy.run()
    return toy.end()


def memory(toy: Toy, used: int) -> None:
    """A GPU of 100 MiB of which at most ``used`` are taken; the KV cache has 4."""
    mib = 1 << 20
    for mark in ("model_loaded", "cache_created", "inputs_created", "before_first_request", ""):
        toy.build.write(Memory(toy.build.now, mark, 10 * mib, 11 * mib, 10 * mib, 11 * mib, used * mib, 100 * mib))


def memory_free(path: Path) -> Trace:
    toy = Toy(path)
    toy.stop = AdmissionStop.KV_BLOCKS
    toy.run()
    memory(toy, 20)
    return toy.end()


def left_out(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    for _ in range(30):
        build.step([toy.readers[0]], starved=[toy.readers[1]])
    build.step(toy.readers)
    return toy.end()


def offloads(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    build.offload(toy.readers[0])
    for _ in range(20):
        build.step([toy.readers[1]])
    build.restore(toy.readers[0])
    build.step(toy.readers)
    return toy.end()


def gpu_slowed(path: Path) -> Trace:
    toy = Toy(path)
    build, step = toy.build, toy.build.step

    def sampled(*work: object, **options: object) -> int:
        number = step(*work, **options)  # type: ignore[arg-type]
        hot = number % 3 > 0
        build.write(Gpu(build.now, 90, throttle=0x44 if hot else 0, sm_clock_mhz=1200 if hot else 1900))
        return number

    build.step = sampled  # type: ignore[method-assign, assignment]
    toy.run()
    return toy.end()


def jitter(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    for number in range(40):
        build.step_ns = 30 * MS if number % 4 == 0 else 6 * MS
        build.step(toy.readers)
    return toy.end()


def giant_request(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    giant = build.submit(1800, 30)
    build.admit(giant)
    build.step({giant: 1800, **dict.fromkeys(toy.readers, 1)})
    for _ in range(20):
        build.step([giant, *toy.readers], stop=AdmissionStop.KV_BLOCKS)
    build.finish(giant)
    return toy.end()


def input_queue(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    at = build.now
    build.now += 900 * MS
    slow = SimRequest(len(build.requests), "slow", 4, 1)
    build.requests.append(slow)
    build.token_times[slow.ordinal] = []
    build.write(Request(slow.ordinal, "slow", 0, -1, 4, 1, at))
    build.write(Visible(slow.ordinal, build.now))
    build.admit(slow)
    build.step({slow: 4})
    build.finish(slow)
    return toy.end()


def budget_unused(path: Path) -> Trace:
    toy = Toy(path)
    change_engine(toy, max_batch_tokens=8192)
    toy.run()
    return toy.end()


def kv_unused(path: Path) -> Trace:
    toy = Toy(path)
    toy.held = 600
    toy.run()
    return toy.end()


def padding(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.build
    build.write(GraphKey(1, False, 512, 4096))
    plain = build.step
    build.step = lambda *work, **options: plain(*work, **options, graph=1)  # type: ignore[method-assign]
    toy.run()
    return toy.end()


def waste(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    for _ in range(12):
        short = build.submit(4, 1)
        build.admit(short)
        build.step({short: 4})
        build.step([short], wasted=[short])
        build.finish(short)
    return toy.end()


def sliding_window(path: Path) -> Trace:
    toy = Toy(path)
    toy.engine.kv.groups.append(KvGroup("sliding_attention", 4, UNIT_BYTES, 16, 512))
    change_engine(toy, allow_block_sharing=True)
    toy.run()
    return toy.end()


def late_client(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.build
    write = build.write

    def planned(frame: object) -> None:
        if isinstance(frame, Request):
            frame.planned_ns = max(0, frame.submit_ns - 90 * MS)
        write(frame)  # type: ignore[arg-type]

    build.now = 100 * MS
    build.write = planned  # type: ignore[assignment]
    toy.run()
    return toy.end()


def recorder_cost(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    build.footer = lambda reason="closed": build.write(  # type: ignore[method-assign, misc]
        Footer(build.now, reason, build.steps, len(build.requests), build.writer.frames + 1, 50 * MS, 300_000, MS)
    )
    return toy.end()


def unattributed(path: Path) -> Trace:
    toy = Toy(path)
    build = toy.run()
    build.steps += 5
    build.now += 300 * MS
    build.step(toy.readers)
    build.step(toy.readers)
    return toy.end()


def late_rank(path: Path) -> Trace:
    late = Rank(1, launch_late=lambda step: 100_000 if step % 5 else 0)
    return open_trace(rank_paths(path.parent, Rank(0), late)[0])


TROUBLE: dict[str, Callable[[Path], Trace]] = {
    "failures": failures,
    "oversize": oversize,
    "memory_free": memory_free,
    "margin_wait": stopped_by(AdmissionStop.SAFETY_MARGIN),
    "blocks_wait": stopped_by(AdmissionStop.KV_BLOCKS),
    "blocked_wait": stopped_by(AdmissionStop.BLOCKED_AFTER_OFFLOAD),
    "budget_wait": stopped_by(AdmissionStop.TOKEN_BUDGET),
    "cap_wait": stopped_by(AdmissionStop.REQUEST_CAP),
    "cache_budget_wait": stopped_by(AdmissionStop.CACHE_BUDGET),
    "soft_resets": soft_resets,
    "offloads": offloads,
    "left_out": left_out,
    "gpu_slowed": gpu_slowed,
    "captures": captures,
    "late_rank": late_rank,
    "shared_prefill": shared_prefill,
    "host_bound": host_bound,
    "idle_engine": idle_engine,
    "jitter": jitter,
    "giant_request": giant_request,
    "input_queue": input_queue,
    "budget_unused": budget_unused,
    "kv_unused": kv_unused,
    "padding": padding,
    "waste": waste,
    "sliding_window": sliding_window,
    "late_client": late_client,
    "recorder_cost": recorder_cost,
    "unattributed": unattributed,
}
QUIET_EXCEPT = {"host_bound", "idle_engine", "budget_unused"}
"""What the toy run has of itself: its steps are half host work with a pause between them."""


def test_every_rule_has_a_troubled_run() -> None:
    assert TROUBLE.keys() == RULES.keys()


@pytest.mark.parametrize("rule", TROUBLE)
def test_a_rule_speaks_where_its_trouble_is(tmp_path: Path, rule: str) -> None:
    found = told(TROUBLE[rule](tmp_path / "run.cbt"))
    assert rule in found
    assert 0 < found[rule].weight <= 1
    assert found[rule].place in SECTIONS


@pytest.mark.parametrize("rule", sorted(RULES.keys() - QUIET_EXCEPT))
def test_a_rule_is_silent_without_its_trouble(tmp_path: Path, rule: str) -> None:
    assert rule not in told(quiet(tmp_path / "run.cbt"))


def test_a_gpu_bound_run_is_not_called_host_bound_or_idle(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "run.cbt")
    bound_by_gpu(toy)
    toy.run()
    found = told(toy.end())
    assert not {"host_bound", "idle_engine"} & found.keys()


def test_a_budget_that_is_used_is_not_called_unused(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "run.cbt")
    toy.prompt = 200  # of a budget of 256
    change_engine(toy, max_batch_tokens=256)
    toy.run()
    assert "budget_unused" not in told(toy.end())


def test_a_margin_that_neither_value_of_would_help_is_not_to_be_lowered_or_raised(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "run.cbt")
    change_engine(toy, safety_margin=0.15)
    toy.stop = AdmissionStop.SAFETY_MARGIN
    build = toy.run()
    build.soft_reset(toy.readers[0])
    build.step([toy.readers[1]])
    build.admit(toy.readers[0])
    build.step({toy.readers[0]: toy.readers[0].pending + 1, toy.readers[1]: 1})
    rows = {row.rule: row for row in finding_rows(list(told(toy.end()).values()), load_words())}
    assert "Raise num_blocks first" in rows["margin_wait"].advice
    alone = finding_rows(
        [told(stopped_by(AdmissionStop.SAFETY_MARGIN)(tmp_path / "alone.cbt"))["margin_wait"]], load_words()
    )
    assert "none in this run" in alone[0].advice


def test_layers_with_windows_are_not_mentioned_where_prefixes_were_found(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "run.cbt")
    toy.engine.kv.groups.append(KvGroup("sliding_attention", 4, UNIT_BYTES, 16, 512))
    change_engine(toy, allow_block_sharing=True)
    build = toy.run()
    again = build.submit(40, 1)
    build.cached = 16
    build.admit(again, prefix_hit=16)
    build.step({again: 24})
    build.finish(again)
    assert "sliding_window" not in told(toy.end())


@pytest.mark.parametrize(("stop", "used"), [(AdmissionStop.KV_BLOCKS, 95), (AdmissionStop.REQUEST_CAP, 20)])
def test_memory_is_not_called_free_where_it_is_used_or_not_waited_for(
    tmp_path: Path, stop: AdmissionStop, used: int
) -> None:
    toy = Toy(tmp_path / "run.cbt")
    toy.stop = stop
    toy.run()
    memory(toy, used)
    assert "memory_free" not in told(toy.end())


def test_clocks_that_only_idle_are_not_called_slowed(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "run.cbt")
    build = toy.run()
    for number in range(20):  # idle, or its clocks were set; at its power limit, and hardly slower for it
        build.write(Gpu(build.now - number, 10, throttle=0x01 | 0x02, sm_clock_mhz=300))
        build.write(Gpu(build.now - number, 99, throttle=0x04, sm_clock_mhz=1965 + number))
    assert "gpu_slowed" not in told(toy.end())


def test_nothing_is_said_about_a_run_of_nothing(tmp_path: Path) -> None:
    assert told(TraceBuilder(tmp_path / "run.cbt").close()) == {}


def test_findings_are_ranked_and_become_sentences(tmp_path: Path) -> None:
    trace = stopped_by(AdmissionStop.SAFETY_MARGIN)(tmp_path / "run.cbt")
    found = list(told(trace).values())
    assert [finding.weight for finding in found] == sorted((finding.weight for finding in found), reverse=True)
    rows = {row.rule: row for row in finding_rows(found, load_words())}
    text = rows["margin_wait"].text.replace("\N{NO-BREAK SPACE}", " ")
    assert "15 % of the KV cache" in text
    assert "{" not in "".join(row.text + row.advice for row in rows.values())
    assert pytest.approx(found[0].numbers["margin_bytes"], abs=1) == CAPACITY * UNIT_BYTES * 15 // 100


def test_ranks_that_take_turns_in_being_late_name_no_culprit(tmp_path: Path) -> None:
    turns = [Rank(n, launch_late=lambda step, n=n: 100_000 if step % 2 == n else 0) for n in range(2)]  # type: ignore[misc]
    assert "late_rank" not in told(open_trace(rank_paths(tmp_path, *turns)[0]))


def test_a_rank_that_is_hardly_late_is_not_told(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), Rank(1, launch_late=lambda step: 10_000))
    assert "late_rank" not in told(open_trace(paths[0]))
