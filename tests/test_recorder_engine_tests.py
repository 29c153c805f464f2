"""What the engine's own tests do to it, under recording: parts that are mocks, patched methods, loops driven by hand.

Each act is run alone and recorded, and must come to the same.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import transformers.generation.continuous_batching as package
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching import scheduler as schedulers
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.requests import RequestState

from cbtrace.recorder import RecordingStopped, record
from cbtrace.traces import open_trace
from cbtrace.traces.invariants import check
from engines import Case, drain, prompts, tiny_llama

pytestmark = pytest.mark.engine

CASE = Case(prompts(5, 10, 40), new_tokens=8)
Act = Callable[[Any], Any]


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


def manager_of(model: Any) -> Any:
    return model.init_continuous_batching(CASE.generation_config(), CASE.config())


def outputs_of(manager: Any) -> list[tuple[Any, str, list[int]]]:
    """Everything that was delivered so far, in order."""
    found = []
    while (output := manager.get_result(timeout=0.01)) is not None:
        found.append((output.request_id, output.status.name, list(output.generated_tokens)))
    return found


def steps_by_hand(processor: Any, manager: Any) -> int:
    steps = 0
    while processor.prepare_next_batch():
        manager._generation_step()
        processor.update_batch()
        steps += 1
    return steps


def state_of(request_id: Any, tokens: list[int], **settings: Any) -> Any:
    return RequestState(request_id=request_id, initial_tokens=tokens, max_new_tokens=6, eos_token_id=-1, **settings)


# The acts ------------------------------------------------------------------------------------------------------------


def loop_by_hand(model: Any) -> Any:
    """The loop driven on this thread, with requests that never went through the queue; one id is a number."""
    manager = manager_of(model)
    processor = manager.batch_processor = manager._create_batch_processor()
    for request_id, tokens in (("a", [1, 2, 3]), (7, [4] * 40), ("b", [5] * 90)):
        processor.scheduler.add_waiting_request(state_of(request_id, tokens))
    return steps_by_hand(processor, manager), outputs_of(manager)


def scheduler_by_hand(model: Any) -> Any:
    """A real scheduler on a real cache, asked without an engine behind it."""
    manager = manager_of(model)
    cache = manager._create_batch_processor().cache
    found: list[Any] = []
    for cls in (schedulers.FIFOScheduler, schedulers.PrefillFirstScheduler):
        scheduler = cls(cache, 0.0, 4)
        for number in range(6):
            scheduler.add_waiting_request(state_of(f"{cls.__name__}{number}", [number] * 30))
        batch, *sizes = scheduler.schedule_batch(64, 4096)
        found.append(([(member.state.request_id, member.query_length) for member in batch], sizes))
        scheduler.set_request_cancellation(f"{cls.__name__}0")
        found.append([state.request_id for state in scheduler.clear_cancelled_requests()])
        for number in range(6):
            scheduler.finish_request(f"{cls.__name__}{number}")
    return found


def processor_of_mocks(_model: Any) -> Any:
    """A processor whose parts are all mocks: some versions build it, some refuse; either way as without."""
    import inspect

    names = list(inspect.signature(ContinuousBatchProcessor.__init__).parameters)[1:]
    try:
        processor = ContinuousBatchProcessor(**{name: MagicMock(name=name) for name in names})
    except Exception as error:
        return type(error)
    processor.scheduler.has_pending_requests.return_value = False
    return sorted(vars(processor)), processor.has_pending_requests()


def mock_for_a_processor(model: Any) -> Any:
    """A manager whose processor is a mock: its methods are called as often as without."""
    manager = manager_of(model)
    manager.batch_processor = MagicMock()
    manager.add_request([1, 2, 3], request_id="a")
    manager.cancel_request("a")
    manager._handle_critical_error(ValueError("planted"), manager.batch_processor)
    calls = [name for name, _, _ in manager.batch_processor.mock_calls]
    return calls, manager.input_queue.qsize(), outputs_of(manager)


def creation_that_is_a_mock(model: Any) -> Any:
    processor = MagicMock()
    processor.use_async_batching = False
    processor.prepare_next_batch.side_effect = RuntimeError("planted")
    with patch.object(ContinuousBatchingManager, "_create_batch_processor", return_value=processor) as create:
        manager = manager_of(model)
        manager.add_request([1, 2, 3], request_id="a")
        manager.start()
        manager._generation_thread.join(timeout=30)
    return create.call_count, [name for name, _, _ in processor.mock_calls], manager.is_running()


def step_that_fails(model: Any) -> Any:
    """The manager's own step is patched on the instance, and raises once some steps were made."""
    manager = manager_of(model)
    step, calls = manager._generation_step, []

    def fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:
            raise ValueError("planted")
        return step(*args)

    with patch.object(manager, "_generation_step", side_effect=fails):
        manager.add_requests(CASE.inputs, max_new_tokens=8)
        manager.start()
        manager._generation_thread.join(timeout=30)
    return len(calls), manager.is_running(), sorted(outputs_of(manager))


def scheduler_that_is_watched(model: Any) -> Any:
    """Methods of a running engine wrapped by mocks, and given back in the middle of a run."""
    manager = manager_of(model)
    processor = manager.batch_processor = manager._create_batch_processor()
    scheduler, names = processor.scheduler, ("schedule_batch", "_process_candidates", "clear_cancelled_requests")
    patches = [patch.object(scheduler, name, wraps=getattr(scheduler, name)) for name in names]
    mocks = [each.start() for each in patches]
    for number, tokens in enumerate(CASE.inputs):
        scheduler.add_waiting_request(state_of(f"a{number}", tokens))
    first = steps_by_hand(processor, manager)
    counts = [mock.call_count for mock in mocks]
    kept = scheduler._process_candidates
    for each in patches:
        each.stop()
    # Whoever kept one of them calls it, and puts it in place again.
    scheduler._process_candidates = lambda *args, **kwargs: kept(*args, **kwargs)
    for number, tokens in enumerate(CASE.inputs):
        scheduler.add_waiting_request(state_of(f"b{number}", tokens))
    return first, counts, steps_by_hand(processor, manager), outputs_of(manager)


def subclasses(model: Any) -> Any:
    """A manager and a scheduler of the user's own; the scheduler does not walk its candidates as the engine's do."""
    seen: list[str] = []

    class OneAtATime(schedulers.FIFOScheduler):
        def _process_candidates(self, candidates: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append("candidates")
            return super()._process_candidates(candidates[:1], *args, **kwargs)

    class Manager(ContinuousBatchingManager):
        def _create_batch_processor(self) -> Any:
            seen.append("create")
            return super()._create_batch_processor()

        def start(self) -> None:
            seen.append("start")
            super().start()

    with (
        patch.dict(schedulers.SCHEDULER_MAPPING, {"fifo": OneAtATime}),
        patch("transformers.generation.continuous_batching.continuous_api.ContinuousBatchingManager", Manager),
    ):
        manager = manager_of(model)
        manager.start()
        ids = manager.add_requests(CASE.inputs, max_new_tokens=8)
        found = [(output.request_id, output.generated_tokens) for output in drain(manager, len(ids))]
        manager.stop(block=True, timeout=30)
    return type(manager).__name__, sorted(found), seen[:2]


def copies_of_a_request(_model: Any) -> Any:
    """States are copied and forked outside of any engine."""
    state = state_of("a", [1, 2, 3], num_children=2)
    return (
        copy.deepcopy(state).request_id,
        state.fork("b").request_id,
        state.create_equivalent_initial_request().request_id,
    )


def everything_public(model: Any) -> Any:
    """The context manager, a batch, a paged ``generate`` and a handler-less stop, one after the other."""
    with model.continuous_batching_context_manager(
        generation_config=CASE.generation_config(), continuous_batching_config=CASE.config()
    ) as manager:
        ids = manager.add_requests(CASE.inputs, max_new_tokens=4)
        first = sorted((output.request_id, output.generated_tokens) for output in drain(manager, len(ids)))
    return first, CASE.run(model), sorted(package.__all__)


ACTS: list[Act] = [
    loop_by_hand,
    scheduler_by_hand,
    processor_of_mocks,
    mock_for_a_processor,
    creation_that_is_a_mock,
    step_that_fails,
    scheduler_that_is_watched,
    subclasses,
    copies_of_a_request,
    everything_public,
]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_it_comes_to_the_same_and_nothing_is_said(act: Act, llama: Any, tmp_path: Path) -> None:
    alone = act(llama)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(tmp_path / "run.cbt") as recording:
            assert act(llama) == alone
    assert [str(each.message) for each in caught if issubclass(each.category, RecordingStopped)] == []
    for path in recording.paths:
        trace = open_trace(path)
        assert trace.footer is not None and trace.footer.reason == "closed"
        expected = set() if trace.engines else {"engine-missing"}
        assert {finding.slug for finding in check(trace) if finding.severity > 1} == expected
