"""Every rule of a verdict speaks where it should, and is silent where it should not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from cbtrace.site.analysis.experiment_verdict import RULES, verdicts
from cbtrace.site.pages.experiment_verdicts import deciding_line, verdict_rows
from cbtrace.site.words import LANGUAGES, load_words
from experiment_cases import REQUESTS, Lab, Values

BETTER = Values(throughput=1200)
ROUNDING = "In bfloat16, batches of other shapes round differently."


def plain() -> Lab:
    return Lab().baseline()


def rule(lab: Lab, name: str = "v") -> tuple[str, str]:
    verdict = lab.verdict(name)
    return verdict.rule, verdict.word


def better(**more: object) -> Lab:
    return plain().add("v", BETTER, changes={"max_batch_tokens": 1024}, **more)  # type: ignore[arg-type]


# Each rule: an experiment in which it decides about "v", and one that is like it but where it does not.
CASES: dict[str, tuple[Callable[[], Lab], Callable[[], Lab]]] = {
    "is_baseline": (lambda: Lab().add("v", based_on=""), better),
    "failed": (
        lambda: better().fail("v", "oom", "prefill"),
        lambda: better().fail("v", "cancelled", "prefill"),
    ),
    "other_workload": (
        lambda: plain().add("v", BETTER, changes={"workload": "prefix"}, workload="prefix"),
        better,
    ),
    "skipped": (
        lambda: plain().add("v", repeats=0).leave("v", "skipped", 3, "It needs CUDA."),
        lambda: better().leave("v", "skipped"),
    ),
    "no_runs": (lambda: plain().add("v", repeats=0).leave("v"), lambda: better().leave("v")),
    "incomplete": (
        lambda: better(complete=REQUESTS - 1, equal=REQUESTS - 1),
        lambda: _allowing(better(complete=REQUESTS - 1, equal=REQUESTS - 1)),
    ),
    "tokens_differ": (lambda: better(equal=REQUESTS - 1), lambda: better(equal=REQUESTS - 1, remark=ROUNDING)),
    "other_conditions": (
        lambda: better(conditions={"hardware.gpu.name": "A100"}),
        lambda: better(conditions={"measurement.clock": "another"}),
    ),
    "same_settings": (lambda: plain().add("v", BETTER, changes={"max_batch_tokens": 512}), better),
    "slo_missed": (
        lambda: plain().add("v", Values(throughput=1200, ttft_p95=1100), changes={"max_batch_tokens": 1024}),
        lambda: plain().add("v", Values(throughput=1200, ttft_p95=990), changes={"max_batch_tokens": 1024}),
    ),
    "few_runs": (lambda: better(repeats=1), better),
    "slo_unclear": (
        lambda: plain().add("v", Values(throughput=1200, ttft_p95=1000), changes={"max_batch_tokens": 1024}),
        lambda: plain().add("v", Values(throughput=1200, ttft_p95=950), changes={"max_batch_tokens": 1024}),
    ),
    "worse": (
        lambda: plain().add("v", Values(throughput=900), changes={"max_batch_tokens": 64}),
        lambda: plain().add("v", Values(throughput=900, noise=60), changes={"max_batch_tokens": 64}),
    ),
    "trade_off": (
        lambda: plain().add("v", Values(throughput=1200, gap_p99=15), changes={"max_batch_tokens": 64}),
        lambda: _with_slo(
            plain().add("v", Values(throughput=1200, gap_p99=15), changes={"max_batch_tokens": 64}), gap=20
        ),
    ),
    "undecided": (
        lambda: plain().add("v", Values(throughput=1100, noise=80), changes={"max_batch_tokens": 1024}),
        lambda: plain().add("v", Values(throughput=1100), changes={"max_batch_tokens": 1024}),
    ),
    "better": (better, lambda: plain().add("v", changes={"max_batch_tokens": 1024})),
    "no_gain": (lambda: plain().add("v", changes={"max_batch_tokens": 1024}), better),
}


def _allowing(lab: Lab) -> Lab:
    lab.slos["failures"] = 1
    return lab


def _with_slo(lab: Lab, gap: float) -> Lab:
    lab.slos["token_gap_p99_ms"] = gap
    return lab


def test_there_is_a_case_for_every_rule() -> None:
    assert list(CASES) == list(RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_decides_where_it_should(name: str) -> None:
    assert rule(CASES[name][0]()) == (name, RULES[name][1])


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_silent_where_it_should_be(name: str) -> None:
    assert rule(CASES[name][1]())[0] != name


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", CASES)
def test_the_deciding_line_says_it_with_its_numbers(name: str, language: str) -> None:
    words = load_words(language)
    runs = CASES[name][0]().joined()
    found = verdicts(runs)
    row = next(row for row in verdict_rows(runs, found, words) if row.name == "v")
    assert row.line and "{" not in row.line + row.settle + "".join(row.notes)


def test_the_line_has_size_direction_and_interval_of_what_decided() -> None:
    line = deciding_line(better().verdict("v"), load_words("en"))
    assert re.match(r"Generated throughput is \+20\s% faster \(\+\d+\s% to \+\d+\s%\), beyond noise", line), line


def test_too_few_runs_have_a_change_and_no_interval() -> None:
    words = load_words("en")
    for repeats, shown in ((2, False), (3, True)):
        lab = Lab().baseline(repeats=repeats).add("v", BETTER, changes={"max_batch_tokens": 1024}, repeats=repeats)
        runs = lab.joined()
        row = next(row for row in verdict_rows(runs, verdicts(runs), words) if row.name == "v")
        assert all(cell.change for cell in row.cells)
        assert [bool(cell.interval) for cell in row.cells] == [shown] * len(row.cells)


def test_a_failure_by_a_size_that_was_held_is_told_as_such() -> None:
    lab = plain().add("v", repeats=0, changes={"max_batch_tokens": 64}).fail("v", "oom", "cache creation")
    lab.variants[-1].pinned = ["num_blocks"]
    lab.runs[-1].settings = {"num_blocks": 1000}
    runs = lab.joined()
    row = next(row for row in verdict_rows(runs, verdicts(runs), load_words("en")) if row.name == "v")
    assert row.word == "do_not_adopt" and any("holds num_blocks at 1000, which baseline" in note for note in row.notes)


def test_correctness_beats_slos_and_slos_beat_speed() -> None:
    fast = Values(throughput=5000, ttft_p95=1500)
    lab = plain().add("v", fast, changes={"max_batch_tokens": 1024})
    assert rule(lab) == ("slo_missed", "do_not_adopt")
    wrong = plain().add("v", fast, changes={"max_batch_tokens": 1024}, equal=0)
    assert rule(wrong) == ("tokens_differ", "do_not_adopt")


def test_different_tokens_do_not_count_where_the_rivals_differ_too() -> None:
    lab = Lab().baseline(equal=REQUESTS - 3).add("v", BETTER, changes={"max_batch_tokens": 1024}, equal=REQUESTS - 1)
    assert rule(lab) == ("better", "adopt")


def test_a_single_run_far_beyond_an_slo_tells_and_one_near_it_does_not() -> None:
    for ttft, wanted in ((5000.0, "slo_missed"), (1100.0, "few_runs"), (300.0, "few_runs")):
        lab = plain().add("v", Values(ttft_p95=ttft), changes={"max_batch_tokens": 64}, repeats=1)
        assert rule(lab)[0] == wanted, ttft


def test_a_loss_within_an_slo_is_no_loss() -> None:
    lab = plain().add("v", Values(throughput=1200, ttft_p95=200), changes={"max_batch_tokens": 64})
    verdict = lab.verdict("v")
    assert (verdict.rule, verdict.word) == ("better", "adopt")
    words = {effect.key: effect.word for effect in verdict.effects}
    assert words["ttft_ms.p95"] == "worse", "it is still shown as worse"


def test_less_memory_at_no_loss_is_a_gain_and_more_is_no_loss() -> None:
    less = plain().add("v", Values(memory=1 << 29), changes={"num_blocks": 64})
    assert rule(less) == ("better", "adopt")
    hardly = plain().add("v", Values(memory=0.99 * (1 << 30)), changes={"num_blocks": 64})
    assert rule(hardly) == ("no_gain", "do_not_adopt")
    more = plain().add("v", Values(throughput=1200, memory=1 << 31), changes={"num_blocks": 64})
    assert rule(more) == ("better", "adopt")
    more.slos["peak_memory_gib"] = 1.5
    assert rule(more) == ("slo_missed", "do_not_adopt")
    slower = plain().add("v", Values(throughput=900, memory=1 << 29), changes={"num_blocks": 64})
    assert rule(slower) == ("worse", "do_not_adopt"), "memory does not make up for speed"


def test_failures_that_no_setting_brought_about_decide_nothing() -> None:
    assert rule(better().fail("v", "error", "import")) == ("better", "adopt")
    only = plain().add("v", repeats=0).fail("v", "error", "recording")
    assert rule(only) == ("no_runs", "not_run")


def test_predicted_runs_never_count() -> None:
    lab = plain().add("v", Values(throughput=9000, predicted=True), changes={"max_batch_tokens": 1024})
    assert rule(lab) == ("no_runs", "not_run")


def test_repeats_of_one_setting_are_never_better_or_worse() -> None:
    verdict = plain().add("v", Values(throughput=1500, ttft_p95=50), changes={"max_batch_tokens": 512}).verdict("v")
    assert {effect.word for effect in verdict.effects} == {"within_noise"}


def test_a_missing_baseline_leaves_every_verdict_open() -> None:
    lab = Lab().add("baseline", based_on="", stage=1, repeats=0).fail("baseline", "oom", "model load", 3)
    assert rule(lab.add("v", BETTER, changes={"max_batch_tokens": 64})) == ("few_runs", "cannot_tell")


def test_a_verdict_says_how_many_runs_it_rests_on() -> None:
    verdict = better(repeats=5).fail("v", "oom", "prefill", 2).verdict("v")
    assert (verdict.runs, verdict.rival_runs) == (7, 3)
    assert dict(verdict.grounds.numbers) == {"kind": "oom", "phase": "prefill", "failed": 2, "ended": 7}


def test_identical_variants_are_rarely_told_apart() -> None:
    """Of many variants that change nothing that matters, hardly any gets a word of its own by noise alone."""
    source = random.Random(5)

    def repeats() -> list[Values]:
        scatter = [source.gauss(1, 0.03) for _ in range(3)]
        return [Values(throughput=1000 / by, ttft_p95=100 * by, e2e_p95=500 * by, noise=0) for by in scatter]

    words = []
    for _ in range(200):
        lab = Lab().baseline(repeats())
        words.append(lab.add("v", repeats(), changes={"max_batch_tokens": 64}).verdict("v").rule)
    assert sum(word in ("better", "worse", "trade_off") for word in words) <= 10


def test_verdicts_come_in_the_order_of_the_experiment() -> None:
    lab = better().add("w", changes={"max_batch_tokens": 64})
    assert [verdict.variant.name for verdict in verdicts(lab.joined())] == ["baseline", "v", "w"]
