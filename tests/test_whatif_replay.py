"""A recording replayed with its own settings gives the schedule that was recorded, step by step."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpu_streams
from cbtrace.recorder import attach, record
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.self_check import self_check
from cbtrace.traces import open_trace
from cbtrace.traces.schema import EndReason, EventKind, StepFlag
from engine_versions import SCENARIOS
from engines import VERSION, Case, drain, prompts, recorded, tiny_gemma2, tiny_llama
from test_recorder_scenarios import SOFT_RESETS

pytestmark = pytest.mark.engine

SAMPLES = sorted(Path(str(files("cbtrace.traces") / "samples")).glob("*.cbt"))

NOT_TO_BE_REPLAYED = ("h200-shared-prefixes",)
"""Four prefixes, and requests that computed one each for itself do not show which."""


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.cbt"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_every_scenario_is_replayed_exactly(scenario: Any, llama: Any, path: Path) -> None:
    trace, _ = recorded(scenario.case, llama if scenario.model == "llama" else tiny_gemma2(), path)
    self_check(trace)


@pytest.mark.parametrize("sample", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_every_sample_of_this_version_is_replayed_exactly(sample: Path) -> None:
    trace = open_trace(sample)
    version = trace.header.fingerprint["software.transformers"]
    if trace.engines[0].adapter == "static":
        with pytest.raises(ReplayError, match="static batching"):
            self_check(trace)
    elif trace.header.world_size > 1:
        with pytest.raises(ReplayError, match="several engines, sessions or ranks"):
            self_check(trace)
    elif sample.stem in NOT_TO_BE_REPLAYED and version == VERSION:
        with pytest.raises(ReplayError, match="which share which cannot be told") as refused:
            self_check(trace)
        assert refused.value.slug == "replay-prefix"
    elif version != VERSION:
        with pytest.raises(ReplayError, match=f"transformers=={version}") as refused:
            self_check(trace)
        assert refused.value.slug == "replay-other-version"
    else:
        self_check(trace)


@pytest.mark.parametrize("end_token", [False, True], ids=["limit", "end token"])
def test_async_engines_are_replayed_in_their_order(
    end_token: bool, llama: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_streams.install(monkeypatch)
    case = Case(SOFT_RESETS.inputs, settings=SOFT_RESETS.settings | {"use_async_batching": True})
    if end_token:
        case.generation["eos_token_id"] = next(iter(case.run_at_once(llama).values()))[9]
    trace, _ = recorded(case, llama, path)
    assert np.all(trace.steps.flags & StepFlag.ASYNC)
    assert (trace.requests.end_reason == EndReason.EOS).any() == end_token
    self_check(trace)


def test_end_tokens_come_where_they_came(llama: Any, path: Path) -> None:
    tokens = Case(prompts(6, 10, 40), new_tokens=20).run_at_once(llama)
    end = next(iter(tokens.values()))[9]
    trace, _ = recorded(Case(prompts(6, 10, 40), new_tokens=20, generation={"eos_token_id": end}), llama, path)
    assert (trace.requests.end_reason == EndReason.EOS).any()
    self_check(trace)


def test_forks_are_replayed(llama: Any, path: Path) -> None:
    case = Case(prompts(2, 20, 30), new_tokens=6, generation={"num_return_sequences": 3, "do_sample": True})
    with record(path), case.manager(llama) as manager:
        manager.add_requests(case.inputs, max_new_tokens=6)
        drain(manager, 6)
    trace = open_trace(path)
    assert (trace.events.kind == EventKind.FORK).sum() == 4
    self_check(trace)


def test_cancellations_and_later_arrivals_are_replayed(llama: Any, path: Path) -> None:
    case = Case(prompts(4, 20, 30), new_tokens=200)
    with record(path), case.manager(llama) as manager:
        victim, other = manager.add_requests(case.inputs[:2], max_new_tokens=200, streaming=True)
        for output in manager:
            if output.request_id == victim and len(output.generated_tokens) >= 3:
                manager.cancel_request(victim)
                manager.add_requests(case.inputs[2:], max_new_tokens=10)
                break
        while not any(o.request_id == other and o.is_finished() for o in manager):
            pass
    trace = open_trace(path)
    assert trace.requests.end_reason.tolist().count(EndReason.CANCELLED) == 1
    self_check(trace)


def test_a_dead_end_is_met_again(llama: Any, path: Path) -> None:
    case = Case(prompts(1, 20, 21), new_tokens=8, settings={"num_blocks": 4})
    with record(path), case.manager(llama) as manager:
        manager.add_request(case.inputs[0], request_id="fits")
        drain(manager, 1)
        manager.add_request([1] * 200, request_id="too-long")
        while manager.is_running():
            manager.get_result(timeout=0.2)
    trace = open_trace(path)
    assert (trace.events.kind == EventKind.FATAL_ERROR).any()
    self_check(trace)


def test_a_step_that_differs_is_named(llama: Any, path: Path) -> None:
    trace, _ = recorded(SOFT_RESETS, llama, path)
    trace.steps.kv_free[17] += 1
    with pytest.raises(ReplayError, match="step 17: kv_free") as refused:
        self_check(trace)
    assert refused.value.slug == "replay-differs"


def test_a_recording_that_was_cut_short_is_refused(llama: Any, path: Path, tmp_path: Path) -> None:
    recorded(SOFT_RESETS, llama, path)
    cut = tmp_path / "cut.cbt"
    cut.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ReplayError, match="not whole") as refused:
        self_check(open_trace(cut))
    assert refused.value.slug == "replay-incomplete"


def test_requests_older_than_the_recording_are_refused(llama: Any, path: Path) -> None:
    case = Case(prompts(2, 10, 20), new_tokens=150)
    with case.manager(llama) as manager:
        manager.add_requests(case.inputs, max_new_tokens=150)
        time.sleep(0.05)
        with attach(manager, path):
            drain(manager, 2)
    with pytest.raises(ReplayError, match="older than the recording"):
        self_check(open_trace(path))
