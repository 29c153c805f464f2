"""The model of time: prices, how slow a host was, and what a step takes beyond its price."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.fitting import fit
from cbtrace.recorder.whatif.pace import Shape
from cbtrace.recorder.whatif.shapes import Floats, Measured, measure
from cbtrace.recorder.whatif.time_model import TERMS, ModelPace, TimeModel, count
from cbtrace.traces import open_trace
from cbtrace.traces.schema import EventKind, StepFlag

PRICES = {
    "schedule": (30e3, 2e3, 500.0),
    "copy": (800e3, 40.0),
    "prepare": (150e3, 10e3, 500.0, 80.0, 90.0),
    "launch": (300e3, 1e3, 900e3),
    "capture": (40e6, 2e3),
    "device": (2.7e6, 4e3, 30.0, 0.0, 300e3),
    "update": (15e3, 1e3),
}
STEPS = 400


def shape(source: np.random.Generator, budget: int) -> Shape:
    members, padded = int(source.integers(1, 100)), 64 * int(source.integers(1, 60))
    return Shape(
        members=members,
        waiting=int(source.integers(0, 50)),
        queries=padded - int(source.integers(0, 60)),
        new_tokens=members,
        kv_read=(kv := int(source.integers(0, 60_000))),
        indexed_kv=kv,
        padded_queries=padded,
        padded_kv=16384 * (1 + kv // 16384),
        max_batch_tokens=budget,
        uses_graph=True,
        captured=bool(source.random() < 0.1),
        first_replay=bool(source.random() < 0.1),
        copied_tokens=int(source.integers(0, 2000)) if source.random() < 0.1 else 0,
    )


def made_up(seed: int, slowness: float, budget: int = 8192) -> Measured:
    """A run whose steps cost :data:`PRICES`, on a host that is slow, and now and then disturbed; never the device."""
    source = np.random.default_rng(seed)
    shapes = [shape(source, budget) for _ in range(STEPS)]
    longer = slowness * np.where(source.random(STEPS) < 0.4, 1 + source.exponential(0.4, STEPS), 1)
    parts: dict[str, Floats] = {}
    for part, prices in PRICES.items():
        costs = np.array([sum(p * count(s, t) for p, t in zip(prices, TERMS[part], strict=True)) for s in shapes])
        parts[part] = costs if part == "device" else costs * longer
    captured = np.array([s.captured for s in shapes])
    for part, shown in (("capture", captured), ("launch", ~captured), ("device", ~captured)):
        parts[part] = np.where(shown, parts[part], np.nan)
    parts["copy"] = np.where([s.copied_tokens > 0 for s in shapes], parts["copy"], np.nan)
    return Measured(shapes, parts, 4000.0, has_device_times=True)


def pace_of(model: TimeModel, slowness: float = 1.0) -> ModelPace:
    return ModelPace(model, lambda: slowness)


def of_quiet_host(part: str, of: Shape) -> float:
    return sum(price * count(of, term) for price, term in zip(PRICES[part], TERMS[part], strict=True))


def test_prices_are_found_behind_disturbances_and_a_slow_host() -> None:
    model = fit([made_up(1, 0.9), made_up(2, 1.0, 2048), made_up(3, 1.6, 2048)])
    assert np.allclose(np.array(model.seen) / model.seen[1], (0.9, 1.0, 1.6), rtol=0.05)
    quiet, busy = (
        Shape(3, 0, 3, 3, 3000, 3000, 64, 16384, 8192, True),
        Shape(90, 40, 3000, 90, 50_000, 50_000, 3008, 65536, 8192, True),
    )
    for part in ("schedule", "prepare", "launch", "update"):
        mean = np.array([model.priced(part, one)[0] / of_quiet_host(part, one) for one in (quiet, busy)])
        # Raised to the mean of disturbed steps on a usual host, by the same factor whatever a step holds.
        assert mean[0] == pytest.approx(mean[1], rel=0.15), part
        assert 1.1 < mean.mean() < 1.6, part
    for one in (quiet, busy):
        assert model.priced("device", one)[0] == pytest.approx(of_quiet_host("device", one), rel=0.01)


def test_sums_over_the_fitted_runs_come_out_right() -> None:
    runs = [made_up(1, 0.9), made_up(2, 1.4)]
    model = fit(runs)
    for run, slowness in zip(runs, model.seen, strict=True):
        for part, took in run.parts.items():
            known = np.flatnonzero(np.isfinite(took))
            factor = 1 if part == "device" else slowness
            told = factor * sum(model.priced(part, run.shapes[row])[0] for row in known)
            assert told == pytest.approx(took[known].sum(), rel=0.08), part


def test_a_pace_deals_the_spread_out_evenly_and_the_same_again() -> None:
    model = fit([made_up(1, 1.0)])
    assert np.mean(model.step_spread) == pytest.approx(1)
    assert model.step_spread[-1] > 1.5 * model.step_spread[0]
    assert all(one <= other for one, other in pairwise(model.step_spread))
    of = made_up(1, 1.0).shapes[0]
    pace, again = pace_of(model), pace_of(model)
    told = [pace.schedule(of) for _ in range(50)]
    assert told == [again.schedule(of) for _ in range(50)]
    assert np.mean(told) == pytest.approx(model.priced("schedule", of)[0], rel=0.03)


def test_a_slow_host_slows_all_but_the_device() -> None:
    model = replace(fit([made_up(1, 1.0)]), step_spread=(1.0,), capture_spread=(1.0,))
    of = replace(made_up(1, 1.0).shapes[0], captured=False)
    usual, slow = pace_of(model), pace_of(model, 2.0)
    for part in ("schedule", "prepare", "launch", "capture", "update"):
        assert getattr(slow, part)(of) == pytest.approx(2 * getattr(usual, part)(of), abs=2), part
    assert slow.copy(100) == pytest.approx(2 * usual.copy(100), abs=2)
    assert slow.device(of) == usual.device(of)
    blind = replace(model, has_device_times=False)
    assert pace_of(blind, 2.0).device(of) == pytest.approx(2 * usual.device(of), abs=2)


def test_copies_that_no_recording_shows_are_told_and_cost_nothing() -> None:
    run = made_up(1, 1.0)
    none = [replace(one, copied_tokens=0) for one in run.shapes]
    model = fit([replace(run, shapes=none, parts=run.parts | {"copy": np.full(STEPS, np.nan)})])
    pace = pace_of(model)
    assert pace.copy(700) == 0
    assert [str(found) for found in pace.beyond.values()] == [
        "700 tokens of offloaded KV (none in the recordings, so that they are taken to cost nothing)"
    ]


def test_a_part_that_no_recording_shows_is_refused() -> None:
    model = fit([made_up(1, 1.0)])
    with pytest.raises(ReplayError, match="the launch of a batch takes without CUDA graphs") as refused:
        pace_of(model).launch(replace(made_up(1, 1.0).shapes[0], uses_graph=False))
    assert refused.value.slug == "predicted-unseen"


def test_a_recording_shows_new_graphs_and_copies_of_its_offloads() -> None:
    trace = open_trace(Path(str(files("cbtrace.traces") / "samples")) / "h200-cpu-offload.cbt")
    shown = measure(trace)
    flags = trace.steps.flags
    captured = int(((flags & StepFlag.GRAPH_CAPTURED) > 0).sum())
    first = [row for row, one in enumerate(shown.shapes) if one.first_replay]
    assert 0 < len(first) <= captured
    assert all(flags[row] & StepFlag.GRAPH_HIT for row in first)
    moved = (trace.events.kind == EventKind.OFFLOAD) | (trace.events.kind == EventKind.RESTORE)
    assert sum(one.copied_tokens for one in shown.shapes) == trace.events.tokens[moved].sum() > 0
    whole = trace.steps.prepared_ns - trace.steps.start_ns
    parts = shown.parts["schedule"] + shown.parts["prepare"] + np.nan_to_num(shown.parts["copy"])
    assert np.array_equal(parts, whole)
    assert (shown.parts["schedule"] >= 0).all() and (shown.parts["prepare"] >= 0).all()
