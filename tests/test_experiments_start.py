"""How a run begins: warmed up, and with the engine's loop ready for its first batch."""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cbtrace.recorder.experiments import AtOnce, Fixed, Poisson, SyntheticSpec, Workload, build_workload, run_workload
from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.models import generation_config, load_model
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.settings import automatic_share, engine_config
from cbtrace.recorder.experiments.warm_up import warm_up_engine, warm_up_settings
from cbtrace.traces import open_trace
from cbtrace.traces.schema import EventKind

SETTINGS = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64}


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(ModelSource("random:tiny"), Path())


def workload(arrivals: Any = None) -> Workload:
    arrivals = arrivals or AtOnce()
    spec = SyntheticSpec(requests=4, prompt_tokens=Fixed(tokens=20), new_tokens=Fixed(tokens=3), arrivals=arrivals)
    return build_workload(spec, seed=1, vocabulary=512)


def manager_of(model: Any, **changes: Any) -> Any:
    return model.init_continuous_batching(
        generation_config=generation_config(Generation(), model),
        continuous_batching_config=engine_config(SETTINGS | changes, "cpu"),
    )


def reset_with(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Have the engine do something more when its loop starts: there it clears its cache."""
    from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

    before = ContinuousBatchProcessor.reset

    def reset(self: Any) -> None:
        act()
        before(self)

    monkeypatch.setattr(ContinuousBatchProcessor, "reset", reset)


@pytest.mark.engine
@pytest.mark.parametrize("arrivals", [AtOnce(), Poisson(per_s=100)])
def test_starting_the_loop_is_no_time_in_the_queue(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrivals: Any
) -> None:
    reset_with(monkeypatch, lambda: time.sleep(1.5))
    manager = manager_of(model)
    assert run_workload(manager, workload(arrivals), tmp_path / "run.cbt").complete
    assert "prepare_next_batch" not in vars(manager.batch_processor), "nothing of ours is left on the engine"
    processor = weakref.ref(manager.batch_processor)
    manager.stop(block=True, timeout=30)
    assert processor() is None, "or its memory would stay taken"
    trace = open_trace(tmp_path / "run.cbt")
    [started] = trace.events.time_ns[trace.events.kind == EventKind.SESSION_START]
    assert trace.requests.submit_ns.min() - started > 1.5e9
    assert (trace.requests.visible_ns - trace.requests.submit_ns).max() < 1e9
    assert (trace.requests.planned_ns >= started + 1.5e9).all()


@pytest.mark.engine
def test_an_engine_that_dies_while_it_starts_is_told(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise RuntimeError("no loop")

    reset_with(monkeypatch, die)
    outcome = run_workload(manager_of(model), workload(), tmp_path / "run.cbt")
    assert not outcome.complete and str(outcome.fatal) == "no loop"
    assert outcome.unfinished == [f"r{number:05d}" for number in range(4)]


def test_a_warm_up_has_the_settings_of_the_run_and_a_cache_of_its_own() -> None:
    large = {"page_size": 16, "num_blocks": 10**8, "cpu_offload_space": 8.0, "use_cuda_graph": True}
    # Four requests of 23 tokens take two pages each; twice that, and sixteen at least.
    assert warm_up_settings(large, workload()) == {"page_size": 16, "num_blocks": 16, "use_cuda_graph": True}
    many = Workload("many", workload().requests * 5, True, {})
    assert warm_up_settings({}, many) == {"num_blocks": 40}
    assert warm_up_settings({"page_size": 8}, many) == {"page_size": 8, "num_blocks": 120}


@pytest.mark.parametrize(
    ("available_gib", "expected_mib"), [(7.9, 512), (1.01, 512), (0.99, 256), (0.3, 128), (0.001, 32)]
)
def test_what_is_free_just_now_does_not_change_the_memory_that_runs_get(
    monkeypatch: pytest.MonkeyPatch, available_gib: float, expected_mib: int
) -> None:
    memory = SimpleNamespace(total=8 << 30, available=int(available_gib * (1 << 30)))
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    assert automatic_share() * memory.total == expected_mib << 20


@pytest.mark.engine
def test_a_warm_up_passes_where_the_run_itself_has_no_room(model: Any) -> None:
    warm_up_engine(model, generation_config(Generation(), model), SETTINGS | {"num_blocks": 1}, workload())
