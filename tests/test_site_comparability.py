"""What differs between two sides: each unlike thing has its warning, and what is no difference has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cbtrace.site.analysis.comparability import (
    Comparability,
    Kind,
    comparability_rules,
    compare_conditions,
)
from cbtrace.site.analysis.comparison import compare, measured_run
from cbtrace.site.analysis.run_conditions import RunConditions, run_conditions
from cbtrace.site.analysis.summary import summarize
from cbtrace.traces import open_trace
from cbtrace.traces.schema import Facts
from compared_runs import slower_pair, timed_run


def run(
    requested: dict[str, str] | None = None,
    resolved: dict[str, str] | None = None,
    conditions: dict[str, str | None] | None = None,
    tags: dict[str, str] | None = None,
) -> RunConditions:
    asked = {"scheduler_type": "fifo", "num_blocks": "unset", "max_batch_tokens": "unset"} | (requested or {})
    known = {"num_blocks": "1000", "max_batch_tokens": "256", "max_memory_percent": "0.9", "safety_margin": "0.15"}
    worked_with = known | {name: value for name, value in asked.items() if value != "unset"} | (resolved or {})
    facts: dict[str, str | None] = {"hardware.gpu.name": "NVIDIA H200", "batching": "continuous"}
    return RunConditions(asked, worked_with, facts | (conditions or {}), tags or {}, False, True)


def roles(found: Comparability) -> dict[str, str]:
    return {setting.name: setting.role for setting in found.settings}


# Conditions, read from traces ----------------------------------------------------------------------------------------

UNLIKE: list[tuple[str, dict[str, Facts]]] = [
    ("hardware", {"conditions": {"hardware.gpu.name": "NVIDIA H100"}}),
    ("hardware", {"model": {"device": "cpu"}}),
    ("model", {"model": {"layers": 4}}),
    ("model", {"model": {"attention": "eager"}}),
    ("dtype", {"model": {"dtype": "float32"}}),
    ("generation", {"generation": {"do_sample": True}}),
    ("workload", {"conditions": {"workload.digest": "another"}}),
    ("version", {"conditions": {"software.transformers": "5.17.0"}}),
    ("version", {"conditions": {"software.torch": "2.12.0"}}),
    ("environment", {"conditions": {"environment.OMP_NUM_THREADS": "4"}}),
]


@pytest.mark.parametrize(("category", "described"), UNLIKE)
def test_each_unlike_condition_is_named(tmp_path: Path, category: str, described: dict[str, Facts]) -> None:
    known = {"conditions": {"environment.OMP_NUM_THREADS": "unset"}}
    a = timed_run(tmp_path / "a.cbt", **known)  # type: ignore[arg-type]
    b = timed_run(tmp_path / "b.cbt", **(known | described))  # type: ignore[arg-type]
    found = compare_conditions(*([run_conditions(open_trace(path))] for path in (a, b)))
    assert (found.kind, found.categories) == ("unlike", [category])
    [fact] = found.unlike
    assert fact.a != fact.b and fact.name.endswith(next(iter(next(iter(described.values())))))
    assert found.same_work is (category not in ("model", "generation", "workload"))
    assert found.attributable is (found.same_work and category != "hardware")


def test_static_and_continuous_batching_are_unlike_and_their_settings_are_not_listed(tmp_path: Path) -> None:
    paths = timed_run(tmp_path / "a.cbt"), timed_run(tmp_path / "b.cbt", adapter="static", requested={"batch_size": 8})
    found = compare_conditions(*([run_conditions(open_trace(path))] for path in paths))
    assert (found.kind, found.categories, found.settings) == ("unlike", ["batching"], [])


def test_what_changes_from_run_to_run_is_no_condition(tmp_path: Path) -> None:
    described: list[Facts] = [
        {"hardware.gpu.other_processes": load, "measurement.nvml": nvml, "software.cbtrace": version}
        for load, nvml, version in ((0, True, "0.1.0"), (3, False, "0.2.0"))
    ]
    paths = [timed_run(tmp_path / f"{i}.cbt", conditions=facts, recorded_s=i) for i, facts in enumerate(described)]
    found = compare_conditions(*([run_conditions(open_trace(path))] for path in paths))
    assert (found.kind, found.unlike) == ("same", [])
    assert sum(fact.state == "differs" for fact in found.conditions) == 3


def test_where_in_a_cluster_runs_were_is_no_condition_and_what_is_there_is(tmp_path: Path) -> None:
    def on(name: str, machine: str, gpu: str, model: str) -> Path:
        here = {"placement.machine": machine, "placement.gpus": gpu, "environment.CUDA_VISIBLE_DEVICES": gpu}
        return timed_run(tmp_path / f"{name}.cbt", conditions=here | {"hardware.gpu.name": model})

    first = on("first", "one", "0", "H200")
    like, unlike = on("like", "other", "3", "H200"), on("unlike", "one", "0", "A100")
    sides = [[run_conditions(open_trace(path))] for path in (first, like, unlike)]
    same = compare_conditions(sides[0], sides[1])
    assert (same.kind, [fact.category for fact in same.conditions if fact.state == "differs"]) == (
        "same",
        ["placement"] * 3,
    )
    assert (compare_conditions(sides[0], sides[2]).kind, compare_conditions(sides[0] + sides[2], sides[1]).kind) == (
        "unlike",
        "mixed",
    )


def test_machines_that_are_alike_differ_by_some_pages(tmp_path: Path) -> None:
    def kind(name: str, ram: int) -> str:
        paths = [
            timed_run(tmp_path / f"{name}{i}.cbt", conditions={"hardware.ram_bytes": it})
            for i, it in enumerate((135148564480, ram))
        ]
        return compare_conditions(*([run_conditions(open_trace(path))] for path in paths)).kind

    assert (kind("page", 135148564480 - 4096 * 40), kind("half", 67 << 30)) == ("same", "unlike")


def test_without_a_digest_the_requests_that_were_sent_decide() -> None:
    a = run(conditions={"requests.sent": "4 requests [1]", "workload.digest": None})
    assert compare_conditions([a], [a]).kind == "same"
    other = run(conditions={"requests.sent": "4 requests [2]", "workload.digest": None})
    assert compare_conditions([a], [other]).categories == ["workload"]


def test_with_one_digest_what_describes_the_workload_does_not_count() -> None:
    a = run(conditions={"workload.digest": "1", "workload.name": "default", "requests.sent": "4 requests [1]"})
    b = run(conditions={"workload.digest": "1", "workload.name": "mine", "requests.sent": "3 requests [1]"})
    assert compare_conditions([a], [b]).kind == "same"


def test_prompts_are_told_apart_by_their_hashes(tmp_path: Path) -> None:
    def sent(path: Path) -> str | None:
        return run_conditions(open_trace(path)).conditions["requests.sent"]

    whole = timed_run(tmp_path / "a.cbt")
    assert sent(whole) == sent(timed_run(tmp_path / "b.cbt", decode_ns=1_000_000)) is not None
    cut = tmp_path / "cut.cbt"
    cut.write_bytes(whole.read_bytes()[:-200])
    assert sent(cut) is None, "what was sent cannot be known of a damaged trace"


def test_what_one_side_does_not_know_is_unknown_and_not_different() -> None:
    found = compare_conditions([run(conditions={"hardware.gpu.name": None})], [run()])
    assert (found.kind, [fact.name for fact in found.unknown]) == ("same", ["hardware.gpu.name"])


# Settings ------------------------------------------------------------------------------------------------------------


def test_another_scheduler_changes_the_margin_too() -> None:
    b = run({"scheduler_type": "prefill_first"}, {"safety_margin": "0.0"})
    found = compare_conditions([run()], [b])
    assert (found.kind, found.variables) == ("resolved", ["scheduler_type", "safety_margin"])
    assert roles(found) == {"scheduler_type": "changed", "safety_margin": "followed"}


CASES: list[tuple[RunConditions, RunConditions, Kind, dict[str, str]]] = [
    (run(), run(), "same", {}),
    (run(), run({"num_blocks": "1000"}), "same", {}),
    (run(), run({"num_blocks": "64"}), "one", {"num_blocks": "changed"}),
    (
        run(), run({"num_blocks": "64", "max_batch_tokens": "64"}),
        "several", {"num_blocks": "changed", "max_batch_tokens": "changed"},
    ),
    (run(), run(resolved={"num_blocks": "1009"}), "same", {"num_blocks": "automatic"}),
    (run(), run(resolved={"num_blocks": "1011"}), "one", {"num_blocks": "followed"}),
    (run({"num_blocks": "1000"}), run({"num_blocks": "1009"}), "one", {"num_blocks": "changed"}),
    # The share of memory decides the number of blocks: one variable. Where the sizes are given, it decides nothing.
    (
        run({"max_memory_percent": "0.9"}), run({"max_memory_percent": "0.5"}, {"num_blocks": "500"}),
        "one", {"max_memory_percent": "changed", "num_blocks": "derived"},
    ),
    (
        run({"max_memory_percent": "0.9", "num_blocks": "64", "max_batch_tokens": "256"}),
        run({"max_memory_percent": "0.5", "num_blocks": "64", "max_batch_tokens": "256"}),
        "same", {"max_memory_percent": "inert"},
    ),
    (
        run({"max_memory_percent": "0.9", "num_blocks": "64", "max_batch_tokens": "256"}),
        run({"max_memory_percent": "0.5", "num_blocks": "32", "max_batch_tokens": "256"}),
        "one", {"max_memory_percent": "inert", "num_blocks": "changed"},
    ),
    (
        run(), run({"num_blocks": "64"}, {"max_memory_percent": "unset"}),
        "one", {"num_blocks": "changed", "max_memory_percent": "derived"},
    ),
    # A size that is asked for on one side only is the variable, whatever share of memory it was worked out from.
    (
        run({"max_memory_percent": "0.02", "max_batch_tokens": "256"}),
        run({"max_memory_percent": "0.04", "max_batch_tokens": "256", "num_blocks": "64"}),
        "one", {"max_memory_percent": "inert", "num_blocks": "changed"},
    ),
    # A smaller token budget leaves more memory to blocks: the cache changed as well.
    (
        run(resolved={"max_requests_per_batch": "256"}),
        run({"max_batch_tokens": "64"}, {"max_requests_per_batch": "64", "num_blocks": "1100"}),
        "resolved", {"max_batch_tokens": "changed", "max_requests_per_batch": "derived", "num_blocks": "followed"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "kind", "expected"), CASES)
def test_which_settings_are_variables(a: RunConditions, b: RunConditions, kind: Kind, expected: dict[str, str]) -> None:
    for found in (compare_conditions([a], [b]), compare_conditions([b], [a]), compare_conditions([a, a], [b, b])):
        assert (found.kind, roles(found)) == (kind, expected)


def test_settings_that_were_renamed_are_one(tmp_path: Path) -> None:
    old = timed_run(tmp_path / "old.cbt", requested={"block_size": 256}, resolved={"scheduler": "FIFOScheduler"})
    new = timed_run(tmp_path / "new.cbt", requested={"page_size": 256, "block_size": "unset"})
    found = compare_conditions(*([run_conditions(open_trace(path))] for path in (old, new)))
    assert (found.kind, found.settings) == ("same", [])


# Sides of several runs -----------------------------------------------------------------------------------------------


def test_sides_that_are_no_repeats_are_told() -> None:
    other_blocks = run({"num_blocks": "64"})
    assert compare_conditions([run(), other_blocks], [run()]).kind == "mixed"
    found = compare_conditions([run(), run(conditions={"hardware.gpu.name": "NVIDIA H100"})], [run()])
    assert (found.kind, found.unlike[0].mixed, found.unlike[0].a) == ("mixed", True, "NVIDIA H200, NVIDIA H100")


def test_an_automatic_size_that_wavers_with_free_memory_leaves_repeats_what_they_are() -> None:
    a = [run(), run(resolved={"num_blocks": "1001"})]
    assert compare_conditions(a, [run({"num_blocks": "64"})]).kind == "one"
    assert compare_conditions(a, a[::-1]).kind == "same"
    assert compare_conditions([run(), run(resolved={"num_blocks": "1100"})], a).kind == "mixed"
    asked = [run({"num_blocks": "1000"}), run({"num_blocks": "1001"})]
    assert compare_conditions(asked, [run({"num_blocks": "64"})]).kind == "mixed"


def test_tags_declare_what_a_trace_cannot_show() -> None:
    def tagged(commit: str, **more: str) -> RunConditions:
        return run(tags={"commit": commit, **more})

    a, b = ([tagged(commit, repeat=repeat) for repeat in "12"] for commit in "ab")
    found = compare_conditions(a, b)
    assert (found.kind, [(tag.name, tag.a, tag.b) for tag in found.tags]) == ("declared", [("commit", "a", "b")])
    assert found.attributable
    of_experiment = [run(tags={"experiment": "e", "variant": variant}) for variant in "xy"]
    assert compare_conditions(of_experiment[:1], of_experiment[1:]).kind == "same"
    with_setting = compare_conditions([tagged("a")], [run({"num_blocks": "64"}, tags={"commit": "b"})])
    assert with_setting.kind == "one"


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ([1, 2], [3, 4], True),
        ([5, 6], [3, 4], True),
        ([1, 3], [2, 4], False),
        ([1], [2], False),
        ([2, 2], [2, 2], False),
    ],
)
def test_sides_recorded_one_after_the_other_are_told(a: list[int], b: list[int], apart: bool) -> None:
    sides = ([replace(run(), recorded_ns=at) for at in side] for side in (a, b))
    assert compare_conditions(*sides).apart is apart


# What follows for the words ------------------------------------------------------------------------------------------


def words(a: list[Path], b: list[Path]) -> tuple[str, str, str]:
    sides = [[measured_run(trace, summarize(trace)) for trace in map(open_trace, side)] for side in (a, b)]
    found = compare(*sides)
    ttft = next(it for it in found.values if it.value.key == "ttft_ms.p95")
    return found.headline.word, found.headline.why, ttft.judgement.word


def test_the_hand_made_pair_is_slower_to_its_first_tokens_and_nowhere_else(tmp_path: Path) -> None:
    a, b = slower_pair(tmp_path)
    found = compare(*([measured_run(t, summarize(t)) for t in map(open_trace, side)] for side in (a, b)))
    assert (found.comparability.kind, found.comparability.variables) == ("one", ["num_blocks"])
    assert (found.headline.word, found.headline.worse, found.headline.better) == ("worse", ["ttft_ms.p95"], [])
    for it in found.values:
        if it.value.metric.id == "ttft_ms":
            assert (it.judgement.word, it.direction) == ("worse", "slower")
            assert it.judgement.change == pytest.approx(0.1, abs=0.002)
        else:
            assert it.judgement.word in ("within_noise", "cannot_tell"), it.value.key


def test_repeats_of_one_setting_are_never_better_or_worse(tmp_path: Path) -> None:
    a = [timed_run(tmp_path / f"a{i}.cbt", prefill_ns=12e6 + i) for i in range(3)]
    b = [timed_run(tmp_path / f"b{i}.cbt", prefill_ns=18e6 + i) for i in range(3)]
    assert words(a, b) == ("within_noise", "same_settings", "within_noise")
    assert words(a[:1], b[:1]) == ("within_noise", "same_settings", "within_noise")


def test_other_work_is_neither_better_nor_worse(tmp_path: Path) -> None:
    a = [timed_run(tmp_path / f"a{i}.cbt", prefill_ns=12e6 + i) for i in range(3)]
    other: Facts = {"workload.digest": "another"}
    b = [timed_run(tmp_path / f"b{i}.cbt", prefill_ns=18e6 + i, conditions=other) for i in range(3)]
    assert words(a, b) == ("cannot_tell", "unlike", "changed")
    newer: Facts = {"software.torch": "2.14.0"}
    c = [timed_run(tmp_path / f"c{i}.cbt", prefill_ns=18e6 + i, conditions=newer) for i in range(3)]
    assert words(a, c) == ("worse", "numbers", "worse")


def test_predicted_runs_and_mixed_sides_give_no_verdict(tmp_path: Path) -> None:
    a = [timed_run(tmp_path / f"a{i}.cbt", prefill_ns=12e6 + i) for i in range(3)]
    b = [timed_run(tmp_path / f"b{i}.cbt", prefill_ns=18e6 + i, requested={"num_blocks": 64}) for i in range(2)]
    predicted = timed_run(tmp_path / "p.cbt", prefill_ns=18e6, requested={"num_blocks": 64}, predicted=True)
    assert words(a, [*b, predicted]) == ("cannot_tell", "predicted", "cannot_tell")
    third = timed_run(tmp_path / "m.cbt", prefill_ns=18e6, requested={"num_blocks": 32})
    assert words(a, [*b, third]) == ("cannot_tell", "mixed", "cannot_tell")


def test_a_side_that_answers_less_is_not_better_for_it(tmp_path: Path) -> None:
    """Failed requests are in no latency: the side that fails more must not win by that."""
    a = [timed_run(tmp_path / f"a{i}.cbt", prefill_ns=18e6 + i) for i in range(3)]
    other: Facts = {"num_blocks": 64}
    b = [timed_run(tmp_path / f"b{i}.cbt", prefill_ns=12e6 + i, requested=other, failing=1) for i in range(3)]
    assert words(a, b) == ("cannot_tell", "unanswered", "better")
    assert words(b, a) == ("cannot_tell", "unanswered", "worse")


def test_rules_are_plain_data() -> None:
    rules = comparability_rules()
    assert rules["derived"]["num_blocks"] == ["max_memory_percent", "page_size"]
    assert {category for _, category in rules["categories"]} >= {"hardware", "model", "dtype", "workload", "version"}
