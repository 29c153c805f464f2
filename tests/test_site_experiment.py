"""An experiment put together: rivals, variables, what moved with them, SLOs, the front, intervals."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.experiment import Variant, join
from cbtrace.site.analysis.experiment_frontier import frontier
from cbtrace.site.analysis.experiment_repeats import unlike_repeats
from cbtrace.site.analysis.experiment_slos import check_slos, slos_of, unknown_slos
from cbtrace.site.analysis.experiment_stages import stage_results
from cbtrace.site.analysis.experiment_variables import followers, value_of_setting, variables
from cbtrace.site.analysis.experiment_verdict import verdicts
from cbtrace.site.pages.experiment import experiment_view
from cbtrace.site.pages.experiment_charts import chart_data, interval
from cbtrace.site.pages.experiment_correctness import batching_tables, correctness_section
from cbtrace.site.pages.experiment_verdicts import verdict_rows
from cbtrace.site.words import load_words
from cbtrace.traces.experiment import Difference, FailureKind
from experiment_cases import REQUESTS, Lab, Values

WORDS = load_words("en")


def named(lab: Lab, name: str) -> Variant:
    return next(variant for variant in lab.joined().variants if variant.name == name)


def rival_of(lab: Lab, name: str) -> str | None:
    runs = lab.joined()
    rival = runs.rival(next(variant for variant in runs.variants if variant.name == name))
    return rival.name if rival is not None else None


# Rivals --------------------------------------------------------------------------------------------------------------


def test_the_rival_is_the_baseline_wherever_both_served_the_same_requests() -> None:
    lab = Lab().baseline().add("a", changes={"num_blocks": 64})
    lab.add("b", changes={"safety_margin": 0.0}, based_on="a")
    assert (rival_of(lab, "baseline"), rival_of(lab, "a"), rival_of(lab, "b")) == (None, "baseline", "baseline")


def test_with_other_requests_it_is_the_nearest_that_served_them() -> None:
    lab = Lab().baseline().add("shared", changes={"workload": "prefix"}, workload="prefix")
    lab.add("no sharing", changes={"allow_block_sharing": False}, based_on="shared", workload="prefix")
    lab.add("static, shared", kind="static", changes={"batching": "static"}, workload="prefix")
    assert rival_of(lab, "shared") is None
    assert rival_of(lab, "no sharing") == "shared"
    assert rival_of(lab, "static, shared") == "shared"


def test_variants_that_name_each_other_end_somewhere() -> None:
    lab = Lab().baseline().add("a", based_on="b", workload="w").add("b", based_on="a", workload="x")
    assert rival_of(lab, "a") is None and rival_of(lab, "b") is None
    assert variables(lab.joined()) == []


def test_runs_of_unknown_variants_are_left_out() -> None:
    lab = Lab().baseline()
    lab.runs[0].variant = "somebody else's"
    assert [len(variant.runs) for variant in join(lab.experiment(), lab.traced).variants] == [2]


def test_a_run_without_its_trace_does_not_count() -> None:
    lab = Lab().baseline()
    del lab.traced[lab.runs[0].id]
    assert len(named(lab, "baseline").measured) == 2


# Variables -----------------------------------------------------------------------------------------------------------


def test_a_variable_is_sorted_by_what_was_resolved_and_has_its_start_among_it() -> None:
    lab = Lab().baseline()
    for value in ("5%", "200%", "50%"):
        blocks = str(int(value[:-1]) * 10)
        lab.add(value, changes={"num_blocks": value}, resolved={"num_blocks": blocks}, stage=3)
    (variable,) = variables(lab.joined())
    assert (variable.name, variable.stage) == ("num_blocks", 3)
    assert [(point.value, point.start) for point in variable.points] == [
        ("50", False),
        ("500", False),
        ("1000", True),
        ("2000", False),
    ]


def test_the_same_setting_changed_from_two_places_is_two_variables() -> None:
    lab = Lab().baseline().add("small", changes={"num_blocks": 64})
    lab.add("m0", changes={"safety_margin": 0.0}).add("m1", changes={"safety_margin": 0.0}, based_on="small")
    assert [(it.name, it.start.variant.name) for it in variables(lab.joined())] == [
        ("num_blocks", "baseline"),
        ("safety_margin", "baseline"),
        ("safety_margin", "small"),
    ]


def test_what_changes_several_things_or_none_of_the_engine_is_on_no_variable() -> None:
    lab = Lab().baseline()
    lab.add("both", changes={"num_blocks": 64, "safety_margin": 0.0}, together=True)
    lab.add("prefix", changes={"workload": "prefix"}, workload="prefix")
    lab.add("static", kind="static", changes={"batching": "static"})
    assert variables(lab.joined()) == []
    (_, second, _, _) = stage_results(lab.joined(), verdicts(lab.joined()))
    assert [verdict.variant.name for verdict in second.others] == ["both", "prefix", "static"]


def test_values_without_an_order_stay_in_the_order_of_the_plan() -> None:
    lab = Lab().baseline().add("b", changes={"scheduler_type": "prefill_first"})
    assert [point.value for point in variables(lab.joined())[0].points] == ["fifo", "prefill_first"]


def test_a_planned_value_is_known_before_any_run() -> None:
    lab = Lab().baseline().add("v", repeats=0, changes={"use_cuda_graph": [True, False]}).leave("v")
    assert value_of_setting(named(lab, "v"), "use_cuda_graph") == "true, false"


def test_changing_the_scheduler_alone_changes_two_things_and_the_page_says_so() -> None:
    lab = Lab().baseline()
    lab.add("alone", changes={"scheduler_type": "prefill_first"}, resolved={"safety_margin": "0.0"})
    lab.add("pinned", changes={"scheduler_type": "prefill_first"}, requested={"safety_margin": "0.15"})
    start, alone, pinned = (named(lab, name) for name in ("baseline", "alone", "pinned"))
    assert [(it.name, it.resolved_a, it.resolved_b) for it in followers(start, alone)] == [
        ("safety_margin", "0.15", "0.0")
    ]
    assert followers(start, pinned) == []
    runs = lab.joined()
    notes = {row.name: row.notes for row in verdict_rows(runs, verdicts(runs), WORDS)}
    assert any("safety_margin" in note and "0.15 became 0.0" in note for note in notes["alone"])
    assert not any("safety_margin" in note for note in notes["pinned"])


# SLOs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "repeats", "state"),
    [
        (Values(ttft_p95=500), 3, "met"),
        (Values(ttft_p95=1500), 3, "missed"),
        (Values(ttft_p95=1000), 3, "unclear"),
        (Values(ttft_p95=999), 1, "unclear"),
        (Values(ttft_p95=1001), 1, "unclear"),
        (Values(ttft_p95=2500), 1, "missed"),
        (Values(ttft_p95=400), 1, "met"),
        (Values(), 0, "unknown"),
    ],
)
def test_an_slo_is_met_by_all_runs_or_by_none_or_it_is_unclear(values: Values, repeats: int, state: str) -> None:
    lab = Lab().baseline(values, repeats=repeats)
    checks = check_slos(named(lab, "baseline"), slos_of(lab.experiment()))
    assert {check.slo.name: check.state for check in checks}["ttft_p95_ms"] == state


def test_limits_have_the_units_of_their_metrics() -> None:
    lab = Lab(slos={"peak_memory_gib": 2, "token_gap_p99_ms": 60, "e2e_p95_ms": None, "from_tomorrow": 3})
    assert {slo.metric: slo.limit for slo in slos_of(lab.experiment())} == {
        "peak_memory_bytes": float(2 << 30),
        "token_gap_ms.p99": 60.0,
        "failures": 0.0,
    }
    assert unknown_slos(lab.experiment()) == ["from_tomorrow"]


def test_one_run_with_missing_requests_is_enough() -> None:
    lab = Lab().baseline(complete=REQUESTS - 2, repeats=1)
    check = check_slos(named(lab, "baseline"), slos_of(lab.experiment()))[-1]
    assert (check.state, check.worst) == ("missed", 2.0)


# The front, intervals, tables ----------------------------------------------------------------------------------------


def test_the_front_is_what_no_other_variant_beats_in_both() -> None:
    lab = Lab().baseline(Values(throughput=1000, ttft_p95=100))
    lab.add("faster, later", Values(throughput=1200, ttft_p95=150))
    lab.add("beaten", Values(throughput=900, ttft_p95=120))
    lab.add("elsewhere", Values(throughput=9000, ttft_p95=1), workload="other")
    points = frontier(lab.joined(), "ttft_ms.p95")
    assert [(point.variant.name, point.on_front) for point in points] == [
        ("faster, later", True),
        ("baseline", True),
        ("beaten", False),
    ]


def test_equal_points_beat_nobody() -> None:
    lab = Lab().baseline(Values(noise=0)).add("twin", Values(noise=0))
    assert all(point.on_front for point in frontier(lab.joined(), "ttft_ms.p95"))


def test_an_interval_holds_the_mean_and_needs_three_runs() -> None:
    assert interval([1.0, 3.0]) is None
    mean, low, high = interval([1.0, 2.0, 3.0]) or [0.0, 0.0, 0.0]
    assert mean == 2.0
    assert (high - low) / 2 == pytest.approx(4.303 / 3**0.5, rel=1e-3), "Student's t with two degrees of freedom"


def test_padding_is_the_share_of_what_was_computed() -> None:
    lab = Lab().baseline().add("static", kind="static", changes={"batching": "static"})
    (table,) = batching_tables(lab.joined(), WORDS)
    assert [(row.name, row.needed, row.computed, row.padding) for row in table.rows] == [
        ("static", "1,000", "2,500", "60\u00a0%"),
        ("baseline", "1,000", "1,000", "0\u00a0%"),
    ]
    assert batching_tables(Lab().baseline().joined(), WORDS) == []


def test_correctness_counts_all_runs_and_names_the_first_difference() -> None:
    lab = Lab().baseline().add("v", equal=REQUESTS - 2, changes={"num_blocks": 64}, remark="Rounding.")
    lab.add("w", complete=REQUESTS - 1, equal=REQUESTS - 1)
    section = correctness_section(lab.joined(), WORDS)
    rows = {row.name: row for row in section.rows}
    assert (rows["v"].equal, rows["v"].first) == ("114 / 120", "token 3 of request request-0, repeat 1")
    assert rows["v"].remarks == ["Rounding."]
    assert (rows["w"].complete, rows["w"].failures) == ("117 / 120", "error: 3")
    assert (rows["baseline"].right, rows["v"].right, rows["w"].right) == (True, False, False)
    assert section.title.startswith("357 of 360 requests completed")
    assert section.title.endswith("351 of 357 have the tokens of static batching. Rounding.")


def test_static_batching_that_repeats_itself_is_not_counted_as_equal() -> None:
    lab = Lab().baseline(equal=0, remark="Rounding.").add("static", kind="static", changes={"batching": "static"})
    title = correctness_section(lab.joined(), WORDS).title
    assert title.startswith("240 of 240 requests completed")
    assert title.endswith(" 0 of 120 have the tokens of static batching. Rounding.")


def test_charts_hold_every_run_and_mark_failures_and_predictions_apart() -> None:
    lab = Lab().baseline().add("v", Values(throughput=1200), changes={"num_blocks": 2000}, stage=3)
    lab.add("guess", Values(predicted=True), changes={"num_blocks": 4000}, stage=3, repeats=1)
    lab.fail("v", "oom", "prefill")
    runs = lab.joined()
    data = chart_data(runs, stage_results(runs, verdicts(runs)), WORDS)
    at = [metric["key"] for metric in data["metrics"]].index("throughput_generated_tps")
    start, v, guess = data["variables"][0]["points"]
    assert [point["label"] for point in (start, v, guess)] == ["1000", "2000", "4000"]
    assert (start["start"], v["start"]) == (True, False)
    assert [run["values"][at] for run in v["runs"]] == pytest.approx([1198.8, 1200, 1201.2])
    assert v["failures"] == [{"phase": "prefill", "text": "out of memory, prefill"}]
    assert [run["predicted"] for run in guess["runs"]] == [True]
    assert guess["intervals"][at] is None
    assert {row["variant"] for row in data["fronts"]["ttft_ms.p95"]} == {"baseline", "v"}, "a guess is no run"


# Anything that an experiment may hold --------------------------------------------------------------------------------

NAMES = st.sampled_from(["baseline", "a", "b", "c", ""])
CHANGES = st.dictionaries(
    st.sampled_from(["num_blocks", "safety_margin", "scheduler_type", "batching", "workload", "dtype"]),
    st.one_of(st.integers(-2, 9000), st.floats(0, 1), st.sampled_from(["50%", "prefill_first", ""]), st.none()),
    max_size=2,
)
AMOUNT = st.floats(0, 1e12)
VALUES = st.builds(
    Values, AMOUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.integers(0, 90), st.integers(0, 9), predicted=st.booleans()
)
VARIANTS = st.fixed_dictionaries(
    {
        "values": VALUES,
        "changes": CHANGES,
        "based_on": NAMES,
        "kind": st.sampled_from(["continuous", "static"]),
        "workload": st.sampled_from(["default", "other"]),
        "stage": st.integers(-1, 5),
        "repeats": st.integers(0, 4),
        "together": st.booleans(),
        "equal": st.none() | st.integers(0, REQUESTS),
        "complete": st.integers(0, REQUESTS),
        "remark": st.sampled_from(["", "Rounding."]),
    }
)
ENDS = st.lists(
    st.tuples(st.sampled_from([*get_args(FailureKind), "planned", "running", "skipped"]), st.text(max_size=8))
)
SLOS = st.dictionaries(
    st.sampled_from(["ttft_p95_ms", "token_gap_p99_ms", "peak_memory_gib", "failures", "new"]),
    st.none() | st.floats(0, 1e12) | st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(slos=SLOS, variants=st.lists(st.tuples(NAMES, VARIANTS, ENDS), max_size=5))
def test_whatever_an_experiment_holds_it_has_a_page_and_one_verdict_a_variant(slos, variants) -> None:  # type: ignore[no-untyped-def]
    lab = Lab(slos=slos)
    for name, more, ends in variants:
        lab.add(name, **more)
        for end, text in ends:
            if end in get_args(FailureKind):
                lab.fail(name, end, text, text=text)
            else:
                lab.leave(name, end, text=text)
    runs = lab.joined()
    found = verdicts(runs)
    assert [verdict.variant.name for verdict in found] == [name for name, _, _ in variants]
    for verdict in found:
        if verdict.word == "adopt":
            assert verdict.rival is not None and min(verdict.rival_runs, len(verdict.variant.measured)) >= 2
            assert not [check for check in verdict.checks if check.state in ("missed", "unclear")]
    for words in (WORDS, load_words("ja")):
        view = experiment_view(runs, found, stage_results(runs, found), [], words)
        assert len(view.verdicts) == len(variants)
        chart_data(runs, stage_results(runs, found), words)


def test_repeats_of_the_baseline_that_differ_from_one_another_are_told() -> None:
    lab = Lab().baseline(equal=REQUESTS - 5)
    assert correctness_section(lab.joined(), WORDS).repeats == "", (
        "all repeats differ from the reference in the same way"
    )
    second, third = (lab.runs[at].correctness for at in (1, 2))
    assert second is not None and third is not None
    second.differences[0] = Difference("request-0", 9, 1, 2)
    third.differences = third.differences[2:]
    third.equal += 2
    told = correctness_section(lab.joined(), WORDS).repeats
    assert f"at least 2 of {REQUESTS} requests" in told, "request-0, in two ways, and request-1"
    third.differences_left_out = 3
    assert f"at least 2 of {REQUESTS} requests" in correctness_section(lab.joined(), WORDS).repeats
    third.equal = second.equal
    assert correctness_section(lab.joined(), WORDS).repeats == "", "nothing is known of those that are not listed"
    third.reference = "another"
    assert unlike_repeats(named(lab, "baseline")) is not None
