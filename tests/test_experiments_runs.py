"""Workloads on real engines, and in static batches: what was planned is what the trace shows, and answers are equal."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.recorder.experiments import (
    AtOnce,
    Bursts,
    Fixed,
    Poisson,
    ReplaySpec,
    SharedPrefix,
    SyntheticSpec,
    Uniform,
    Workload,
    build_workload,
    run_static,
    run_workload,
)
from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.models import generation_config, load_model
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.settings import engine_config
from cbtrace.recorder.experiments.static_batches import BatchQueue
from cbtrace.recorder.experiments.workload import PlannedRequest
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import EndReason, Severity
from test_experiments_workload import AZURE, BURSTGPT, MOONCAKE

pytestmark = pytest.mark.engine
ROOMY = {"page_size": 16, "num_blocks": 200, "max_batch_tokens": 128}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: load_model(ModelSource(f"random:{name}"), Path()) for name in ("tiny", "gemma2-tiny")}


def mixed(**changes: object) -> Workload:
    fields = {"requests": 14, "prompt_tokens": Uniform(low=1, high=90), "new_tokens": Uniform(low=1, high=30)} | changes
    return build_workload(SyntheticSpec(**fields), seed=1, vocabulary=512)  # type: ignore[arg-type]


def continuous(model: Any, workload: Workload, path: Path, end_token: Any = "none", **changes: Any) -> Trace:
    manager = model.init_continuous_batching(
        generation_config=generation_config(Generation(end_token=end_token), model),
        continuous_batching_config=engine_config(ROOMY | changes, "cpu"),
    )
    outcome = run_workload(manager, workload, path)
    manager.stop(block=True, timeout=30)
    assert outcome.complete, (outcome.fatal, outcome.errors, outcome.unfinished)
    return open_trace(path)


def static(model: Any, workload: Workload, path: Path, end_token: Any = "none", **options: Any) -> Trace:
    config = generation_config(Generation(end_token=end_token), model)
    run_static(model, workload, path, generation_config=config, **{"batch_size": 5, **options})
    return open_trace(path)


def answers(trace: Trace) -> dict[str, list[int]]:
    return {name: trace.token_ids[row].tolist() for row, name in enumerate(trace.requests.id)}


def only_info(trace: Trace) -> bool:
    return not [finding for finding in check(trace) if finding.severity > Severity.INFO]


def planned_columns(workload: Workload) -> list[tuple[str, int, int]]:
    return sorted((request.id, len(request.prompt), request.new_tokens) for request in workload.requests)


def recorded_columns(trace: Trace) -> list[tuple[str, int, int]]:
    requests = trace.requests
    return sorted(zip(requests.id, requests.prompt_tokens.tolist(), requests.max_new_tokens.tolist(), strict=True))


@pytest.mark.parametrize("shape", ["tiny", "gemma2-tiny"])
def test_static_and_continuous_batching_give_the_same_tokens(
    models: dict[str, Any], tmp_path: Path, shape: str
) -> None:
    workload = mixed()
    engine = continuous(models[shape], workload, tmp_path / "c.cbt")
    batches = static(models[shape], workload, tmp_path / "s.cbt")
    assert answers(engine) == answers(batches)
    assert len({token for tokens in answers(engine).values() for token in tokens}) > 10, "or equality proves little"
    assert recorded_columns(engine) == recorded_columns(batches) == planned_columns(workload)
    assert [len(answers(batches)[request.id]) for request in workload.requests] == [
        request.new_tokens for request in workload.requests
    ]
    assert only_info(engine) and only_info(batches)


def test_an_end_token_ends_both_alike(models: dict[str, Any], tmp_path: Path) -> None:
    workload = mixed()
    free = answers(static(models["tiny"], workload, tmp_path / "free.cbt"))
    end_token = next(tokens[5] for tokens in free.values() if len(tokens) > 8 and tokens[5] not in tokens[:5])
    batches = static(models["tiny"], workload, tmp_path / "s.cbt", end_token, batch_by="length")
    engine = continuous(models["tiny"], workload, tmp_path / "c.cbt", end_token)
    assert answers(batches) == answers(engine) != free
    reasons = [dict(zip(t.requests.id, t.requests.end_reason.tolist(), strict=True)) for t in (batches, engine)]
    assert reasons[0] == reasons[1] and EndReason.EOS in reasons[0].values()


def test_static_padding_is_what_the_batches_make_it(models: dict[str, Any], tmp_path: Path) -> None:
    prompts, limits = [3, 10, 7, 20, 4], [4, 2, 1, 3, 2]
    requests = tuple(
        PlannedRequest(f"r{n}", list(range(1, prompt + 1)), limit, 0)
        for n, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    )
    trace = static(models["tiny"], Workload("by hand", requests, True, {}), tmp_path / "s.cbt", batch_size=3)
    steps = trace.steps
    # Batch one: 3 rows of 10 tokens, then 3 more passes; requests of 2 and of 1 token drop out on the way.
    # Batch two: 2 rows of 20 tokens, then 2 more passes.
    assert steps.prefill_tokens.tolist() == [20, 0, 0, 0, 24, 0, 0]
    assert steps.decode_tokens.tolist() == [0, 2, 1, 1, 0, 2, 1]
    assert steps.padded_queries.tolist() == [30, 3, 3, 3, 40, 2, 2]
    assert steps.new_tokens.tolist() == [3, 2, 1, 1, 2, 2, 1]
    assert steps.padded_kv.tolist() == [0, 30, 33, 36, 0, 40, 42]
    assert steps.kv_read.tolist() == [0, 13, 4, 5, 0, 24, 21]
    # The cache holds every row to its full width, in both layers.
    unit = trace.engines[0].kv.unit_bytes
    assert (steps.kv_used // unit).tolist() == [60, 66, 72, 78, 80, 84, 88]
    assert steps.waiting.tolist() == [2] * 4 + [0] * 3
    assert only_info(trace)


def test_a_sliding_window_keeps_static_kv_small(models: dict[str, Any], tmp_path: Path) -> None:
    workload = mixed(prompt_tokens=Fixed(tokens=80))
    trace = static(models["gemma2-tiny"], workload, tmp_path / "s.cbt")
    kv = trace.engines[0].kv
    assert {group.name: (group.layers, group.window) for group in kv.groups} == {
        "full_attention": (2, -1),
        "sliding_attention": (4, 32),
    }
    assert trace.steps.kv_free.min() >= 0
    most = int(trace.steps.kv_used.max()) // kv.unit_bytes
    assert most < 6 * 5 * 80, "six full layers would take more"


@pytest.mark.parametrize("arrivals", [AtOnce(), Poisson(per_s=60), Bursts(size=4, every_s=0.1)])
def test_submits_are_those_planned(models: dict[str, Any], tmp_path: Path, arrivals: Any) -> None:
    workload = mixed(arrivals=arrivals, prefix=SharedPrefix(rate=0.5, tokens=20, groups=2))
    trace = continuous(models["tiny"], workload, tmp_path / "c.cbt")
    assert recorded_columns(trace) == planned_columns(workload)
    requests = trace.requests
    planned = dict(zip(requests.id, requests.planned_ns.tolist(), strict=True))
    start = planned[workload.requests[0].id]
    assert [planned[r.id] - start for r in workload.requests] == [r.at_ns for r in workload.requests]
    lag = requests.submit_ns - requests.planned_ns
    assert lag.min() >= 0
    assert float(np.median(lag)) < 50e6, "the submitter is late"
    first_step = trace.step_requests.request[trace.step_requests.step == 0]
    if isinstance(arrivals, AtOnce):
        assert requests.submit_ns.max() <= trace.steps.start_ns[0] and len(first_step) > 1
    facts = trace.header.fingerprint
    assert facts["workload.digest"] == workload.facts["workload.digest"] and facts["workload.requests"] == 14


def test_two_runs_of_one_seed_are_the_same(models: dict[str, Any], tmp_path: Path) -> None:
    one, other = (continuous(models["tiny"], mixed(), tmp_path / f"{name}.cbt") for name in "ab")
    assert one.requests.id == other.requests.id and one.requests.prompt_hash == other.requests.prompt_hash
    assert answers(one) == answers(other)
    # All at once: the schedule is the same, too, step by step.
    assert one.steps.members.tolist() == other.steps.members.tolist()


@pytest.mark.parametrize("text", [AZURE, BURSTGPT, MOONCAKE], ids=["azure", "burstgpt", "mooncake"])
def test_recorded_arrivals_are_replayed(models: dict[str, Any], tmp_path: Path, text: str) -> None:
    (tmp_path / "trace").write_text(text)
    # A prefix is found when its first user has been computed: give that one a second, on a busy machine, too.
    speed = 2 if text is MOONCAKE else 200
    spec = ReplaySpec(file="trace", speed=speed, length_scale=1 / 16, max_new_tokens=8)
    workload = build_workload(spec, seed=1, vocabulary=512, folder=tmp_path)
    trace = continuous(models["tiny"], workload, tmp_path / "c.cbt")
    assert recorded_columns(trace) == planned_columns(workload)
    hits = int(trace.requests.prefix_hit.sum())
    assert hits > 0 if text is MOONCAKE else hits == 0


def test_static_batches_are_made_of_who_has_arrived(models: dict[str, Any], tmp_path: Path) -> None:
    workload = mixed(arrivals=Bursts(size=7, every_s=0.5), new_tokens=Fixed(tokens=4))
    trace = static(models["tiny"], workload, tmp_path / "s.cbt", batch_size=5)
    admissions = trace.admissions
    requests = trace.requests
    assert (admissions.time_ns >= requests.planned_ns[admissions.request]).all()
    assert (requests.submit_ns == requests.planned_ns).all()
    sizes = [len(list(rows)) for _, rows in itertools.groupby(admissions.step.tolist())]
    assert sizes == [5, 2, 5, 2]
    assert only_info(trace)


def test_an_error_in_a_batch_is_in_the_trace(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["tiny"]
    before = model.model.forward
    calls = itertools.count()

    def forward(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise MemoryError("no more")
        return before(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", forward)
    with pytest.raises(MemoryError):
        static(model, mixed(new_tokens=Fixed(tokens=9)), tmp_path / "s.cbt")
    trace = open_trace(tmp_path / "s.cbt")
    assert trace.events.text == ["decode growth: MemoryError", "MemoryError"]
    assert set(trace.requests.end_reason.tolist()) == {EndReason.FAILED, EndReason.RUNNING}
    assert trace.requests.generated.tolist()[:5] == [2] * 5
    assert only_info(trace)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), min_size=1, max_size=25),
    size=st.integers(1, 6),
    by=st.sampled_from(["arrival", "length"]),
)
def test_every_request_is_batched_once_and_none_before_it_arrives(
    requests: list[tuple[int, int]], size: int, by: Any
) -> None:
    planned = tuple(PlannedRequest(f"r{n}", [1] * length, 1, at) for n, (at, length) in enumerate(requests))
    queue = BatchQueue(planned, size, by)
    taken: list[str] = []
    now = 0
    while True:
        queue.arrive(now)
        waiting = queue.waiting_at(now)
        batch = queue.take()
        if batch:
            assert len(batch) == min(size, waiting) and all(request.at_ns <= now for request in batch)
            oldest = min(r.at_ns for r in planned if r.id not in taken)
            assert batch[0].at_ns == oldest, "the oldest must not wait for ever"
            taken += [request.id for request in batch]
            now += 3
        elif (upcoming := queue.next_arrival_ns()) is not None:
            now = upcoming
        else:
            break
    assert sorted(taken) == sorted(request.id for request in planned)
