"""Conditions of a gate: the grammar, mistakes told at their character, and three answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.comparability import compare_conditions
from cbtrace.site.analysis.comparison import MeasuredRun
from cbtrace.site.analysis.gate import exit_code, hold_against, parse_condition
from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.run_values import RUN_VALUES
from cbtrace.traces.errors import UsageError

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def side(values: list[float], *, key: str = "ttft_ms.p95", tag: str = "a", gpu: str = "H200") -> list[MeasuredRun]:
    conditions = RunConditions({}, {}, {"hardware.gpu.name": gpu}, {"commit": tag}, False, True)
    return [MeasuredRun(conditions, {key: value}, "host_rss") for value in values]


def outcome(condition: str, a: list[MeasuredRun], b: list[MeasuredRun]) -> tuple[str, str]:
    found = compare_conditions([run.conditions for run in a], [run.conditions for run in b])
    [result] = hold_against([parse_condition(condition)], a, b, found)
    return result.state, result.why


def scaled(factor: float) -> list[float]:
    return [value * factor for value in STEADY]


# The grammar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "operator", "amount", "relative"),
    [
        ("ttft_ms.p95 > +5%", "ttft_ms.p95", ">", 0.05, True),
        ("  ttft_ms.p95>=+5 %  ", "ttft_ms.p95", ">=", 0.05, True),
        ("throughput_generated_tps < -2.5%", "throughput_generated_tps", "<", -0.025, True),
        ("soft_resets > +0", "soft_resets", ">", 0.0, False),
        ("ttft_ms.p95 > +20ms", "ttft_ms.p95", ">", 20.0, False),
        ("ttft_ms.p95 > +20", "ttft_ms.p95", ">", 20.0, False),
        ("e2e_ms.max <= -0.5s", "e2e_ms.max", "<=", -500.0, False),
        ("window_s > +100ms", "window_s", ">", 0.1, False),
        ("peak_memory_bytes > +1GiB", "peak_memory_bytes", ">", 2**30, False),
        ("throughput_generated_tps < -10 tokens/s", "throughput_generated_tps", "<", -10.0, False),
        ("requests.failed > +0", "requests.failed", ">", 0.0, False),
    ],
)
def test_what_can_be_said(text: str, key: str, operator: str, amount: float, relative: bool) -> None:
    found = parse_condition(text)
    assert (found.value.key, found.operator, found.relative) == (key, operator, relative)
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "character", "says"),
    [
        ("", 1, "name of a metric"),
        ("> +5%", 1, "name of a metric"),
        ("ttft_ms > +5%", 1, "ttft_ms.p50, ttft_ms.p95"),
        ("ttft_ms.p96 > +5%", 1, "did you mean ttft_ms.p99"),
        ("  nonesuch > +5%", 3, "known are ttft_ms.p50"),
        ("ttft_ms.p95", 12, "one of > >= < <="),
        ("ttft_ms.p95 = +5%", 13, "one of > >= < <="),
        ("ttft_ms.p95 > 5%", 15, "with its sign"),
        ("ttft_ms.p95 > +", 16, "a number"),
        ("ttft_ms.p95 > +.5%", 16, "a number"),
        ("ttft_ms.p95 > +5MB", 17, "%, us, ms, s"),
        ("soft_resets > +5ms", 17, "% can be given"),
        ("ttft_ms.p95 > +5% and so on", 19, "one condition in each"),
        ("ttft_ms.p95 > +5\u202e%", 17, "one condition"),
    ],
)
def test_a_mistake_is_told_at_its_character(text: str, character: int, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_condition(text)
    assert error.value.slug == "bad-condition" and error.value.exit_code == 2
    assert f"character {character}," in str(error.value) and says in str(error.value)
    assert str(error.value).isprintable()


def test_every_condition_of_the_documentation_can_be_said() -> None:
    root = Path(__file__).parent.parent
    texts = [(root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/diff.md", "commands/diff.py")]
    found = [condition for text in texts for condition in re.findall(r"--fail-if '([^']*)'", text)]
    found += re.findall(r"`([a-z_]+\S* [<>]=? [+-][^`]*)`", texts[1])
    assert len(found) >= 6
    for condition in found:
        parse_condition(condition)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_other_text_is_a_mistake_and_no_crash(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(f"{text}!")


@settings(deadline=None)
@given(st.sampled_from(list(RUN_VALUES)), st.sampled_from((">", ">=", "<", "<=")), st.floats(0, 1e6), st.booleans())
def test_every_number_can_have_a_condition(key: str, operator: str, number: float, negative: bool) -> None:
    found = parse_condition(f"{key} {operator} {'-' if negative else '+'}{number:.6f}")
    assert (found.value.key, abs(found.amount)) == (key, pytest.approx(number, abs=1e-6))


# What becomes of one -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "condition", "state"),
    [
        (1.10, "ttft_ms.p95 > +5%", "holds"),
        (1.10, "ttft_ms.p95 < +5%", "passes"),
        (1.10, "ttft_ms.p95 > +9.9%", "cannot_tell"),
        (1.10, "ttft_ms.p95 > +15%", "passes"),
        (1.10, "ttft_ms.p95 > +0", "holds"),
        (1.10, "ttft_ms.p95 > +20ms", "passes"),
        (1.00, "ttft_ms.p95 > +5%", "passes"),
        (1.00, "ttft_ms.p95 > +0%", "cannot_tell"),
        (0.90, "ttft_ms.p95 < -5%", "holds"),
        (0.90, "ttft_ms.p95 <= -5ms", "holds"),
        (0.90, "ttft_ms.p95 > +5%", "passes"),
    ],
)
def test_three_answers(factor: float, condition: str, state: str) -> None:
    assert outcome(condition, side(STEADY), side(scaled(factor), tag="b")) == (state, "interval")


def test_numbers_that_do_not_waver() -> None:
    a, b = side([0.0] * 3, key="soft_resets"), side([0.0] * 3, key="soft_resets", tag="b")
    assert outcome("soft_resets > +0", a, b)[0] == "passes"
    assert outcome("soft_resets >= +0", a, b)[0] == "holds"
    assert outcome("soft_resets > +0", a, side([2.0] * 3, key="soft_resets", tag="b"))[0] == "holds"
    assert outcome("soft_resets > +0", a, side([0.0, 0.0, 1.0], key="soft_resets", tag="b"))[0] == "cannot_tell"


def test_too_few_runs_never_tell() -> None:
    assert outcome("ttft_ms.p95 > +5%", side([100.0]), side([200.0], tag="b")) == ("cannot_tell", "one_run")
    assert outcome("ttft_ms.p95 > +5%", side([100.0, 101.0]), side([200.0, 201.0], tag="b"))[1] == "few_runs"
    assert outcome("gpu_busy > +5%", side(STEADY), side(STEADY, tag="b")) == ("cannot_tell", "unknown")


def test_what_the_sides_differ_by_comes_first() -> None:
    slower = scaled(1.2)
    assert outcome("ttft_ms.p95 > +5%", side(STEADY), side(slower)) == ("cannot_tell", "same_settings")
    assert outcome("ttft_ms.p95 > +5%", side(STEADY), side(STEADY)) == ("passes", "interval")
    other_gpu = side(slower, tag="b", gpu="H100")
    assert outcome("ttft_ms.p95 > +5%", side(STEADY), other_gpu) == ("cannot_tell", "unlike")
    mixed = [*side(slower, tag="b"), *side(slower, tag="b", gpu="H100")]
    assert outcome("ttft_ms.p95 > +5%", side(STEADY), mixed) == ("cannot_tell", "mixed")


def test_many_conditions_have_wider_intervals() -> None:
    a, b = side(STEADY), side(scaled(1.0625), tag="b")
    found = compare_conditions([run.conditions for run in a], [run.conditions for run in b])
    condition = parse_condition("ttft_ms.p95 > +5%")
    few = hold_against([condition] * 2, a, b, found)[0].beyond
    many = hold_against([condition] * 3, a, b, found)[0].beyond
    assert few.low is not None and many.low is not None and many.low < few.low


def test_exit_codes() -> None:
    a = side(STEADY)
    found = compare_conditions([run.conditions for run in a], [run.conditions for run in side(STEADY, tag="b")])

    def code(*conditions: str) -> int:
        return exit_code(hold_against([parse_condition(it) for it in conditions], a, side(scaled(1.1), tag="b"), found))

    passing, holding, open_ = "ttft_ms.p95 > +20%", "ttft_ms.p95 > +5%", "ttft_ms.p95 > +9.9%"
    assert (code(), code(passing), code(holding), code(open_)) == (0, 0, 1, 3)
    assert code(passing, open_, holding) == 1
    assert code(passing, open_) == 3
