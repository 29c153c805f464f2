"""Whatever breaks in the recorder, generation must not notice, and the trace must say so."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import RecordingStopped, record
from cbtrace.recorder.engine.blocks import BlocksKv
from cbtrace.recorder.engine.sectors import SectorsKv
from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.hooks import HookSet
from cbtrace.recorder.request_watch import RequestWatch
from cbtrace.recorder.session import Recording
from cbtrace.recorder.step_watch import StepWatch
from cbtrace.traces import TraceWriter, open_trace
from engines import Case, prompts, tiny_llama

pytestmark = pytest.mark.engine

CASE = Case(prompts(8, 10, 40), new_tokens=24, settings={"num_blocks": 14})

HANDLERS = [
    *((StepWatch, name) for name in ("walked", "scheduled", "offloading", "offloaded", "prepared")),
    *((StepWatch, name) for name in ("launched", "results_ready", "updated", "flush")),
    *((RequestWatch, name) for name in ("submitted", "visible", "finished", "engine_ready", "roster")),
    *((EngineWatch, name) for name in ("created", "cache_begins", "inputs_begin", "engine_created", "session")),
    *((EngineWatch, name) for name in ("submit_begins", "_after_step", "_write_engine", "_first_visible")),
]


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def expected(llama: Any) -> dict[str, list[int]]:
    return CASE.run_at_once(llama)


def run_recorded(llama: Any, path: Path) -> tuple[dict[str, list[int]], list[str]]:
    """Return the tokens and the recorder's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(path):
            tokens = CASE.run_at_once(llama)
    return tokens, [str(warning.message) for warning in caught if issubclass(warning.category, RecordingStopped)]


def raises(*_: Any, **__: Any) -> Any:
    raise LookupError("planted")


@pytest.mark.parametrize(("owner", "name"), HANDLERS, ids=lambda value: getattr(value, "__name__", value))
def test_a_handler_that_raises_ends_only_the_recording(
    llama: Any, expected: Any, tmp_path: Path, monkeypatch: Any, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, raises)
    tokens, told = run_recorded(llama, tmp_path / "run.cbt")
    assert tokens == expected and list(tokens) == list(expected)
    assert len(told) == 1 and "recorder_error: LookupError" in told[0]
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.footer is not None and trace.footer.reason == "recorder_error"
    assert trace.recovery.status == "stopped"


@pytest.mark.parametrize("garbage", [None, "text", (), ("a", None), 10**30])
def test_an_engine_that_answers_garbage_ends_only_the_recording(
    llama: Any, expected: Any, tmp_path: Path, monkeypatch: Any, garbage: Any
) -> None:
    for adapter in (BlocksKv, SectorsKv):
        monkeypatch.setattr(adapter, "free_and_cached", lambda _self: garbage)
    tokens, told = run_recorded(llama, tmp_path / "run.cbt")
    assert tokens == expected
    assert len(told) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG])
@pytest.mark.parametrize("after", [8, 40])
def test_a_disk_that_fails_ends_only_the_recording(
    llama: Any, expected: Any, tmp_path: Path, monkeypatch: Any, code: int, after: int
) -> None:
    writes = iter(range(10**6))
    put = TraceWriter._put

    def fails(self: TraceWriter, data: bytes) -> None:
        if next(writes) >= after:
            raise OSError(code, os.strerror(code))
        put(self, data)

    monkeypatch.setattr(TraceWriter, "_put", fails)
    tokens, told = run_recorded(llama, tmp_path / "run.cbt")
    assert tokens == expected
    reason = "disk_full" if code == errno.ENOSPC else "io_error"
    assert len(told) == 1 and f"({reason}: {os.strerror(code)})" in told[0]
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.footer is None and trace.recovery.status == "cut" and trace.recovery.frames_read > 0


def test_a_warning_filter_that_raises_does_not_reach_the_engine(
    llama: Any, expected: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(StepWatch, "scheduled", raises)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with record(tmp_path / "run.cbt"):
            tokens = CASE.run_at_once(llama)
    assert tokens == expected


@pytest.mark.parametrize("name", ["_process_candidates", "clear_cancelled_requests", "_handle_request_error", "warmup"])
def test_a_missing_hook_point_costs_its_fields_and_is_told(
    llama: Any, expected: Any, tmp_path: Path, monkeypatch: Any, name: str
) -> None:
    add = HookSet.add_passing

    def lacks(self: HookSet, owner: Any, hooked: str, around: Any, *, label: str = "") -> Any:
        return add(self, owner, f"{hooked}_gone" if hooked == name else hooked, around, label=label)

    monkeypatch.setattr(HookSet, "add_passing", lacks)
    tokens, told = run_recorded(llama, tmp_path / "run.cbt")
    assert tokens == expected and told == []
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.footer is not None and trace.footer.reason == "closed"
    assert [missing.split(".")[-1] for missing in trace.engines[0].missing] == [name]
    assert "hook-missing" in [notice.slug for notice in trace.notices]
    assert trace.requests.generated.tolist() == [24] * 8


def methods_of(manager: Any) -> dict[str, Any]:
    """Every attribute that a recording may replace, as it is stored."""
    processor = manager.batch_processor
    owners = [type(manager), manager, processor, processor.scheduler, processor.offloading_manager]
    owners += [processor.model_runner, processor.inputs_and_outputs, manager.input_queue, type(processor)]
    return {
        f"{number}.{name}": value
        for number, owner in enumerate(owners)
        for name, value in vars(owner).items()
        if callable(value)
    }


def test_every_method_is_given_back(llama: Any, tmp_path: Path) -> None:
    with CASE.manager(llama) as manager:
        manager.warmup()
        before = methods_of(manager)
        first, second = record(tmp_path / "a.cbt"), record(tmp_path / "b.cbt")
        manager.add_request(CASE.inputs[0], max_new_tokens=3)
        manager.get_result(timeout=10)
        manager._create_batch_processor  # noqa: B018  (the class attribute is hooked now)
        assert methods_of(manager) != before
        # Closed in the order in which they were opened: the first one's hooks lie under the second one's.
        first.close()
        second.close()
        assert methods_of(manager) == before


def test_nested_recordings_both_record(llama: Any, expected: Any, tmp_path: Path) -> None:
    with record(tmp_path / "outer.cbt"), record(tmp_path / "inner.cbt"):
        assert CASE.run_at_once(llama) == expected
    outer, inner = open_trace(tmp_path / "outer.cbt"), open_trace(tmp_path / "inner.cbt")
    for trace in (outer, inner):
        assert trace.footer is not None and trace.footer.reason == "closed"
    assert outer.step_requests.request.tolist() == inner.step_requests.request.tolist()


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    recording = record(tmp_path / "run.cbt")
    recording.close()
    size = (tmp_path / "run.cbt").stat().st_size
    recording.close()
    assert (tmp_path / "run.cbt").stat().st_size == size


def test_a_recording_without_an_engine_says_so(tmp_path: Path) -> None:
    with record(tmp_path / "run.cbt"):
        pass
    trace = open_trace(tmp_path / "run.cbt")
    assert "no-engine" in [notice.slug for notice in trace.notices]


def test_a_forked_child_leaves_the_trace_alone(llama: Any, tmp_path: Path) -> None:
    with record(tmp_path / "run.cbt"):
        size = (tmp_path / "run.cbt").stat().st_size
        child = os.fork()
        if child == 0:  # pragma: no cover
            # The child creates an engine's manager under the inherited hooks; nothing of it may reach the file.
            CASE.config()
            llama.init_continuous_batching(CASE.generation_config(), CASE.config())
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "run.cbt").stat().st_size == size
        CASE.run_at_once(llama)
    assert open_trace(tmp_path / "run.cbt").recovery.status == "clean"


def test_running_out_of_memory_before_any_engine_is_model_load(tmp_path: Path) -> None:
    with pytest.raises(MemoryError), record(tmp_path / "run.cbt"):
        raise MemoryError
    assert open_trace(tmp_path / "run.cbt").events.text == ["model load: MemoryError"]


def test_a_trace_that_cannot_be_created_is_an_error_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Recording(tmp_path / "no" / "folder" / "run.cbt")
