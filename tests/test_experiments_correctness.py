"""Correctness of runs: what is complete, what failed and how, and where answers differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.recorder.experiments.correctness import Answers, check_run, compare_with, first_difference
from cbtrace.recorder.experiments.estimate import estimate
from cbtrace.recorder.experiments.failures import EngineDiedError, failure_kind
from cbtrace.recorder.experiments.job import Report, differing_conditions
from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.plan_spec import TimeLimits
from cbtrace.recorder.experiments.process import Watchdog
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.stages import check_pins, plan_as_data, plan_digest, runs_of, variants_of
from cbtrace.recorder.experiments.take_up import new_experiment
from cbtrace.recorder.experiments.templates import template_text
from cbtrace.traces.experiment import (
    EXPERIMENT_FILE,
    ExperimentError,
    RunEntry,
    read_experiment,
    write_experiment,
)
from cbtrace.traces.schema import EndReason

FOUR_STAGES = parse_plan(template_text("four_stages"), Path())
VARIANTS = {variant.name: variant for variant in variants_of(FOUR_STAGES)}


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_the_first_difference_is_the_first(expected: list[int], found: list[int]) -> None:
    difference = first_difference("r", expected, found)
    if difference is None:
        assert expected == found
        return
    at = difference.position - 1
    assert expected[:at] == found[:at] and expected[at : at + 1] != found[at : at + 1]
    assert difference.expected == (expected[at] if at < len(expected) else -1)
    assert difference.found == (found[at] if at < len(found) else -1)


def test_answers_are_compared_one_by_one() -> None:
    reference = Answers({"a": [1, 2], "b": [1, 2, 3], "c": [4]}, dict.fromkeys("abc", int(EndReason.LENGTH)))
    ours = Answers(
        {"a": [1, 2], "b": [1, 9]}, {"a": int(EndReason.LENGTH), "b": int(EndReason.EOS)}, {"c": "error", "d": "empty"}
    )
    correctness = check_run(6, ours, "oom")
    assert (correctness.requests, correctness.complete) == (6, 2)
    assert correctness.failures == {"empty": 1, "oom": 3}
    compare_with(correctness, ours, "static", reference)
    assert (correctness.compared, correctness.equal, correctness.same_termination) == (2, 1, 1)
    [difference] = correctness.differences
    assert (difference.request, difference.position, difference.expected, difference.found) == ("b", 2, 2, 9)


def test_answers_whose_tokens_were_not_stored_are_compared_by_hash() -> None:
    reasons = dict.fromkeys("ab", int(EndReason.LENGTH))
    ours, reference = (Answers(reasons=reasons, hashes={"a": b"1", "b": hash_of_b}) for hash_of_b in (b"2", b"3"))
    correctness = check_run(2, ours, None)
    compare_with(correctness, ours, "static", reference)
    assert (correctness.complete, correctness.compared, correctness.equal) == (2, 2, 1)
    assert (correctness.differences, correctness.differences_left_out) == ([], 1)


def test_long_lists_of_differences_are_cut_and_counted() -> None:
    names = [f"r{number:03d}" for number in range(130)]
    reasons = dict.fromkeys(names, int(EndReason.LENGTH))
    ours, reference = Answers({n: [1] for n in names}, reasons), Answers({n: [2] for n in names}, reasons)
    correctness = check_run(130, ours, None)
    compare_with(correctness, ours, "static", reference)
    assert (len(correctness.differences), correctness.differences_left_out, correctness.equal) == (100, 30, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("x"), "oom"),
        (ValueError("No positive solution (root = -129.9)"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("No requests can be scheduled and no requests can be offloaded."), "dead_end"),
        (RuntimeError("something"), "error"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_failures_are_told_apart(error: BaseException, kind: str) -> None:
    assert failure_kind(error) == kind
    died = EngineDiedError("The engine ended.")
    died.__cause__ = error
    assert failure_kind(died) == kind


def test_a_watchdog_knows_a_hang_from_a_wait_and_from_a_slow_start() -> None:
    dog = Watchdog(TimeLimits(run_s=100, stall_s=10), started=0.0)
    dog.heard(Report(phase="model load"), 1.0)
    assert dog.verdict(50.0) is None
    dog.heard(Report(phase="generation", steps=3, pending=2), 51.0)
    dog.heard(Report(phase="generation", steps=3, pending=2), 60.0)
    assert dog.verdict(60.9) is None
    assert dog.verdict(61.1) == "hang"
    dog.heard(Report(phase="generation", steps=3, pending=0), 62.0)
    assert dog.verdict(70.0) is None
    assert dog.verdict(72.5) == "hang", "a process that says nothing at all hangs, too"
    dog.heard(Report(phase="generation", steps=4, pending=2), 99.0)
    assert dog.verdict(100.5) == "timeout"


def test_conditions_differ_only_where_both_are_known_and_fixed() -> None:
    before = {
        "software.torch": "2.13",
        "hardware.gpu.name": None,
        "measurement.x": 1,
        "hardware.gpu.other_processes": 0,
    }
    now = {"software.torch": "2.14", "hardware.gpu.name": "A", "measurement.x": 2, "hardware.gpu.other_processes": 3}
    assert differing_conditions(before, now) == ["software.torch was 2.13 and is 2.14"]
    assert differing_conditions({"hardware.ram_bytes": 8_000_000_000}, {"hardware.ram_bytes": 8_000_016_384}) == []
    [ram] = differing_conditions({"hardware.ram_bytes": 8_000_000_000}, {"hardware.ram_bytes": 16_000_000_000})
    assert ram == "hardware.ram_bytes was 8000000000 and is 16000000000"


# Stages ---------------------------------------------------------------------------------------------------------------


def test_settings_are_inherited_and_shares_worked_out_of_what_the_baseline_resolved() -> None:
    resolved = {"num_blocks": 453, "max_batch_tokens": 8192, "max_requests_per_batch": 1024, "safety_margin": 0.15}
    margin = VARIANTS["safety_margin=0.0"]
    assert margin.resolved_settings(resolved) == {
        "page_size": 16,
        "num_blocks": 68,
        "safety_margin": 0.0,
        "max_batch_tokens": 8192,
        "max_requests_per_batch": 1024,
    }
    assert VARIANTS["prefill_first"].resolved_settings(resolved)["safety_margin"] == 0.15
    assert dict(margin.changes) == {"safety_margin": 0.0} and margin.based_on == "num_blocks=15%"
    graphs = VARIANTS["CUDA graphs and async"]
    assert dict(graphs.changes) == {"use_async_batching": True}
    assert graphs.resolved_settings({}) == {"page_size": 16, "use_cuda_graph": True, "use_async_batching": True}


def test_a_variant_that_needs_the_baseline_says_so_without_one() -> None:
    assert "no run of the baseline" in check_pins(VARIANTS["num_blocks=50%"], None)
    assert "num_blocks" in check_pins(VARIANTS["num_blocks=50%"], {"max_batch_tokens": 1, "max_requests_per_batch": 1})
    assert check_pins(VARIANTS["CUDA graphs"], None) == ""
    with pytest.raises(SpecError):
        VARIANTS["num_blocks=50%"].resolved_settings({})


def order_of(order: str) -> list[tuple[int, str]]:
    text = template_text("four_stages").replace("repeats = 3", f'repeats = 2\norder = "{order}"')
    plan = parse_plan(text, Path())
    return [(run.repeat, run.variant) for run in runs_of(plan, variants_of(plan))]


def test_orders_hold_the_same_runs_with_the_baseline_first() -> None:
    interleaved, by_stage, shuffled = map(order_of, ("interleaved", "by_stage", "random"))
    assert sorted(interleaved) == sorted(by_stage) == sorted(shuffled) and len(set(interleaved)) == 2 * len(VARIANTS)
    assert interleaved[0] == by_stage[0] == shuffled[0] == (1, "baseline")
    assert [repeat for repeat, _ in interleaved] == [1] * len(VARIANTS) + [2] * len(VARIANTS)
    stages = [VARIANTS[name].stage for _, name in by_stage]
    assert stages == sorted(stages)
    assert shuffled == order_of("random") != interleaved


def test_run_ids_are_file_names_and_unique() -> None:
    runs = runs_of(FOUR_STAGES, variants_of(FOUR_STAGES))
    ids = [run.id for run in runs]
    assert len(set(ids)) == len(ids)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in ids)


def test_an_experiment_holds_no_path_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text("{}")
    text = template_text("four_stages").replace("random:tiny", f"{tmp_path}/my-model")
    plan = parse_plan(text, tmp_path)
    assert plan_as_data(plan)["model"]["source"] == "my-model"
    assert plan_digest(plan) != plan_digest(FOUR_STAGES)


def test_an_experiment_tells_what_must_hold_for_a_setting_to_be_adopted() -> None:
    assert new_experiment(FOUR_STAGES).slos == {
        "ttft_p95_ms": 1000.0,
        "token_gap_p99_ms": 200.0,
        "e2e_p95_ms": None,
        "peak_memory_gib": None,
        "failures": 0,
    }


def test_an_estimate_rests_on_runs_where_there_are_any() -> None:
    experiment = new_experiment(FOUR_STAGES)
    assert estimate(experiment, {"default": 2.0, "shared_prefix": 0.0}, 600).basis.startswith("at least")
    experiment.runs[0].status, experiment.runs[0].seconds = "done", 5.0
    assert estimate(experiment, {}, 600).seconds == pytest.approx(5.0 * (len(experiment.runs) - 1))


# The file -------------------------------------------------------------------------------------------------------------


def test_an_experiment_is_read_as_it_was_written(tmp_path: Path) -> None:
    experiment = new_experiment(FOUR_STAGES)
    experiment.runs[0] = RunEntry("x", "baseline", 1, 1, "failed", "runs/x.cbt", "oom", "prefill", "text", 1.5)
    write_experiment(experiment, tmp_path)
    assert read_experiment(tmp_path) == experiment
    assert [path.name for path in tmp_path.iterdir()] == [EXPERIMENT_FILE]
    assert read_experiment(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('\n "format": 1', '\n "format": 99', "install a newer one"),
        ('"status": "planned"', '"status": "flying"', "damaged"),
        ('"trace": ""', '"trace": "../../etc/passwd"', "outside its folder"),
        ('"trace": ""', '"trace": "/etc/passwd"', "outside its folder"),
        ("{", "", "damaged"),
    ],
)
def test_a_strange_experiment_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    write_experiment(new_experiment(FOUR_STAGES), tmp_path)
    path = tmp_path / EXPERIMENT_FILE
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ExperimentError, match=words):
        read_experiment(tmp_path)
