"""The ways in which programs use an engine, under recording: each must do exactly what it does without."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import queue
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
import torch
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

from cbtrace.recorder import record
from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import EndReason, EventKind
from engines import Case, drain, prompts, tiny_llama

pytestmark = pytest.mark.engine

CASE = Case(prompts(5, 10, 40), new_tokens=12)


@pytest.fixture
def llama() -> Any:
    return tiny_llama()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.cbt"


def sound(path: Path) -> Trace:
    """Open a trace that is whole and agrees with itself."""
    trace = open_trace(path)
    assert trace.recovery.status == "clean" and trace.footer is not None and trace.footer.reason == "closed"
    assert [str(finding) for finding in check(trace) if finding.severity > 0] == []
    return trace


def kinds(trace: Trace) -> list[EventKind]:
    return [EventKind(kind) for kind in trace.events.kind.tolist()]


def generated(trace: Trace) -> int:
    return len(trace.tokens.request)


# Training loops ------------------------------------------------------------------------------------------------------


def train(model: Any, calls: int) -> list[dict[str, list[int]]]:
    """Generate with one persistent manager and change the weights between the calls."""
    results = []
    for call in range(calls):
        results.append(CASE.run(model, persistent_manager=True))
        generator = torch.Generator().manual_seed(call)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    model.destroy_cached_continuous_batching_manager()
    return results


def test_weights_that_change_between_calls_of_a_persistent_manager(path: Path) -> None:
    alone = train(tiny_llama(), 6)
    with record(path) as recording:
        results = train(tiny_llama(), 6)
    assert results == alone
    assert len({str(list(result.values())) for result in alone}) == 6, "the weights must matter"
    assert recording.paths == [path]
    trace = sound(path)
    assert len(trace.engines) == 1
    assert kinds(trace).count(EventKind.SESSION_START) == kinds(trace).count(EventKind.SESSION_STOP) == 6
    assert len(set(trace.requests.id)) == 30
    assert trace.requests.generated.tolist() == [12] * 30
    assert np.all(trace.requests.end_reason == EndReason.LENGTH)


def test_a_model_that_changes_its_type_between_calls(llama: Any, path: Path) -> None:
    def calls(model: Any) -> list[dict[str, list[int]]]:
        return [CASE.run(model.to(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float32)]

    alone = calls(llama)
    with record(path) as recording:
        results = calls(llama)
    assert results == alone
    traces = [sound(each) for each in recording.paths]
    assert [trace.engines[0].model["dtype"] for trace in traces] == ["float32", "bfloat16", "float32"]
    bytes_of = [trace.engines[0].kv.capacity_units * trace.engines[0].kv.unit_bytes for trace in traces]
    assert bytes_of[0] == 2 * bytes_of[1] == bytes_of[2]
    assert [generated(trace) for trace in traces] == [60] * 3


def test_a_recording_does_not_keep_an_engine_in_memory(llama: Any, path: Path, monkeypatch: Any) -> None:
    """The KV cache may take most of the memory: training needs it back."""
    caches: list[weakref.ref[Any]] = []
    init = ContinuousBatchProcessor.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        caches.append(weakref.ref(self.cache))

    monkeypatch.setattr(ContinuousBatchProcessor, "__init__", noted)

    def alive() -> int:
        gc.collect()
        return sum(cache() is not None for cache in caches)

    with record(path):
        CASE.run(llama)
        assert (len(caches), alive()) == (1, 0)
        CASE.run(llama, persistent_manager=True)
        assert (len(caches), alive()) == (2, 1)
        llama.destroy_cached_continuous_batching_manager()
        assert alive() == 0
        with CASE.manager(llama) as manager:
            drain(manager, len(manager.add_requests(CASE.inputs, max_new_tokens=2)))
            assert (len(caches), alive()) == (3, 1)
        assert alive() == 0, "the manager is there, and may be started again, but its engine is gone"


def test_the_engine_is_released_before_its_manager_empties_the_device_cache(
    llama: Any, path: Path, monkeypatch: Any
) -> None:
    left: list[Any] = []
    collect = gc.collect
    with record(path):
        manager = llama.init_continuous_batching(CASE.generation_config(), CASE.config())
        manager.start()
        drain(manager, len(manager.add_requests(CASE.inputs, max_new_tokens=2)))
        cache = weakref.ref(manager.batch_processor.cache)
        # A stop collects garbage and then empties the device's cache, which gives back what is free by then.
        monkeypatch.setattr(gc, "collect", lambda: (collect(), left.append(cache())))
        manager.stop()
    assert left and left == [None] * len(left)


def test_many_managers_leave_few_files_open(llama: Any, path: Path) -> None:
    def opened() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(str(path.parent) in str(link.readlink()) for link in links if link.is_symlink())

    with record(path) as recording:
        for _ in range(4):
            Case(CASE.inputs[:1], new_tokens=2).run(llama)
            assert opened() == 1
        assert (recording.engines, recording.steps) == (4, 8)
    assert [generated(sound(each)) for each in recording.paths] == [2] * 4
    assert opened() == 0


# Consumers -----------------------------------------------------------------------------------------------------------


def consume_with_handlers(model: Any) -> dict[str, list[list[int]]]:
    """Stream three requests to handlers on an event loop; return what each was given."""
    given: dict[str, list[list[int]]] = {f"r{number}": [] for number in range(3)}

    async def consume(manager: Any) -> None:
        ended = {request_id: asyncio.Event() for request_id in given}

        def handler(output: Any) -> None:
            given[output.request_id].append(list(output.generated_tokens))
            if output.is_finished():
                ended[output.request_id].set()

        for request_id, prompt in zip(given, CASE.inputs, strict=False):
            manager.register_result_handler(request_id, handler)
            manager.add_request(prompt, request_id=request_id, max_new_tokens=9, streaming=True)
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in ended.values())), 60)

    with CASE.manager(model) as manager:
        asyncio.run(consume(manager))
    return given


def test_handlers_on_an_event_loop_are_given_the_same(llama: Any, path: Path) -> None:
    alone = consume_with_handlers(llama)
    with record(path):
        assert consume_with_handlers(llama) == alone
    trace = sound(path)
    assert sorted(trace.requests.id) == ["r0", "r1", "r2"] and trace.requests.generated.tolist() == [9] * 3


def test_the_context_manager_of_the_model(llama: Any, path: Path) -> None:
    def run() -> dict[str, list[int]]:
        with llama.continuous_batching_context_manager(
            generation_config=CASE.generation_config(), continuous_batching_config=CASE.config(), timeout=30
        ) as manager:
            count = len(manager.add_requests(CASE.inputs, max_new_tokens=6))
            return {output.request_id: output.generated_tokens for output in drain(manager, count)}

    alone = run()
    with record(path):
        assert run() == alone
    trace = sound(path)
    assert generated(trace) == 30
    assert {EventKind.WARMUP_BEGIN, EventKind.WARMUP_END, EventKind.SESSION_STOP} <= set(kinds(trace))


def test_generate_with_a_paged_cache(llama: Any, path: Path) -> None:
    inputs = torch.tensor([prompt[:10] for prompt in CASE.inputs])

    def run() -> Any:
        return llama.generate(
            inputs,
            generation_config=CASE.generation_config(),
            continuous_batching_config=CASE.config(),
            cache_implementation="paged",
        )

    alone = run()
    with record(path):
        assert torch.equal(run(), alone)
    assert generated(sound(path)) == 5 * 12


# Recordings that overlap ---------------------------------------------------------------------------------------------


def test_a_recording_that_comes_and_goes_on_another_thread(llama: Any, tmp_path: Path) -> None:
    long = Case(CASE.inputs, new_tokens=200)
    alone = long.run_at_once(llama)
    enough = threading.Event()

    def come_and_go() -> None:
        while not enough.is_set():
            number = len(list(tmp_path.glob("inner*")))
            with record(tmp_path / f"inner-{number:03}.cbt", nvml=False):
                enough.wait(0.01)

    with record(tmp_path / "outer.cbt"):
        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            assert long.run_at_once(llama) == alone
        finally:
            enough.set()
            thread.join()
    assert generated(sound(tmp_path / "outer.cbt")) == 1000
    inner = sorted(tmp_path.glob("inner*"))
    assert len(inner) > 3
    for each in inner:
        assert open_trace(each).recovery.status == "clean"
    assert "cbtrace" not in str(vars(ContinuousBatchingManager)["start"].__code__.co_filename)


def test_an_engine_that_runs_already_is_recorded_from_its_next_request(llama: Any, path: Path) -> None:
    with CASE.manager(llama) as manager:
        manager.add_request(CASE.inputs[0], request_id="before", max_new_tokens=400)
        while manager.batch_processor is None or not manager.batch_processor.scheduler.active_requests:
            manager.get_result(timeout=0.05)
        with record(path):
            manager.add_request(CASE.inputs[1], request_id="during", max_new_tokens=7)
            outputs = drain(manager, 2)
    assert {output.request_id: len(output.generated_tokens) for output in outputs} == {"before": 400, "during": 7}
    trace = sound(path)
    assert len(trace.engines) == 1
    assert dict(zip(trace.requests.id, trace.requests.generated.tolist(), strict=True))["during"] == 7
    # In the middle of its life when it was first seen: what it had before is not counted.
    assert 0 < (trace.tokens.request == trace.requests.id.index("before")).sum() < 400


# One manager, many sessions ------------------------------------------------------------------------------------------


def test_one_manager_started_and_stopped_again_and_again(llama: Any, path: Path) -> None:
    def sessions() -> list[dict[str, list[int]]]:
        results = []
        manager = llama.init_continuous_batching(CASE.generation_config(), CASE.config())
        manager.stop()  # not started: the engine only warns
        for _ in range(3):
            manager.start()
            manager.start()  # running already: the engine only warns
            count = len(manager.add_requests(CASE.inputs, max_new_tokens=12))
            results.append({output.request_id: output.generated_tokens for output in drain(manager, count)})
            manager.stop()
            manager.stop()
        return results

    alone = sessions()
    with record(path):
        assert sessions() == alone
    trace = sound(path)
    assert len(trace.engines) == 3, "a stop that keeps nothing ends an engine"
    assert kinds(trace).count(EventKind.SESSION_START) == kinds(trace).count(EventKind.SESSION_STOP) == 3
    assert generated(trace) == 3 * 60 and len(trace.requests.id) == 15


def test_the_configuration_can_be_copied_and_pickled(llama: Any, path: Path) -> None:
    with record(path), CASE.manager(llama) as manager:
        drain(manager, len(manager.add_requests(CASE.inputs, max_new_tokens=3)))
        for config in (manager.continuous_batching_config, manager.generation_config, llama.config):
            assert copy.deepcopy(config).to_dict() == config.to_dict() if hasattr(config, "to_dict") else True
            assert vars(pickle.loads(pickle.dumps(config))).keys() == vars(config).keys()
        assert "cbtrace" not in repr(vars(manager.continuous_batching_config))


# Objects that are no real managers -----------------------------------------------------------------------------------


def outcome(act: Callable[[], Any]) -> Any:
    """What a caller sees: the result, or the error's class and words (without the addresses of objects in them)."""
    try:
        return "returned", act()
    except Exception as error:
        return "raised", type(error), re.sub(r"(id=|0x)['0-9a-f]+", "", str(error))


def on_a_mock(method: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    def act() -> Any:
        mock = MagicMock()
        mock.background_thread_status.can_accept_new_requests.return_value = None
        mock.background_thread_status.local_status = 0
        result = outcome(lambda: type(getattr(ContinuousBatchingManager, method)(mock, *args, **kwargs)))
        if method == "add_request":
            mock.input_queue.put.assert_called_once()
        return result, [(name, len(given), sorted(named)) for name, given, named in mock.mock_calls]

    return act


def on_a_mock_with_a_spec(method: str, *args: Any) -> Callable[[], Any]:
    def act() -> Any:
        mock = Mock(spec=ContinuousBatchingManager)
        mock.start()
        mock.add_request([1, 2], request_id="a")
        with_self = outcome(lambda: getattr(ContinuousBatchingManager, method)(mock, *args))
        return with_self, [(call[0], call[1], call[2]) for call in mock.mock_calls]

    return act


def on_a_bare_object(method: str, *args: Any, **attributes: Any) -> Callable[[], Any]:
    def act() -> Any:
        manager = object.__new__(ContinuousBatchingManager)
        vars(manager).update(attributes)
        result = outcome(lambda: getattr(manager, method)(*args))
        return result, sorted(vars(manager))

    return act


def without(attribute: str, method: str, *args: Any) -> Callable[[], Any]:
    def act() -> Any:
        manager = tiny_llama().init_continuous_batching(CASE.generation_config(), CASE.config())
        delattr(manager, attribute)
        return outcome(lambda: getattr(manager, method)(*args))

    return act


def wrongly_called() -> list[Any]:
    cls: Any = ContinuousBatchingManager
    return [outcome(call) for call in (cls.add_request, cls.start, lambda: cls.stop(1, 2, 3, 4, 5, 6))]


def by_keyword() -> Any:
    manager = tiny_llama().init_continuous_batching(CASE.generation_config(), CASE.config())
    ContinuousBatchingManager.cancel_request(self=manager, request_id="nobody")
    return manager.cancel_queue.get_nowait()


def with_a_bad_configuration() -> Any:
    return outcome(lambda: ContinuousBatchingManager(tiny_llama(), CASE.generation_config(), None))  # type: ignore[arg-type]


STRANGE: dict[str, Callable[[], Any]] = {
    "mock-add": on_a_mock("add_request", [1, 2, 3], request_id="a"),
    "mock-cancel": on_a_mock("cancel_request", "a"),
    "mock-start": on_a_mock("start"),
    "mock-stop": on_a_mock("stop", True, 1.0),
    "mock-join": on_a_mock("join", 0.0),
    "mock-create": on_a_mock("_create_batch_processor"),
    "mock-critical": on_a_mock("_handle_critical_error", ValueError("x"), None),
    "spec-stop": on_a_mock_with_a_spec("stop"),
    "spec-add": on_a_mock_with_a_spec("add_request", [1, 2, 3]),
    "bare-add": on_a_bare_object("add_request", [1, 2, 3]),
    "bare-start": on_a_bare_object("start"),
    "bare-stop": on_a_bare_object("stop", _generation_thread=None, batch_processor=None),
    "bare-cancel": on_a_bare_object("cancel_request", "a", cancel_queue=queue.Queue(), is_tp_driver=True),
    "bare-create": on_a_bare_object("_create_batch_processor", model=None),
    "lacks-model": without("model", "_create_batch_processor"),
    "lacks-queue": without("input_queue", "add_request", [1, 2, 3]),
    "lacks-processor": without("batch_processor", "add_request", [1, 2, 3], "a"),
    "lacks-thread": without("_generation_thread", "stop"),
    "lacks-config": without("continuous_batching_config", "_create_batch_processor"),
    "wrong-arguments": wrongly_called,
    "self-by-keyword": by_keyword,
    "bad-configuration": with_a_bad_configuration,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("act", STRANGE.values(), ids=STRANGE)
def test_what_is_no_manager_behaves_as_without(act: Callable[[], Any], llama: Any, path: Path) -> None:
    alone = act()
    with record(path) as recording:
        assert act() == alone
        CASE.run(llama)
    # Nothing of it reached a trace that a real engine needs.
    assert [generated(open_trace(each)) for each in recording.paths if open_trace(each).engines] == [60]


def test_mocks_in_place_of_methods(llama: Any, path: Path, monkeypatch: Any) -> None:
    """A method that is a mock when the recording begins is called, and still is one to whoever holds it."""
    start = MagicMock(return_value="started")
    monkeypatch.setattr(ContinuousBatchingManager, "start", start)
    with record(path):
        manager = llama.init_continuous_batching(CASE.generation_config(), CASE.config())
        assert ContinuousBatchingManager.start(manager) == "started"
    start.assert_called_once_with(manager)
    assert ContinuousBatchingManager.start is start


# Errors --------------------------------------------------------------------------------------------------------------


class PlantedError(Exception):
    """Stands for any error of the engine."""


def fails_with(error: BaseException) -> Callable[..., Any]:
    def planted(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return planted


def calls_of(manager: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "add_request", lambda: manager.add_request([1, 2, 3])
    yield "cancel_request", lambda: manager.cancel_request("a")
    yield "start", manager.start
    yield "stop", manager.stop
    yield "join", lambda: manager.join(0.0)
    yield "_create_batch_processor", manager._create_batch_processor
    yield "_handle_critical_error", lambda: manager._handle_critical_error(ValueError("x"), None)


@pytest.mark.parametrize("error", [PlantedError("planted"), queue.Full(), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_an_error_of_the_engine_comes_through_as_it_is(llama: Any, path: Path, monkeypatch: Any, error: Any) -> None:
    manager = llama.init_continuous_batching(CASE.generation_config(), CASE.config())
    for name, _ in calls_of(manager):
        monkeypatch.setattr(ContinuousBatchingManager, name, fails_with(error))
    with record(path):
        for name, call in calls_of(manager):
            with pytest.raises(type(error)) as caught:
                call()
            assert caught.value is error, name
            assert error.__context__ is None and error.__cause__ is None
            assert traceback.extract_tb(sys.exc_info()[2] or caught.tb)[-1].name == "planted"
            error.__traceback__ = None


def test_a_manager_that_cannot_be_made_raises_its_own_error_and_takes_no_trace(llama: Any, path: Path) -> None:
    with record(path) as recording:
        with pytest.raises(AttributeError) as caught:
            ContinuousBatchingManager(llama, CASE.generation_config(), None)  # type: ignore[arg-type]
        assert Path(traceback.extract_tb(caught.tb)[-1].filename).name == "continuous_api.py"
        CASE.run(llama)
    assert recording.paths == [path]
    assert generated(sound(path)) == 60


def test_an_error_of_ours_does_not_hide_one_of_the_engine(llama: Any, path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ContinuousBatchingManager, "_create_batch_processor", fails_with(PlantedError()))
    monkeypatch.setattr(EngineWatch, "out_of_memory", fails_with(LookupError("ours")))
    with record(path), pytest.warns(RuntimeWarning, match="LookupError"):
        manager = llama.init_continuous_batching(CASE.generation_config(), CASE.config())
        with pytest.raises(PlantedError) as caught:
            manager._create_batch_processor()
    assert caught.value.__context__ is None


def test_methods_look_like_the_ones_they_stand_for(path: Path) -> None:
    names = [name for name, _ in calls_of(MagicMock())] + ["__init__"]

    def looks() -> list[Any]:
        methods = [getattr(ContinuousBatchingManager, name) for name in names]
        return [
            (method.__name__, method.__qualname__, method.__module__, method.__doc__, inspect.signature(method))
            for method in [*methods, ContinuousBatchProcessor.__init__]
        ]

    alone, methods = looks(), dict(vars(ContinuousBatchingManager))
    with record(path):
        assert dict(vars(ContinuousBatchingManager)) != methods
        assert looks() == alone
    assert dict(vars(ContinuousBatchingManager)) == methods
