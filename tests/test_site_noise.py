"""The verdict on a difference: false alarms, power, symmetry, and the words at the edges."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.noise import (
    BAND_LIMIT,
    HEADLINE_LEVEL,
    LEAST_RUNS,
    LEVEL,
    Judgement,
    judge,
)
from cbtrace.site.analysis.run_values import HEADLINE_KEYS
from cbtrace.site.analysis.student import student_quantile, student_table
from cbtrace.templates import student_table as maker
from noises import Floats, heavy_tailed, log_normal, normal, outliers, two_modes, wandering, warming

Noise = Callable[[np.random.Generator, int, int], Floats]
SIMULATIONS = 4000
"""Pairs of sides for each kind of noise and number of runs."""


# Student's quantiles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "df", "expected"),
    [
        (0.05, 1, 12.7062),
        (0.05, 4, 2.7764),
        (0.05, 8, 2.3060),
        (0.05, 30, 2.0423),
        (0.01, 4, 4.6041),
        (0.01, 18, 2.8784),
    ],
)
def test_quantiles_are_those_of_printed_tables(level: float, df: float, expected: float) -> None:
    assert student_quantile(level, df) == pytest.approx(expected, rel=1e-4)


@settings(deadline=None)
@given(st.sampled_from((LEVEL, HEADLINE_LEVEL)), st.floats(1, 2000))
def test_quantiles_between_the_nodes_are_close(level: float, df: float) -> None:
    assert student_quantile(level, df) == pytest.approx(maker.quantile(level, df), rel=1e-4)


def test_the_table_is_the_one_that_its_maker_writes() -> None:
    stored = json.loads((files("cbtrace.templates") / "student.json").read_text())
    assert stored == student_table()
    for level, nodes in maker.table().items():
        assert stored[level] == pytest.approx(nodes, abs=2e-7)


# False alarms --------------------------------------------------------------------------------------------------------


INDEPENDENT = (normal, log_normal, heavy_tailed, outliers)
DRIFTING = (warming, wandering)


def sides(noise: Noise, source: np.random.Generator, many: int, a: int, b: int) -> tuple[Floats, Floats]:
    """Runs of one setting, dealt to two sides in turn (as an experiment interleaves them) as long as both have some."""
    runs = noise(source, many, a + b)
    of_b = np.array([i % 2 == 1 if i < 2 * min(a, b) else b > a for i in range(a + b)])
    return runs[:, ~of_b], runs[:, of_b]


def alarms(noise: Noise, a: int, b: int, level: float = LEVEL, seed: int = 0) -> float:
    """Share of simulations in which runs of one setting are called better or worse."""
    pairs = zip(*sides(noise, np.random.default_rng(seed), SIMULATIONS, a, b), strict=True)
    return sum(judge(x.tolist(), y.tolist(), "lower", level).why == "beyond_noise" for x, y in pairs) / SIMULATIONS


def allowed(level: float) -> float:
    """The rate, and three and a half standard errors of a simulation."""
    return level + 3.5 * math.sqrt(level * (1 - level) / SIMULATIONS)


@pytest.mark.parametrize("noise", [*INDEPENDENT, *DRIFTING])
def test_runs_of_one_setting_give_false_alarms_in_at_most_one_of_twenty(noise: Noise) -> None:
    rates = {runs: alarms(noise, runs, runs, seed=runs) for runs in range(2, 11)}
    assert max(rates.values()) <= allowed(LEVEL), rates
    assert sum(rates.values()) / len(rates) <= LEVEL, rates


@pytest.mark.parametrize("noise", [*INDEPENDENT, two_modes])
@pytest.mark.parametrize(("a", "b"), [(2, 4), (2, 10), (10, 2), (3, 10), (5, 8)])
def test_sides_of_unequal_size_give_no_more(noise: Noise, a: int, b: int) -> None:
    assert alarms(noise, a, b, seed=a + b) <= allowed(LEVEL)


@pytest.mark.parametrize("runs", [2, 3, 4, 5])
def test_two_modes_do_not_pass_for_two_settings(runs: int) -> None:
    assert alarms(two_modes, runs, runs) <= allowed(LEVEL)


def test_the_headline_keeps_the_rate_over_all_of_its_numbers() -> None:
    assert HEADLINE_LEVEL * len(HEADLINE_KEYS) <= LEVEL
    for runs in (3, 5, 10):
        each = alarms(normal, runs, runs, HEADLINE_LEVEL, seed=runs)
        assert each <= allowed(HEADLINE_LEVEL)


def test_a_side_with_more_noise_than_the_other_gives_no_more() -> None:
    source = np.random.default_rng(3)
    a = 1 + 0.01 * source.standard_normal((SIMULATIONS, 5))
    b = 1 + 0.05 * source.standard_normal((SIMULATIONS, 5))
    found = sum(judge(x.tolist(), y.tolist()).why == "beyond_noise" for x, y in zip(a, b, strict=True))
    assert found / SIMULATIONS <= allowed(0.06)  # Welch's approximation, at five runs each


def test_a_true_change_of_five_per_cent_is_found() -> None:
    """The power that the documentation promises for five runs a side."""
    source = np.random.default_rng(4)
    for noise, least in ((0.005, 0.99), (0.01, 0.99), (0.02, 0.85), (0.03, 0.50)):
        a = 1 + noise * source.standard_normal((1000, 5))
        b = 1.05 * (1 + noise * source.standard_normal((1000, 5)))
        words = [judge(x.tolist(), y.tolist()).word for x, y in zip(a, b, strict=True)]
        assert words.count("worse") / 1000 >= least, noise
        assert words.count("better") <= 1
        assert words.count("within_noise") / 1000 <= LEVEL / 2 + 0.015, noise


# The words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [([1.0], [2.0]), ([1.0], [2.0, 2.1, 2.0, 2.1, 2.0]), ([1.0] * 9, [1.0])])
def test_one_run_on_a_side_never_tells(a: list[float], b: list[float]) -> None:
    found = judge(a, b)
    assert (found.word, found.why, found.low, found.high, found.band) == ("cannot_tell", "one_run", None, None, None)
    assert found.difference == pytest.approx(b[0] - a[0], abs=0.1)


def test_fewer_than_six_runs_never_tell() -> None:
    assert LEAST_RUNS == 6 and 2 * 0.5**LEAST_RUNS <= LEVEL < 2 * 0.5 ** (LEAST_RUNS - 1)
    found = judge([1.0, 1.001], [2.0, 2.001, 1.999])
    assert (found.word, found.why) == ("cannot_tell", "few_runs")
    assert found.low is not None and found.low > 0
    assert judge([1.0, 1.001, 0.999], [2.0, 2.001, 1.999]).word == "worse"


def test_direction_decides_between_better_and_worse() -> None:
    a, b = [10.0, 10.1, 9.9], [12.0, 12.1, 11.9]
    assert [judge(a, b, better).word for better in ("lower", "higher", "neither")] == ["worse", "better", "changed"]


def test_small_and_certain_is_within_noise_and_small_and_vague_is_not() -> None:
    quiet = judge([100.0, 100.5, 99.5, 100.2, 99.8], [100.1, 100.4, 99.6, 100.3, 99.8])
    assert (quiet.word, quiet.why) == ("within_noise", "inside_band")
    loud = judge([100.0, 120.0, 80.0, 110.0, 90.0], [100.1, 119.0, 82.0, 111.0, 90.0])
    assert (loud.word, loud.why) == ("cannot_tell", "wide_interval")
    assert loud.band is not None and loud.mean_a is not None
    assert loud.band == pytest.approx(BAND_LIMIT * loud.mean_a)


def test_values_that_do_not_waver() -> None:
    assert judge([48.0] * 3, [48.0] * 3).why == "equal"
    found = judge([48.0] * 3, [20.0] * 3)
    assert (found.word, found.low, found.high) == ("better", -28.0, -28.0)
    assert judge([0.1] * 3, [0.1] * 7).difference == 0


def test_unknown_values_are_left_out_and_counted() -> None:
    found = judge([None, 1.0, 1.1, 0.9], [2.0, None, 2.1, 1.9, math.nan])
    assert (found.runs_a, found.runs_b, found.word) == (3, 3, "worse")
    nothing = judge([None, None], [1.0, 2.0, 3.0])
    assert (nothing.word, nothing.why, nothing.runs_a, nothing.difference) == ("cannot_tell", "unknown", 0, None)


values = st.lists(st.floats(-1e9, 1e9) | st.integers(-5, 5).map(float), min_size=0, max_size=8)


@settings(deadline=None)
@given(values, values, st.sampled_from(("lower", "higher", "neither")), st.sampled_from((LEVEL, HEADLINE_LEVEL)))
def test_exchanging_the_sides_turns_the_sign_and_nothing_else(
    a: list[float], b: list[float], better: str, level: float
) -> None:
    one, other = judge(a, b, better, level), judge(b, a, better, level)  # type: ignore[arg-type]
    turned = {"better": "worse", "worse": "better"}
    assert other.word == turned.get(one.word, one.word) and other.why == one.why
    assert (other.mean_a, other.mean_b, other.band) == (one.mean_b, one.mean_a, one.band)
    if one.difference is not None:
        assert other.difference == -one.difference
    if one.low is not None and one.high is not None:
        assert (other.low, other.high) == (-one.high, -one.low)
        assert one.low <= one.difference <= one.high  # type: ignore[operator]
        if one.why == "beyond_noise":
            assert one.low > 0 or one.high < 0


def test_a_change_is_a_share_of_the_baseline() -> None:
    found = judge([10.0], [11.0])
    assert found.change == pytest.approx(0.1)
    assert judge([0.0], [11.0]).change is None
    assert judge([-10.0], [-11.0]).change == pytest.approx(-0.1)


def test_repeats_of_one_setting_differ_by_noise() -> None:
    found = judge([10.0, 10.1, 9.9], [12.0, 12.1, 11.9]).as_same_settings()
    assert (found.word, found.why) == ("within_noise", "same_settings")
    assert judge([1.0], [2.0]).as_same_settings().why == "same_settings"
    assert judge([None], [2.0]).as_same_settings().word == "cannot_tell"
    assert isinstance(found, Judgement)
