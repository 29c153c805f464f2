"""Correctness of two sides: who did not complete, and the first tokens that differ."""

from __future__ import annotations

from pathlib import Path

from cbtrace.site.analysis.outputs import Correctness, correctness, pair_requests, run_outputs
from cbtrace.traces import open_trace
from cbtrace.traces.schema import Event, EventKind
from compared_runs import REQUESTS, TOKENS, timed_run
from trace_builder import TraceBuilder, eventful


def check(a: list[Path], b: list[Path]) -> Correctness:
    return correctness(*([run_outputs(open_trace(path)) for path in side] for side in (a, b)))


def test_the_first_token_that_differs(tmp_path: Path) -> None:
    a = [timed_run(tmp_path / f"a{i}.cbt", tokens=True) for i in range(2)]
    b = [
        timed_run(tmp_path / "same.cbt", tokens=True),
        timed_run(tmp_path / "other.cbt", tokens=True, other_token=(2, 7)),
    ]
    found = check(a, b)
    assert found.outputs_a is not None and (found.outputs_a.pairs, found.outputs_a.equal) == (REQUESTS, REQUESTS)
    out = found.outputs_b
    assert (out.state, out.pairs, out.equal, out.differing, out.unpaired) == ("compared", 8, 7, 1, 0)
    assert out.same_end == 8
    [difference] = out.differences
    assert (difference.run, difference.request, difference.position) == (1, "request_2", 7)
    assert (difference.expected, difference.found) == (6, 9999)


def test_failed_requests_are_counted_and_not_compared(tmp_path: Path) -> None:
    found = check([timed_run(tmp_path / "a.cbt", tokens=True)], [timed_run(tmp_path / "b.cbt", tokens=True, failing=1)])
    assert (found.ended_a.complete, found.ended_b.complete, found.ended_b.failed) == (4, 3, 1)
    assert found.ended_b.errors == ["RuntimeError"]
    assert (found.outputs_a, found.outputs_b.pairs) == (None, 3)


def test_runs_that_died_are_counted(tmp_path: Path) -> None:
    build = eventful(tmp_path / "dead.cbt")
    build.write(Event(EventKind.OUT_OF_MEMORY, build.now, build.steps, text="prefill: OutOfMemoryError"))
    build.close()
    found = check([timed_run(tmp_path / "a.cbt")], [tmp_path / "dead.cbt", timed_run(tmp_path / "b.cbt")])
    assert (found.ended_a.died, found.ended_b.died) == (0, 1)
    assert found.ended_b.died_of == ["prefill: OutOfMemoryError"]


def test_without_tokens_and_hashes_nothing_is_claimed(tmp_path: Path) -> None:
    a, b = (timed_run(tmp_path / f"{name}.cbt") for name in "ab")
    out = check([a], [b]).outputs_b
    assert (out.state, out.unknown, out.equal, out.differing) == ("unknown", REQUESTS, 0, 0)


def test_sampled_outputs_are_not_compared(tmp_path: Path) -> None:
    a = timed_run(tmp_path / "a.cbt", tokens=True)
    b = timed_run(tmp_path / "b.cbt", tokens=True, generation={"do_sample": True}, other_token=(0, 1))
    assert check([a], [b]).outputs_b.state == "sampled"


def test_an_answer_that_goes_on_differs_behind_the_end_of_the_shorter(tmp_path: Path) -> None:
    run = run_outputs(open_trace(timed_run(tmp_path / "a.cbt", tokens=True)))
    shorter = run_outputs(open_trace(timed_run(tmp_path / "b.cbt", tokens=True)))
    shorter.token_ids[1] = shorter.token_ids[1][:-1]
    [difference] = correctness([run], [shorter]).outputs_b.differences
    assert (difference.position, difference.expected, difference.found) == (TOKENS, TOKENS - 1, -1)


def test_requests_are_paired_by_id_then_by_prompt(tmp_path: Path) -> None:
    def requests(name: str, ids: list[str]) -> TraceBuilder:
        build = TraceBuilder(tmp_path / name)
        for id in ids:
            build.submit(4, 1, id=id)
        return build

    a = requests("a.cbt", ["x", "y", "x", "only-a"]).close().requests
    b = requests("b.cbt", ["only-b", "x", "y", "x"]).close().requests
    assert list(pair_requests(a, b)) == [(0, 1), (1, 2), (2, 3)]
    # Ids drawn at random: the prompts tell, the first with the first.
    renamed = requests("c.cbt", ["1", "2"]).close().requests
    renamed.prompt_hash[:] = [a.prompt_hash[0], a.prompt_hash[0]]
    assert list(pair_requests(a, renamed)) == [(0, 0), (2, 1)]
