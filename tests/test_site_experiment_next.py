"""What to run next: every rule speaks where it should, with the right numbers, and is silent where it should not."""

from __future__ import annotations

from typing import get_args

import pytest

from cbtrace.site.analysis.experiment_edges import next_value
from cbtrace.site.analysis.experiment_effects import effect, runs_to_tell
from cbtrace.site.analysis.experiment_failures import BEFORE, PHASES
from cbtrace.site.analysis.experiment_next import next_steps, settling_step
from cbtrace.site.analysis.experiment_step import Change, Step
from cbtrace.site.analysis.experiment_verdict import verdicts
from cbtrace.site.pages.experiment_steps import settle_text, step_row
from cbtrace.site.words import LANGUAGES, load_words
from cbtrace.traces.experiment import FailureKind
from experiment_cases import REQUESTS, Lab, Values

FAST, SLOW = Values(throughput=1200), Values(throughput=800)
NOISY = Values(throughput=1100, noise=60)


def steps(lab: Lab) -> list[Step]:
    """The steps of an experiment; all of them have their sentences in every language."""
    runs = lab.joined()
    found = verdicts(runs)
    told = next_steps(runs, found)
    settling = [step for step in map(settling_step, found) if step is not None]
    for words in map(load_words, LANGUAGES):
        sentences = [settle_text(step, words) for step in settling]
        for row in (step_row(step, words) for step in told):
            sentences += [row.text, row.advice]
        assert "{" not in "".join(sentences)
    return told


def rules(lab: Lab) -> list[str]:
    return [step.rule for step in steps(lab)]


def only(lab: Lab, rule: str) -> Step:
    return next(step for step in steps(lab) if step.rule == rule)


def plain() -> Lab:
    return Lab().baseline()


def along(setting: str, *points: tuple[float, Values], **more: object) -> Lab:
    """A variable of the baseline, with a variant for each point."""
    lab = plain()
    for value, values in points:
        lab.add(f"{setting}={value:g}", values, changes={setting: value}, **more)  # type: ignore[arg-type]
    return lab


def test_nothing_is_said_of_an_experiment_in_which_all_is_settled() -> None:
    lab = along("max_batch_tokens", (256, FAST), (128, SLOW))
    assert rules(lab) == []


# To finish -----------------------------------------------------------------------------------------------------------


def test_runs_that_are_left_come_first_with_their_price() -> None:
    lab = plain().add("v", FAST, changes={"max_batch_tokens": 64}).leave("v", "planned", 2).leave("v", "running")
    assert rules(lab)[0] == "unfinished"
    step = only(lab, "unfinished")
    assert (step.numbers["left"], step.numbers["all"], step.seconds) == (3, 9, 30.0)


def test_an_experiment_of_which_nothing_was_run_has_no_price() -> None:
    lab = Lab().add("baseline", based_on="", repeats=0).leave("baseline", "planned", 3)
    assert only(lab, "unfinished").seconds is None


# After a failure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "told"),
    [
        ("model load", "model_load"),
        ("cache creation", "cache_creation"),
        ("input creation", "cache_creation"),
        ("engine creation", "cache_creation"),
        ("warm-up", "warm_up"),
        ("warm-up requests", "warm_up"),
        ("prefill", "prefill"),
        ("decode growth", "decode_growth"),
        ("generation", "generation"),
        ("a phase of tomorrow", "generation"),
    ],
)
def test_after_a_failure_the_last_change_is_put_back_and_the_phase_is_told(phase: str, told: str) -> None:
    lab = plain().add("wide", SLOW, changes={"max_batch_tokens": 1024})
    lab.add("wider", repeats=0, changes={"num_blocks": 4000}, based_on="wide").fail("wider", "oom", phase, 3)
    step = only(lab, "put_back")
    assert step.variant is not None and step.variant.name == "wider"
    assert step.changes == (Change("num_blocks", "1000", "4000"),), "its own change, not the one it inherits"
    assert (step.numbers["kind"], step.numbers["phase"], step.numbers["failed"]) == ("oom", told, 3)


def test_every_kind_and_phase_has_a_name_and_an_advice() -> None:
    for words in map(load_words, LANGUAGES):
        for kind in (*get_args(FailureKind), "empty", "unfinished"):
            assert words(f"failure.kind.{kind}")
        for phase in {*PHASES.values(), "generation"} - {BEFORE}:
            assert words(f"failure.phase.{phase}") and words(f"experiment.advice.{phase}")


def test_advice_is_by_phase_when_memory_ran_out_and_else_by_kind() -> None:
    told = set()
    for kind, phase in (("oom", "prefill"), ("oom", "model load"), ("hang", "prefill"), ("hang", "model load")):
        lab = plain().add("v", repeats=0, changes={"num_blocks": 1}).fail("v", kind, phase)  # type: ignore[arg-type]
        told.add(step_row(only(lab, "put_back"), load_words("en")).advice)
    assert len(told) == 3


def test_the_value_before_is_the_one_that_was_resolved() -> None:
    lab = plain().add("half", repeats=0, changes={"num_blocks": "50%"}).fail("half", "dead_end", "generation")
    lab.runs[-1].settings = {"num_blocks": 500}
    assert only(lab, "put_back").changes == (Change("num_blocks", "1000", "500"),)


@pytest.mark.parametrize("kind", ["oom", "dead_end", "hang", "timeout", "killed", "error"])
def test_every_kind_of_failure_is_put_back(kind: str) -> None:
    lab = plain().add("v", repeats=0, changes={"num_blocks": 1}).fail("v", kind, "generation")  # type: ignore[arg-type]
    assert only(lab, "put_back").numbers["kind"] == kind


def test_a_size_that_was_held_as_the_engine_had_chosen_it_is_what_did_not_fit() -> None:
    lab = plain().add("small", repeats=0, changes={"max_batch_tokens": 64}).fail("small", "oom", "cache creation", 2)
    assert only(lab, "put_back").changes[0].setting == "max_batch_tokens", "nothing was held"
    lab.variants[-1].pinned = ["num_blocks"]
    for run in lab.runs[-2:]:
        run.settings = {"max_batch_tokens": 64, "num_blocks": 1000}
    step = only(lab, "pinned")
    assert (step.numbers["pins"], step.numbers["parent"], step.numbers["failed"]) == ("num_blocks=1000", "baseline", 2)
    assert "put_back" not in rules(lab)
    lab.runs[0].settings = {"num_blocks": 1000}
    assert "put_back" in rules(lab), "the plan asked for it: it is no size that filled the memory"


def test_a_run_that_somebody_cancelled_is_no_failure() -> None:
    lab = plain().add("v", FAST, changes={"num_blocks": 1}).fail("v", "cancelled", "generation")
    assert rules(lab) == []


def test_a_failure_before_any_setting_mattered_is_only_repeated() -> None:
    lab = plain().add("v", FAST, changes={"num_blocks": 1}).fail("v", "error", "import", 2)
    step = only(lab, "again")
    assert step.seconds == 20.0
    assert "put_back" not in rules(lab)


def test_a_failing_baseline_has_nothing_to_put_back() -> None:
    lab = Lab().add("baseline", repeats=0, based_on="").fail("baseline", "oom", "model load", 3)
    assert only(lab, "failed_as_is").numbers["phase"] == "model_load"
    static = (
        plain().add("static", repeats=0, kind="static", changes={"batching": "static"}).fail("static", "oom", "prefill")
    )
    assert "failed_as_is" in rules(static), "batching is no setting that could be put back"


def test_a_burst_of_resets_puts_the_last_change_back() -> None:
    lab = along("num_blocks", (64, Values(throughput=800, resets=5, offloads=1)))
    step = only(lab, "burst")
    assert step.changes == (Change("num_blocks", "1000", "64"),)
    assert (step.numbers["resets"], step.numbers["before"], step.numbers["requests"]) == (6.0, 0.0, REQUESTS)


def test_few_resets_and_those_that_were_there_before_are_no_burst() -> None:
    assert "burst" not in rules(along("num_blocks", (64, Values(throughput=800, resets=2))))
    lab = along("num_blocks", (64, Values(throughput=800, resets=6)))
    lab.add("margin", Values(throughput=800, resets=11), changes={"safety_margin": 0.0}, based_on="num_blocks=64")
    bursts = [step.variant.name for step in steps(lab) if step.rule == "burst" and step.variant is not None]
    assert bursts == ["num_blocks=64"], "eleven are not twice as many as six"


# What is open --------------------------------------------------------------------------------------------------------


def test_the_cheapest_runs_that_would_settle_something_are_named() -> None:
    lab = plain().add("near", Values(throughput=1040, noise=20), changes={"max_batch_tokens": 64})
    lab.add("far", Values(throughput=1100, noise=20), changes={"max_batch_tokens": 1024})
    found = {verdict.variant.name: settling_step(verdict) for verdict in verdicts(lab.joined())}
    near, far = found["near"], found["far"]
    assert near is not None and far is not None and near.seconds is not None and far.seconds is not None
    assert near.seconds > far.seconds
    chosen = only(lab, "repeats")
    assert chosen == far
    more = int(chosen.numbers["more"])
    assert more > 0 and chosen.seconds == 10.0 * (more + int(chosen.numbers["rival_more"]))


def test_the_repeats_that_are_asked_for_do_tell_if_all_stays_as_it_is() -> None:
    rival = [1000.0, 960.0, 1040.0]
    other = [1100.0, 1060.0, 1140.0]
    key = "throughput_generated_tps"
    assert effect(rival, other, key).word == "cannot_tell"
    runs = runs_to_tell(rival, other, key)
    assert runs is not None and 3 < runs <= 20

    def repeated(values: list[float], count: int) -> list[float]:
        middle = sum(values) / len(values)
        return [middle - 40, *[middle] * (count % 2), middle + 40] + [middle - 36, middle + 36] * ((count - 2) // 2)

    assert effect(repeated(rival, runs + 2), repeated(other, runs + 2), key).word == "better"


def test_more_runs_are_not_asked_for_where_noise_hides_everything() -> None:
    lab = plain().add("v", Values(throughput=1003, noise=150), changes={"max_batch_tokens": 64})
    step = settling_step(lab.verdict("v"))
    assert step is not None and (step.rule, step.seconds) == ("beyond_reach", None)
    assert "repeats" not in rules(lab), "and what has no price is not the cheapest"


def test_single_runs_are_repeated_to_the_least_that_tells() -> None:
    lab = plain().add("v", FAST, changes={"max_batch_tokens": 64}, repeats=1)
    step = only(lab, "least")
    assert (step.numbers["more"], step.numbers["rival_more"], step.seconds) == (2, 0, 20.0)


def test_two_runs_a_side_are_repeated_until_the_clearest_number_tells() -> None:
    two = [Values(throughput=1000, ttft_p95=100), Values(throughput=1060, ttft_p95=101)]
    lab = Lab().baseline(two, repeats=2)
    lab.add("v", [Values(1005, 60), Values(1050, 61)], changes={"max_batch_tokens": 64}, repeats=2)
    step = settling_step(lab.verdict("v"))
    assert lab.verdict("v").rule == "few_runs" and step is not None
    assert (step.rule, step.key, step.numbers["more"]) == ("repeats", "ttft_ms.p95", 1), "throughput never would"


def test_runs_that_are_planned_anyway_are_not_asked_for() -> None:
    lab = plain().add("v", FAST, changes={"max_batch_tokens": 64}, repeats=1).leave("v", "planned", 2)
    step = settling_step(lab.verdict("v"))
    assert step is not None and step.rule == "planned"
    assert rules(lab) == ["unfinished"]


def test_runs_on_both_sides_of_an_slo_are_not_settled_by_more() -> None:
    both = plain().add("v", Values(ttft_p95=1000), changes={"max_batch_tokens": 64}).verdict("v")
    step = settling_step(both)
    assert both.rule == "slo_unclear" and step is not None and step.rule == "slo_border"


def test_a_noisy_baseline_is_told() -> None:
    assert "noisy" in rules(Lab().baseline(Values(noise=150)))
    assert "noisy" not in rules(Lab().baseline(Values(noise=50)))


# Beyond an edge ------------------------------------------------------------------------------------------------------


def test_a_best_value_at_the_upper_edge_leads_further_up() -> None:
    step = only(along("max_batch_tokens", (256, SLOW), (1024, FAST)), "edge_up")
    assert dict(step.numbers) == {"setting": "max_batch_tokens", "value": 2048, "edge": "1024"}
    assert step.seconds == 30.0


def test_a_best_value_at_the_lower_edge_leads_further_down() -> None:
    step = only(along("max_batch_tokens", (128, FAST), (1024, SLOW)), "edge_down")
    assert step.numbers["value"] == 32, "by the same factor again"


def test_the_start_is_the_edge_where_all_others_are_worse() -> None:
    assert only(along("max_batch_tokens", (256, SLOW), (128, SLOW)), "edge_up").numbers["edge"] == "512"


def test_a_best_value_in_the_middle_leads_nowhere() -> None:
    lab = along("max_batch_tokens", (1024, FAST), (2048, Values(throughput=1100)), (256, SLOW))
    assert not [rule for rule in rules(lab) if rule.startswith(("edge", "between"))]


def test_an_edge_within_noise_leads_nowhere() -> None:
    assert "edge_up" not in rules(along("max_batch_tokens", (1024, Values(throughput=1010, noise=20))))


def test_what_failed_beyond_the_best_value_leads_between_the_two() -> None:
    lab = along("max_batch_tokens", (1024, FAST))
    lab.add("too wide", repeats=0, changes={"max_batch_tokens": 4096}).fail("too wide", "oom", "prefill", 3)
    step = only(lab, "between_up")
    assert step.numbers["value"] == 2048


def test_there_is_nothing_beyond_an_automatic_cache() -> None:
    assert "edge_up" not in rules(along("num_blocks", (100, SLOW)))
    lab = Lab().baseline(requested={"num_blocks": "1000"})
    lab.add("v", SLOW, changes={"num_blocks": 100})
    assert "edge_up" in rules(lab), "a cache that was asked for may be asked for larger"


def test_a_wrong_variant_is_no_best_one() -> None:
    lab = plain().add("v", FAST, changes={"max_batch_tokens": 1024}, equal=0)
    assert not [rule for rule in rules(lab) if rule.startswith("edge")]


def test_an_slo_that_all_miss_still_leads_on() -> None:
    lab = Lab(slos={"ttft_p95_ms": 10}).baseline().add("v", FAST, changes={"max_batch_tokens": 1024})
    assert "edge_up" in rules(lab)


@pytest.mark.parametrize(
    ("name", "edge", "inner", "value"),
    [
        ("max_batch_tokens", 1024, 512, 2048),
        ("max_batch_tokens", 8192, 64, 32768),
        ("max_batch_tokens", 1, 2, None),
        ("safety_margin", 0.4, 0.15, 0.7),
        ("safety_margin", 0.1, 0.2, 0.05),
        ("safety_margin", 0.0, 0.15, None),
        ("cpu_offload_space", 4.0, 2.0, 8),
        ("cpu_offload_space", 0.0, 2.0, None),
    ],
)
def test_the_next_value_keeps_the_step(name: str, edge: float, inner: float, value: float | None) -> None:
    assert next_value(name, float(edge), float(inner)) == value


# What is missing -----------------------------------------------------------------------------------------------------


def test_missing_slos_are_told() -> None:
    assert "no_slos" in rules(Lab(slos={"failures": 0, "peak_memory_gib": 4}).baseline())
    assert "no_slos" not in rules(Lab(slos={"e2e_p95_ms": 900}).baseline())


def test_a_missing_reference_is_told() -> None:
    assert "no_reference" in rules(Lab().baseline(equal=None))
    assert "no_reference" not in rules(plain())
    static = Lab().baseline(equal=None).add("static", kind="static", changes={"batching": "static"}, equal=None)
    assert "no_reference" not in rules(static), "there is one, and it says itself why nothing was compared"
