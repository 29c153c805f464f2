"""Predictions against what the real engine then did, on a CPU with a model small enough to be run in every setting."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cbtrace.recorder.sink import Sink
from cbtrace.recorder.whatif.dry_engine import build_dry_engine
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.fitting import fit
from cbtrace.recorder.whatif.predict import predict
from cbtrace.recorder.whatif.recording import Recording, check_alike, recording
from cbtrace.recorder.whatif.replay import DeadEndError, Replay
from cbtrace.recorder.whatif.settings import EngineSettings
from cbtrace.recorder.whatif.time_model import TimeModel
from cbtrace.site.analysis.summary import summarize
from cbtrace.traces import Trace, TraceExistsError, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import EventKind
from engines import Case, prompts, recorded, tiny_llama

pytestmark = pytest.mark.engine

WORK = prompts(40, 10, 40)
ROOMY, TIGHT, BETWEEN = 300, 14, 40


def case(num_blocks: int, **settings: Any) -> Case:
    return Case(WORK, settings={"num_blocks": num_blocks} | settings)


class ProcessClockSink(Sink):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clock, self.epoch_ns = time.process_time_ns, time.process_time_ns()


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def runs(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Recording]:
    """On the clock of this process: a busy machine can make a run several times as long on any other."""
    folder = tmp_path_factory.mktemp("runs")
    with patch("cbtrace.recorder.session.Sink", ProcessClockSink):
        traces = {
            blocks: recorded(case(blocks), llama, folder / f"{blocks}.cbt")[0] for blocks in (ROOMY, TIGHT, BETWEEN)
        }
    return {blocks: recording(trace) for blocks, trace in traces.items()}


@pytest.fixture(scope="module")
def model(runs: dict[int, Recording]) -> TimeModel:
    return fit([runs[ROOMY].measured, runs[BETWEEN].measured])


def soft_resets(trace: Trace) -> list[str]:
    rows = trace.events.kind == EventKind.SOFT_RESET
    return [trace.requests.id[request] for request in trace.events.request[rows]]


def test_the_schedule_of_another_setting_is_the_one_that_it_then_has(
    runs: dict[int, Recording], model: TimeModel, tmp_path: Path
) -> None:
    predict(runs[ROOMY], {"num_blocks": TIGHT}, model, tmp_path / "p.cbt")
    predicted, real = open_trace(tmp_path / "p.cbt"), runs[TIGHT].trace
    assert soft_resets(real) and soft_resets(predicted) == soft_resets(real)
    for column in ("members", "prefill_tokens", "decode_tokens", "recompute_tokens", "kv_free", "waiting", "stop"):
        assert np.array_equal(getattr(predicted.steps, column), getattr(real.steps, column)), column


def test_times_follow_the_setting(runs: dict[int, Recording], model: TimeModel, tmp_path: Path) -> None:
    """The machine may be busy, so the bounds are wide; what predicts the same for both settings is beyond them."""
    measured = {blocks: summarize(runs[blocks].trace).window_s for blocks in (ROOMY, TIGHT)}
    predicted = {}
    for blocks in measured:
        predict(runs[BETWEEN], {"num_blocks": blocks}, model, tmp_path / f"{blocks}.cbt")
        predicted[blocks] = summarize(open_trace(tmp_path / f"{blocks}.cbt")).window_s
    assert predicted[TIGHT] > 2 * predicted[ROOMY], predicted
    assert all(1 / 2 < predicted[blocks] / measured[blocks] < 2 for blocks in measured), (predicted, measured)


def test_a_predicted_trace_is_sound_and_says_what_it_is(
    runs: dict[int, Recording], model: TimeModel, tmp_path: Path
) -> None:
    predict(runs[ROOMY], {"num_blocks": TIGHT, "safety_margin": 0.0}, model, tmp_path / "p.cbt")
    trace, source = open_trace(tmp_path / "p.cbt"), runs[ROOMY].trace
    assert trace.recovery.status == "clean" and [f for f in check(trace) if f.severity > 0] == []
    header, engine = trace.header, trace.engines[0]
    assert header.predicted and header.run_id != source.header.run_id
    assert header.tags == {"predicted_from": source.header.run_id, "changes": "num_blocks=14, safety_margin=0.0"}
    assert "predicted for num_blocks=14" in header.name
    assert (engine.resolved["num_blocks"], engine.resolved["safety_margin"]) == (TIGHT, 0.0)
    kv = source.engines[0].kv
    assert engine.kv.capacity_tokens < kv.capacity_tokens and engine.kv.unit_bytes == kv.unit_bytes
    assert engine.predicted_memory["kv_cache"] < source.engines[0].predicted_memory["kv_cache"]
    assert sorted(trace.requests.id) == sorted(source.requests.id)
    assert trace.requests.generated.sum() == source.requests.generated.sum()
    with pytest.raises(ReplayError, match="is a prediction itself"):
        recording(trace)


def test_a_dead_end_is_foretold_and_nothing_is_left(
    runs: dict[int, Recording], model: TimeModel, tmp_path: Path
) -> None:
    with pytest.raises(ReplayError, match="num_blocks=3 the engine would come to a dead end") as refused:
        predict(runs[ROOMY], {"num_blocks": 3}, model, tmp_path / "p.cbt")
    assert refused.value.slug == "predicted-dead-end" and list(tmp_path.iterdir()) == []


def test_what_no_recording_shows_is_refused(runs: dict[int, Recording], model: TimeModel, tmp_path: Path) -> None:
    blind = replace(model, prices={part: prices for part, prices in model.prices.items() if part[0] != "update"})
    with pytest.raises(ReplayError, match="how long the update of a batch takes: add one") as refused:
        predict(runs[ROOMY], {}, blind, tmp_path / "p.cbt")
    assert refused.value.slug == "predicted-unseen" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_cuda_graph": True}, "name a recording with graphs first"),
        ({"scheduler_type": "lottery"}, "its schedulers are fifo, prefill_first"),
        ({"seed": 3}, "What can be changed: num_blocks"),
    ],
)
def test_a_setting_whose_effect_cannot_be_told_is_refused(
    changes: dict[str, Any], said: str, runs: dict[int, Recording], model: TimeModel, tmp_path: Path
) -> None:
    with pytest.raises(ReplayError, match=said) as refused:
        predict(runs[ROOMY], changes, model, tmp_path / "p.cbt")
    assert refused.value.slug == "whatif-setting" and list(tmp_path.iterdir()) == []


def test_counts_beyond_what_was_seen_are_told(runs: dict[int, Recording], tmp_path: Path) -> None:
    tight = fit([runs[TIGHT].measured])
    beyond = predict(runs[TIGHT], {"num_blocks": ROOMY}, tight, tmp_path / "p.cbt")
    members = next(found for found in beyond if (found.part, found.term) == ("schedule", "members"))
    assert members.most == runs[TIGHT].trace.steps.members.max()
    assert members.asked == open_trace(tmp_path / "p.cbt").steps.members.max() > members.most
    assert predict(runs[TIGHT], {}, tight, tmp_path / "own.cbt") == []


def test_an_engine_that_never_makes_a_batch_is_a_dead_end(runs: dict[int, Recording]) -> None:
    recorded_engine = runs[ROOMY].trace.engines[0]
    engine = build_dry_engine(recorded_engine.model, EngineSettings.of(recorded_engine))
    engine.processor.scheduler.schedule_batch = lambda *_: ([], False, 0, 0)
    replay = Replay(
        engine,
        runs[ROOMY].workload,
        arrives=lambda *_: True,
        is_cancelled=lambda *_: False,
        submit=lambda _: None,
        idle=lambda _: None,
    )
    with pytest.raises(DeadEndError, match="never makes a batch"):
        replay.run()


def test_nothing_is_replaced_without_being_asked(runs: dict[int, Recording], model: TimeModel, tmp_path: Path) -> None:
    out = tmp_path / "p.cbt"
    out.write_bytes(b"mine")
    with pytest.raises(TraceExistsError):
        predict(runs[ROOMY], {}, model, out)
    assert out.read_bytes() == b"mine"
    predict(runs[ROOMY], {}, model, out, overwrite=True)
    assert open_trace(out).header.predicted


def test_recordings_of_two_models_are_refused(runs: dict[int, Recording]) -> None:
    other = open_trace(runs[TIGHT].trace.path)
    other.engines[0].model["hidden_size"] = 128
    with pytest.raises(ReplayError, match=r"differ in model\.hidden_size") as refused:
        check_alike([runs[ROOMY], Recording(other, [], runs[TIGHT].measured)])
    assert refused.value.slug == "whatif-unlike-runs"
