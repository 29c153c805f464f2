"""Fits a model of time to recorded runs: prices of the parts, and how slow the host was in each run.

What disturbs a step makes it longer and never shorter, so prices are of a low quantile of the steps, by their relative
error: it tells apart what counts that grow together cost, where a mean is led by the disturbances. The prices are then
raised to the mean, so that sums over a run come out right. A host that is slow for a whole run is told from work that
costs more by this: it slows all parts by one factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cbtrace.recorder.whatif.shapes import Measured
from cbtrace.recorder.whatif.time_model import (
    BY_GRAPH,
    TERMS,
    Floats,
    PartKey,
    Prices,
    TimeModel,
    is_of_host,
    table,
)

_QUANTILE = 0.25
_ROUNDS = 2
"""Prices are found once, and again without the slowness that this shows. More rounds would take what a setting costs
for the slowness of its run where runs are few and each of another setting."""
_ITERATIONS = 40
_NEAR = 0.02
"""Relative errors below this weigh alike: a quantile has no slope at its own value."""
_LEVELS = 128
"""Quantiles of each run."""
_SHORTEST_NS = 1000.0
"""Shorter times are noise of the clock."""


@dataclass(frozen=True)
class _Rows:
    """The steps of one run that show a part: ``terms`` (rows, terms) and ``values`` (rows,), nanoseconds."""

    run: int
    terms: Floats
    values: Floats


_Parts = dict[PartKey, list[_Rows]]


def fit(runs: Sequence[Measured]) -> TimeModel:
    """Fit the model over the steps of these runs (one machine, one model), each run weighing the same."""
    has_device_times = all(run.has_device_times for run in runs)
    parts = _parts(runs)
    host = [key for key in parts if is_of_host(key[0], has_device_times)]
    slowness = np.ones(len(runs))
    found: dict[PartKey, Floats] = {}
    for _ in range(_ROUNDS):
        found = {key: _prices(rows, slowness if key in host else np.ones(len(runs))) for key, rows in parts.items()}
        slowness = _slowness(parts, found, host, len(runs))
    for key in found:
        found[key] *= _to_the_mean(parts[key], found[key], slowness if key in host else np.ones(len(runs)))
    longer = [_longer(run, found, slowness[number], has_device_times) for number, run in enumerate(runs)]
    return TimeModel(
        {key: _named(key[0], found[key], rows) for key, rows in parts.items()},
        float(np.median([run.between_ns for run in runs])),
        has_device_times,
        seen=tuple(slowness.tolist()),
        step_spread=_spread([steps for steps, _ in longer]),
        capture_spread=_spread([captures for _, captures in longer]),
    )


def _parts(runs: Sequence[Measured]) -> _Parts:
    parts: _Parts = {}
    for part in TERMS:
        for number, run in enumerate(runs):
            known, values, terms = np.isfinite(run.parts[part]), run.parts[part], table(run.shapes, part)
            by_graph = np.array([part in BY_GRAPH and shape.uses_graph for shape in run.shapes], dtype=bool)
            for uses_graph in (False, True):
                rows = known & (by_graph == uses_graph)
                if rows.any():
                    shown = _Rows(number, terms[rows], np.maximum(values[rows], _SHORTEST_NS))
                    parts.setdefault((part, uses_graph), []).append(shown)
    return parts


def _prices(shown: list[_Rows], slowness: Floats) -> Floats:
    terms = np.concatenate([rows.terms for rows in shown])
    values = np.concatenate([rows.values / slowness[rows.run] for rows in shown])
    weights = np.concatenate([np.full(rows.values.size, 1 / rows.values.size) for rows in shown])
    return non_negative_quantile(terms, values, weights)


def _slowness(parts: _Parts, prices: dict[PartKey, Floats], host: list[PartKey], runs: int) -> Floats:
    """By run: the time of its host by what the prices say; 1 on the (geometric) mean."""
    took, expected = np.zeros(runs), np.zeros(runs)
    for key in host:
        for rows in parts[key]:
            took[rows.run] += rows.values.sum()
            expected[rows.run] += (rows.terms @ prices[key]).sum()
    found = np.where(expected > 0, took / np.maximum(expected, 1), 1.0)
    return np.asarray(found / np.exp(np.log(found).mean()))


def _to_the_mean(shown: list[_Rows], prices: Floats, slowness: Floats) -> float:
    """The factor by which the mean of a part is above its quantile."""
    ratios = [rows.values.sum() / (slowness[rows.run] * max((rows.terms @ prices).sum(), 1)) for rows in shown]
    return float(np.mean(ratios))


def _longer(
    run: Measured, prices: dict[PartKey, Floats], slowness: float, has_device_times: bool
) -> tuple[Floats, Floats]:
    """How much longer than priced the host's work took, in each step and each capture, as a factor."""
    took, expected = np.zeros((2, len(run.shapes))), np.zeros((2, len(run.shapes)))
    for part in TERMS:
        if is_of_host(part, has_device_times):
            known, row = np.isfinite(run.parts[part]), int(part == "capture")
            took[row][known] += run.parts[part][known]
            expected[row][known] += _expected(run, part, prices)[known]
    steps, captures = (took[row][expected[row] > 0] / expected[row][expected[row] > 0] / slowness for row in (0, 1))
    return steps, captures


def _expected(run: Measured, part: str, prices: dict[PartKey, Floats]) -> Floats:
    terms = table(run.shapes, part)
    by_graph = np.array([part in BY_GRAPH and shape.uses_graph for shape in run.shapes], dtype=bool)
    none = np.zeros(terms.shape[1])
    return np.where(by_graph, terms @ prices.get((part, True), none), terms @ prices.get((part, False), none))


def _spread(runs: list[Floats]) -> tuple[float, ...]:
    """Quantiles of all runs together, each run weighing the same; scaled to a mean of 1."""
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    shown = [np.quantile(run, levels) for run in runs if run.size]
    if not shown:
        return (1.0,)
    together = np.sort(np.concatenate(shown))
    return tuple((together / together.mean()).tolist())


def _named(part: str, prices: Floats, shown: list[_Rows]) -> Prices:
    most = np.max([rows.terms.max(axis=0) for rows in shown], axis=0)
    return Prices(
        dict(zip(TERMS[part], prices.tolist(), strict=True)), dict(zip(TERMS[part], most.tolist(), strict=True))
    )


def non_negative_quantile(terms: Floats, values: Floats, weights: Floats) -> Floats:
    """Prices, none below 0, of which a quarter of the ``values`` (rows,) lie below ``terms @ prices``, by relative
    error. ``terms`` is (rows, terms); returns (terms,). Quantile regression by iteratively reweighted least squares."""
    found = _non_negative_least_squares(terms, values, weights / values**2)
    for _ in range(_ITERATIONS):
        expected = np.maximum(terms @ found, _SHORTEST_NS)
        error = values / expected - 1
        pull = np.where(error > 0, _QUANTILE, 1 - _QUANTILE) / np.maximum(np.abs(error), _NEAR)
        found = _non_negative_least_squares(terms, values, weights * pull / expected**2)
    return found


def _non_negative_least_squares(terms: Floats, values: Floats, weights: Floats) -> Floats:
    """Least squares with no coefficient below 0: with so few terms, the best of all sets of terms is tried for."""
    # Counts differ by many orders of magnitude: the fit is of columns of like size.
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-300)
    scaled = terms / scale
    square, product = scaled.T @ (scaled * weights[:, None]), scaled.T @ (values * weights)
    found, *_ = np.linalg.lstsq(square, product, rcond=1e-10)
    if (found >= 0).all():
        return np.asarray(found / scale)
    best, prices = 0.0, np.zeros(len(scale))
    for size in range(1, len(scale) + 1):
        for kept in map(list, itertools.combinations(range(len(scale)), size)):
            found, *_ = np.linalg.lstsq(square[np.ix_(kept, kept)], product[kept], rcond=1e-10)
            # What the sum of squares is lower by than without any term.
            gain = float(found @ product[kept])
            if (found >= 0).all() and gain > best * (1 + 1e-9):
                best, prices = gain, np.zeros(len(scale))
                prices[kept] = found
    return np.asarray(prices / scale, dtype=np.float64)
