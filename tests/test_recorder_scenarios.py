"""What the recorder sees of a real engine, scenario by scenario, against what the engine itself tells.

Two witnesses check it: the engine's own outputs, and an observer that the tests put *under* the recorder, which notes
every batch that the scheduler hands out and counts blocks in the block tables themselves.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from cbtrace.recorder import RecordingStopped, attach, record
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind, RequestFlag
from engines import BLOCK, VERSION, Case, drain, prompts, recorded, tiny_gemma2, tiny_llama

pytestmark = pytest.mark.engine

SECTORS = tuple(map(int, VERSION.split(".")[:2])) >= (5, 18)
"""The cache's generation: it decides some exact counts."""

SOFT_RESETS = Case(prompts(8, 10, 40), settings={"num_blocks": 14})
SHARED = [[7] * 40 + tail for tail in prompts(6, 8, 20, seed=2)]


class Observer:
    """Notes what the scheduler hands out and what the block tables hold, apart from the recorder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[dict[str, int]] = []
        self.used_blocks: list[int] = []
        original = ContinuousBatchingManager._create_batch_processor

        def create(manager: Any) -> Any:
            processor = original(manager)
            if not hasattr(processor, "_observed"):
                processor._observed = True
                self._watch(processor)
            return processor

        monkeypatch.setattr(ContinuousBatchingManager, "_create_batch_processor", create)

    def _watch(self, processor: Any) -> None:
        schedule, cache = processor.scheduler.schedule_batch, processor.cache

        def observed(token_budget: int, cache_budget: int) -> Any:
            result = schedule(token_budget, cache_budget)
            if result[0]:
                self.batches.append({member.state.request_id: member.query_length for member in result[0]})
                self.used_blocks.append(blocks_in_tables(cache))
            return result

        processor.scheduler.schedule_batch = observed


def blocks_in_tables(cache: Any) -> int:
    """Distinct blocks that any request refers to, in block tables (one pool per allocator since 5.20)."""
    if hasattr(cache, "cache_allocators"):
        allocators = cache.cache_allocators.values()
        return sum(len({b for table in a.block_table.values() for b in table}) for a in allocators)
    return len({b for group in cache.group_cache_managers for table in group.block_table.values() for b in table})


def events(trace: Trace, kind: EventKind) -> list[int]:
    """Rows of one kind."""
    return list(np.flatnonzero(trace.events.kind == kind))


def ids_of(trace: Trace, rows: list[int]) -> list[str]:
    return [trace.requests.id[trace.events.request[row]] for row in rows]


def tokens_by_id(trace: Trace) -> dict[str, int]:
    counts = Counter(trace.requests.id[request] for request in trace.tokens.request)
    return dict(counts)


def assert_sound(trace: Trace, outputs: dict[str, list[int]] | None = None) -> None:
    """What holds of every whole recording."""
    assert trace.recovery.status == "clean", trace.recovery
    assert trace.footer is not None and trace.footer.reason == "closed"
    assert [str(finding) for finding in check(trace) if finding.severity > 0] == []
    assert all(engine.missing == [] for engine in trace.engines)
    steps = trace.steps
    capacity = trace.engines[0].kv.capacity_units * trace.engines[0].kv.unit_bytes
    assert np.all(steps.kv_used + steps.kv_cached + steps.kv_free == capacity)
    assert np.all(steps.kv_used >= 0)
    if outputs is not None:
        assert tokens_by_id(trace) == {key: len(tokens) for key, tokens in outputs.items() if tokens}


def assert_prefill_adds_up(trace: Trace) -> None:
    """Every prompt token of a finished request was computed once or found in the prefix cache, and nothing else was
    computed but decodes and what soft resets cost."""
    requests = trace.requests
    done = np.isin(requests.end_reason, [EndReason.EOS, EndReason.LENGTH]) & (requests.parent < 0)
    assert np.array_equal((requests.prefill_computed + requests.prefix_hit)[done], requests.prompt_tokens[done])
    assert trace.steps.prefill_tokens.sum() == trace.step_requests.prefill.sum() == requests.prefill_computed.sum()
    assert trace.steps.recompute_tokens.sum() == requests.recomputed.sum()


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    return tmp_path / "run.cbt"


def test_plain_run_is_recorded_as_the_scheduler_made_it(llama: Any, trace_path: Path, monkeypatch: Any) -> None:
    case = Case(prompts(6, 5, 100), new_tokens=20)
    unrecorded = case.run_at_once(llama)
    observer = Observer(monkeypatch)
    trace, outputs = recorded(case, llama, trace_path)
    assert outputs == unrecorded and list(outputs) == list(unrecorded)
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    seen: list[dict[str, int]] = [{} for _ in observer.batches]
    rows = trace.step_requests
    for step, request, *parts in zip(rows.step, rows.request, rows.prefill, rows.decode, rows.recompute, strict=True):
        seen[step][trace.requests.id[request]] = int(sum(parts))
    assert seen == observer.batches
    unit = trace.engines[0].kv.unit_bytes
    assert (trace.steps.kv_used // unit).tolist() == observer.used_blocks
    assert trace.steps.members.tolist() == [len(batch) for batch in observer.batches]


def test_chunked_prefill_counts_every_prompt_token_once(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(3, 150, 200), new_tokens=4)
    trace, outputs = recorded(case, llama, trace_path)
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    assert int(trace.steps.prefill_tokens.sum()) == sum(map(len, case.inputs))
    assert int(trace.steps.prefill_tokens.max()) <= 64
    assert AdmissionStop.TOKEN_BUDGET in trace.steps.stop


def test_soft_resets_do_not_restart_a_request(llama: Any, trace_path: Path) -> None:
    unrecorded = SOFT_RESETS.run_at_once(llama)
    trace, outputs = recorded(SOFT_RESETS, llama, trace_path)
    assert outputs == unrecorded
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    resets = events(trace, EventKind.SOFT_RESET)
    expected = (
        ["req_0", "req_5", "req_2", "req_7", "req_6", "req_5", "req_7"]
        if SECTORS
        else ["req_5", "req_2", "req_3", "req_7", "req_0", "req_5", "req_6"]
    )
    assert ids_of(trace, resets) == expected
    assert set(tokens_by_id(trace).values()) == {48}
    requests = trace.requests
    for row in resets:
        request = trace.events.request[row]
        assert trace.events.tokens[row] > 0
        first = requests.first_token_ns[request]
        # The time to first token is measured to the first token there ever was, mostly long before the reset.
        assert requests.submit_ns[request] < first < requests.end_ns[request]
        times = trace.tokens.time_ns[trace.tokens.request == request]
        assert times[0] == first and np.all(np.diff(times) > 0)
    assert requests.recomputed.sum() + requests.recompute_saved.sum() == trace.events.tokens[resets].sum()
    assert int(requests.soft_resets.sum()) == len(resets)


def test_every_call_of_the_scheduler_is_an_attempt_of_some_step(llama: Any, trace_path: Path, monkeypatch: Any) -> None:
    calls: list[bool] = []
    schedule = FIFOScheduler.schedule_batch

    def counted(self: Any, *args: Any) -> Any:
        result = schedule(self, *args)
        calls.append(result[0] is None)
        return result

    monkeypatch.setattr(FIFOScheduler, "schedule_batch", counted)
    case = Case(SOFT_RESETS.inputs, settings=SOFT_RESETS.settings | {"safety_margin": 0.0})
    trace, _ = recorded(case, llama, trace_path)
    # Until 5.17 the scheduler always finds something in this run.
    assert any(calls) == SECTORS, "somewhere nothing could be scheduled at first"
    assert int(trace.steps.attempts.sum()) == len(calls)


@pytest.mark.parametrize("settings", [{}, {"safety_margin": 0.0}], ids=["for the margin", "to spare active requests"])
def test_cached_blocks_given_up_are_counted_whatever_the_cause(
    llama: Any, trace_path: Path, monkeypatch: Any, settings: dict[str, float]
) -> None:
    """Until 5.17, cached blocks count as free and are taken one by one: there is nothing to count."""
    given_up: list[int] = []
    if SECTORS:
        from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger

        evict = BlockLedger.evict_cached_blocks

        def counted(self: Any) -> Any:
            blocks = evict(self)
            given_up.extend([len(blocks)] if blocks else [])
            return blocks

        monkeypatch.setattr(BlockLedger, "evict_cached_blocks", counted)
    case = Case(SOFT_RESETS.inputs, settings=SOFT_RESETS.settings | settings)
    trace, outputs = recorded(case, llama, trace_path)
    assert_sound(trace, outputs)
    assert bool(given_up) == SECTORS
    assert trace.events.blocks[events(trace, EventKind.CACHE_EVICTION)].tolist() == given_up


def test_engine_timestamps_forget_what_the_trace_keeps(llama: Any, trace_path: Path) -> None:
    """The reason for clocks of our own: after a soft reset the engine's have fewer stamps than tokens."""
    with record(trace_path):
        outputs = llama.generate_batch(
            SOFT_RESETS.inputs,
            generation_config=SOFT_RESETS.generation_config(),
            continuous_batching_config=SOFT_RESETS.config(),
            record_timestamps=True,
            progress_bar=False,
        )
    assert min(len(output.timestamps) for output in outputs.values()) < 48
    assert set(tokens_by_id(open_trace(trace_path)).values()) == {48}


def test_prefix_hits_are_neither_computed_nor_lost(llama: Any, trace_path: Path) -> None:
    case = Case(SHARED, new_tokens=8, settings={"max_requests_per_batch": 2})
    trace, outputs = recorded(case, llama, trace_path)
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    hits = sorted(trace.requests.prefix_hit.tolist())
    # Two blocks of the common forty tokens are whole; the first two requests run side by side and find nothing.
    assert hits == [0, 0, 32, 32, 32, 32]


def test_prefix_cache_survives_from_one_call_to_the_next(llama: Any, trace_path: Path) -> None:
    case = Case([[9] * 48], new_tokens=2)
    with record(trace_path):
        case.run(llama, persistent_manager=True)
        case.run(llama, persistent_manager=True)
        llama.destroy_cached_continuous_batching_manager()
    trace = open_trace(trace_path)
    assert_sound(trace)
    assert trace.requests.id == ["req_0", "req_1"]
    assert len(trace.engines) == 1
    assert len(events(trace, EventKind.SESSION_START)) == 2
    # 5.20 and newer never match the prompt's last whole block; older ones do, and compute one token again.
    assert trace.requests.prefix_hit.tolist() == [0, 32 if SECTORS else 47]
    assert_prefill_adds_up(trace)


def test_forks_inherit_and_are_not_prefilled_twice(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(2, 20, 30), new_tokens=6, generation={"num_return_sequences": 3, "do_sample": True})
    with record(trace_path), case.manager(llama) as manager:
        manager.add_requests(case.inputs, max_new_tokens=6)
        drain(manager, 6)
    trace = open_trace(trace_path)
    assert_sound(trace)
    requests = trace.requests
    children = [row for row, name in enumerate(requests.id) if "__child#" in name]
    assert len(children) == 4 and len(requests.id) == 6
    assert all(requests.flags[row] & RequestFlag.FORKED for row in children)
    for row in children:
        parent = int(requests.parent[row])
        assert requests.id[row].startswith(requests.id[parent])
        assert requests.submit_ns[row] == requests.submit_ns[parent]
        assert requests.prefill_computed[row] == 1  # the prompt's last token, which each child computes for itself
    assert tokens_by_id(trace) == dict.fromkeys(requests.id, 6)
    assert len(events(trace, EventKind.FORK)) == 4


def test_cancel_is_seen_although_the_engine_delivers_nothing(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(2, 20, 30), new_tokens=200)
    with record(trace_path), case.manager(llama) as manager:
        victim, other = manager.add_requests(case.inputs, max_new_tokens=200, streaming=True)
        for output in manager:
            if output.request_id == victim and len(output.generated_tokens) >= 3:
                manager.cancel_request(victim)
                break
        while not any(o.request_id == other and o.is_finished() for o in manager):
            pass
    trace = open_trace(trace_path)
    assert_sound(trace)
    row = trace.requests.id.index(victim)
    assert trace.requests.end_reason[row] == EndReason.CANCELLED
    assert 3 <= trace.requests.generated[row] < 200
    assert trace.requests.generated[row] == (trace.tokens.request == row).sum()
    assert ids_of(trace, events(trace, EventKind.CANCEL_REQUESTED)) == [victim]
    assert trace.requests.end_reason[trace.requests.id.index(other)] == EndReason.LENGTH


def test_oversize_request_is_flagged_when_it_is_submitted(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(1, 20, 21), new_tokens=8, settings={"num_blocks": 4})
    with record(trace_path), case.manager(llama) as manager:
        manager.add_request(case.inputs[0], request_id="fits")
        drain(manager, 1)
        manager.add_request([1] * 200, request_id="too-long")
        while manager.is_running():
            manager.get_result(timeout=0.2)
    trace = open_trace(trace_path)
    flagged = events(trace, EventKind.OVERSIZE)
    assert ids_of(trace, flagged) == ["too-long"]
    first_chunk = trace.admissions.time_ns[trace.admissions.request == 1]
    assert not first_chunk.size or trace.events.time_ns[flagged[0]] < first_chunk[0]
    assert trace.requests.end_reason.tolist() == [EndReason.LENGTH, EndReason.FAILED]
    assert trace.requests.error == ["", "RuntimeError"]
    assert len(events(trace, EventKind.FATAL_ERROR)) == 1


def test_hybrid_model_counts_bytes_over_all_groups(trace_path: Path, monkeypatch: Any) -> None:
    case = Case(prompts(5, 10, 60), new_tokens=24, settings={"num_blocks": 60})
    gemma = tiny_gemma2()
    unrecorded = case.run_at_once(gemma)
    trace, outputs = recorded(case, gemma, trace_path)
    assert outputs == unrecorded
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    kv = trace.engines[0].kv
    windows = {group.window for group in kv.groups}
    assert windows == {-1, 32}
    assert sum(group.layers for group in kv.groups) == 6
    # The same number of blocks means other bytes: whole-model blocks since 5.20, blocks of one group before.
    block_bytes = 2 * 2 * 16 * 4 * BLOCK
    assert kv.capacity_units * kv.unit_bytes == 60 * block_bytes * (
        6 if SECTORS else len(kv.groups) and kv.groups[0].layers
    )


def test_prefill_first_schedules_prefill_before_decodes(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(6, 30, 90), new_tokens=10, settings={"scheduler_type": "prefill_first"})
    trace, outputs = recorded(case, llama, trace_path)
    assert_sound(trace, outputs)
    assert_prefill_adds_up(trace)
    assert trace.engines[0].resolved["scheduler"] == "PrefillFirstScheduler"
    assert trace.engines[0].resolved["safety_margin"] == 0.0
    assert trace.engines[0].requested["safety_margin"] == "unset"


def test_safety_margin_is_named_as_what_holds_requests_back(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(8, 30, 40), new_tokens=8, settings={"num_blocks": 24, "safety_margin": 0.6})
    trace, outputs = recorded(case, llama, trace_path)
    assert_sound(trace, outputs)
    stops = Counter(trace.steps.stop.tolist())
    assert stops[AdmissionStop.SAFETY_MARGIN] > 0
    assert stops[AdmissionStop.UNKNOWN] == 0
    assert np.all((trace.steps.stop == AdmissionStop.NOTHING_WAITING) == (trace.steps.waiting == 0))


def test_request_cap_is_named_as_what_holds_requests_back(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(6, 10, 12), new_tokens=8, settings={"max_requests_per_batch": 2})
    trace, _ = recorded(case, llama, trace_path)
    waiting = trace.steps.waiting > 0
    assert waiting.any()
    assert set(trace.steps.stop[waiting].tolist()) == {AdmissionStop.REQUEST_CAP}


def test_admission_blocked_after_an_offload_is_told_apart(llama: Any, trace_path: Path) -> None:
    trace, _ = recorded(SOFT_RESETS, llama, trace_path)
    first_reset = trace.events.step[events(trace, EventKind.SOFT_RESET)[0]]
    stops = trace.steps.stop[trace.steps.index >= first_reset]
    assert AdmissionStop.BLOCKED_AFTER_OFFLOAD in stops


def test_streaming_consumers_do_not_change_token_times(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(3, 10, 20), new_tokens=12)
    with record(trace_path), case.manager(llama) as manager:
        ids = manager.add_requests(case.inputs, max_new_tokens=12, streaming=True)
        drain(manager, len(ids))
    trace = open_trace(trace_path)
    assert_sound(trace)
    assert tokens_by_id(trace) == dict.fromkeys(ids, 12)
    assert all(flags & RequestFlag.STREAMING for flags in trace.requests.flags)


def test_an_id_used_twice_is_two_requests(llama: Any, trace_path: Path) -> None:
    case = Case([[3] * 20], new_tokens=4)
    with record(trace_path), case.manager(llama) as manager:
        for tokens in (4, 7):
            manager.add_request(case.inputs[0], request_id="again", max_new_tokens=tokens)
            drain(manager, 1)
    trace = open_trace(trace_path)
    assert_sound(trace)
    assert trace.requests.id == ["again", "again"]
    assert trace.requests.incarnation.tolist() == [0, 1]
    assert trace.requests.generated.tolist() == [4, 7]
    assert trace.requests.prompt_hash[0] == trace.requests.prompt_hash[1]


def test_end_token_and_limit_are_told_apart(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(2, 10, 20), new_tokens=12)
    first, second = case.run_at_once(llama).values()
    stop = next(token for token in first if token not in second)
    trace, outputs = recorded(Case(case.inputs, 12, generation={"eos_token_id": stop}), llama, trace_path)
    assert_sound(trace, outputs)
    by_id = dict(zip(trace.requests.id, trace.requests.end_reason.tolist(), strict=True))
    assert by_id == {"req_0": EndReason.EOS, "req_1": EndReason.LENGTH}


def recorded_until_it_breaks(
    case: Case, model: Any, path: Path, monkeypatch: Any, when: int, error: type[Exception]
) -> Trace:
    """Record an engine that dies in the forward pass number ``when``."""
    calls = iter(range(1000))
    forward = type(model).forward

    def breaks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == when:
            raise error("planted")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", breaks)
    with record(path), case.manager(model) as manager:
        manager.add_requests(case.inputs, max_new_tokens=case.new_tokens)
        while manager.is_running():
            manager.get_result(timeout=0.2)
    return open_trace(path)


def test_fatal_error_ends_every_request_and_reaches_the_user(llama: Any, trace_path: Path, monkeypatch: Any) -> None:
    case = Case(prompts(3, 10, 20), new_tokens=50)
    trace = recorded_until_it_breaks(case, llama, trace_path, monkeypatch, 5, ZeroDivisionError)
    assert trace.recovery.status == "clean"
    fatal = events(trace, EventKind.FATAL_ERROR)
    assert [trace.events.text[row] for row in fatal] == ["ZeroDivisionError"]
    assert trace.requests.end_reason.tolist() == [EndReason.FAILED] * 3
    assert trace.requests.error == ["ZeroDivisionError"] * 3
    assert trace.steps.index.size == 5  # the batch that broke has no results, so it is no step


@pytest.mark.parametrize(("when", "phase"), [(0, "prefill"), (6, "decode growth")])
def test_out_of_memory_names_its_phase(llama: Any, trace_path: Path, monkeypatch: Any, when: int, phase: str) -> None:
    class OutOfMemoryError(RuntimeError):
        """Torch's class has this name; it cannot be provoked without a GPU."""

    case = Case(prompts(2, 10, 20), new_tokens=50)
    trace = recorded_until_it_breaks(case, llama, trace_path, monkeypatch, when, OutOfMemoryError)
    rows = events(trace, EventKind.OUT_OF_MEMORY)
    assert [trace.events.text[row] for row in rows] == [f"{phase}: OutOfMemoryError"]


def test_cache_that_does_not_fit_is_out_of_memory_at_its_creation(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(1, 10, 20), settings={"num_blocks": 10**9, "max_memory_percent": 0.01})
    with record(trace_path), case.manager(llama) as manager:
        manager.add_request(case.inputs[0], request_id="never")
        while manager.is_running():
            manager.get_result(timeout=0.2)
    trace = open_trace(trace_path)
    rows = events(trace, EventKind.OUT_OF_MEMORY)
    assert [trace.events.text[row] for row in rows] == ["cache creation: MemoryError"]
    assert trace.requests.end_reason.tolist() == [EndReason.FAILED]
    assert trace.engines == []


def test_attached_to_a_running_manager(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(2, 10, 20), new_tokens=300)
    with case.manager(llama) as manager:
        manager.add_requests(case.inputs, max_new_tokens=300, streaming=True)
        for output in manager:
            if len(output.generated_tokens) > 5:
                break
        recording = attach(manager, trace_path)
        manager.add_request([5] * 10, request_id="late", max_new_tokens=5)
        drain(manager, 3)
        recording.close()
    trace = open_trace(trace_path)
    assert trace.recovery.status == "clean"
    by_id = {name: row for row, name in enumerate(trace.requests.id)}
    for name in ("req_0", "req_1"):
        row = by_id[name]
        assert trace.requests.flags[row] & RequestFlag.SUBMIT_UNSEEN
        # What it had before is not in this trace, and not counted as if it were.
        assert 0 < trace.requests.generated[row] == (trace.tokens.request == row).sum() < 300
    assert not trace.requests.flags[by_id["late"]] & RequestFlag.SUBMIT_UNSEEN
    assert (trace.tokens.request == by_id["late"]).sum() == 5


def test_several_engines_in_one_process_get_a_trace_each(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(2, 10, 20), new_tokens=5)
    with record(trace_path, name="run") as recording:
        case.run(llama)
        case.run(llama)
    assert [path.name for path in recording.paths] == ["run.cbt", "run-2.cbt"]
    for path, name in zip(recording.paths, ("run", "run-2"), strict=True):
        trace = open_trace(path)
        assert_sound(trace)
        assert trace.header.name == name
        assert tokens_by_id(trace) == {"req_0": 5, "req_1": 5}


def test_a_second_engine_never_loses_its_trace_to_a_name_that_is_taken(llama: Any, trace_path: Path) -> None:
    case = Case(prompts(1, 10, 20), new_tokens=3)
    older = trace_path.with_name("run-2.cbt")
    with record(older):
        pass
    before = older.read_bytes()
    with record(trace_path) as recording:
        case.run(llama)
        case.run(llama)
    assert [path.name for path in recording.paths] == ["run.cbt", "run-3.cbt"]
    assert older.read_bytes() == before
    assert tokens_by_id(open_trace(recording.paths[1])) == {"req_0": 3}


def test_a_second_engine_that_cannot_be_recorded_is_told(llama: Any, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    case = Case(prompts(1, 10, 20), new_tokens=3)
    with pytest.warns(RecordingStopped, match="does not record a further engine"), record(folder / "run.cbt"):
        first = case.run(llama)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert case.run(llama) == first


def test_two_engines_at_once_do_not_mix(tmp_path: Path) -> None:
    models = [tiny_llama(), tiny_llama()]
    cases = [Case(prompts(3, 10, 20, seed), new_tokens=10 + seed) for seed in (1, 2)]
    with record(tmp_path / "run.cbt") as recording:
        threads = [threading.Thread(target=case.run, args=(model,)) for case, model in zip(cases, models, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    totals = sorted(sum(tokens_by_id(open_trace(path)).values()) for path in recording.paths)
    assert totals == [33, 36]
    for path in recording.paths:
        assert_sound(open_trace(path))
