"""Lets a clock run while a dry engine works: each part of a step takes as long as a pace says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cbtrace.recorder.whatif.dry_engine import DryEngine
from cbtrace.recorder.whatif.pace import Clock, Pace, Shape

_NOTHING = Shape(0, 0, 0, 0, 0, 0, 0, 0, 0)


class PredictedTimer:
    """Tells the recorder the device's times, where the model of time knows them. ``reason`` says why it does not."""

    not_ready = 0

    def __init__(self, parts: TimedParts, reason: str) -> None:
        self.reason = reason
        self._parts = parts
        self._by_step: dict[int, int] = {}

    def begin(self, step: int) -> None:
        """The batch is about to be launched."""

    def end(self, step: int) -> None:
        """It was."""
        self._by_step[step] = self._parts.device_ns

    def collect(self, step: int) -> int:
        """Its device time; once."""
        return self._by_step.pop(step, -1)


class TimedParts:
    """Stands around the parts of one dry engine. Hooks of the recorder go around it, and so read its instants.

    The host and the device overlap as they do in the engine: a synchronous one waits for each batch where it launches
    it, an asynchronous one when its results are due, after the next batch was launched.
    """

    def __init__(self, engine: DryEngine, pace: Pace, clock: Clock) -> None:
        self._engine, self._pace, self._clock = engine, pace, clock
        self._inputs = engine.processor.inputs_and_outputs
        self._runner = engine.processor.model_runner
        self._scheduled = _NOTHING
        self._device_free_ns = 0
        self.device_ns = 0
        """The device's time for the batch that was launched last."""
        self._shapes: list[Shape] = [_NOTHING] * self._inputs.pairs
        self._ends = [0] * self._inputs.pairs
        """When the device is done with the batch of each set of inputs."""
        self._wrap(engine.processor.scheduler, "schedule_batch", self._schedule)
        self._wrap(engine.processor.offloading_manager, "offload_requests", self._offload)
        self._wrap(engine.processor.offloading_manager, "restore_scheduled_requests", self._restore)
        self._wrap(self._inputs, "prepare_batch_tensors", self._prepare)
        self._wrap(self._runner, "compute_batch", self._launch)
        self._wrap(self._runner, "_capture_graph", self._capture)
        self._wrap(self._inputs, "prepare_batch_update", self._results)
        self._wrap(engine.processor, "update_batch", self._update)

    @staticmethod
    def _wrap(owner: Any, name: str, stand_in: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: stand_in(original, *args, **kwargs))

    def _schedule(self, original: Any, *args: Any) -> Any:
        result = original(*args)
        members, fast_path = result[0] or [], bool(result[1])
        kv_read = sum(member.state.position_offset for member in members)
        self._scheduled = Shape(
            members=len(members),
            waiting=len(self._engine.processor.scheduler.waiting_requests_order),
            queries=sum(member.query_length for member in members),
            new_tokens=sum(bool(member.has_new_token) for member in members),
            kv_read=kv_read,
            indexed_kv=0 if fast_path else kv_read,
            padded_queries=0,
            padded_kv=0,
            max_batch_tokens=self._engine.processor.max_batch_tokens if self._engine.is_async else 0,
        )
        self._clock.advance(self._pace.schedule(self._scheduled))
        return result

    def _offload(self, original: Any) -> Any:
        starved = [state for state, _ in self._engine.processor.scheduler.starved_requests]
        result = original()
        self._copy(state for state in starved if state.is_cpu_offloaded)
        return result

    def _restore(self, original: Any, members: list[Any]) -> None:
        back = [member.state for member in members if member.state.is_cpu_offloaded]
        original(members)
        self._copy(back)

    def _copy(self, states: Iterable[Any]) -> None:
        tokens = sum(int(state.position_offset) for state in states)
        if tokens:
            self._clock.advance(self._pace.copy(tokens))

    def _prepare(self, original: Any, **batch: Any) -> None:
        original(**batch)
        inputs, runner = self._inputs, self._runner
        graph = runner.use_cuda_graph_decode if inputs.use_block_table else runner.use_cuda_graph_varlen
        shape = self._shapes[inputs.current_pair] = replace(
            self._scheduled,
            padded_queries=int(batch["num_q_tokens"]),
            padded_kv=0 if inputs.use_block_table else int(batch["max_kv_read"]),
            uses_graph=bool(graph),
            captured=bool(graph) and not inputs.has_graph(),
            first_replay=bool(graph) and inputs.is_first_replay(),
        )
        self._clock.advance(self._pace.prepare(shape))

    def _launch(self, original: Any, *args: Any) -> None:
        pair, clock = self._inputs.current_pair, self._clock
        shape = self._shapes[pair]
        begun = max(clock.now_ns, self._device_free_ns)
        if not shape.captured:
            clock.advance(self._pace.launch(shape))
        original(*args)
        # A capture keeps the host busy until the device is done.
        self.device_ns = clock.now_ns - begun if shape.captured else self._pace.device(shape)
        self._device_free_ns = self._ends[pair] = begun + self.device_ns
        if not self._engine.is_async:
            clock.wait_until(self._ends[pair])

    def _capture(self, original: Any) -> None:
        original()
        self._clock.advance(self._pace.capture(self._shapes[self._inputs.current_pair]))

    def _results(self, original: Any) -> Any:
        self._clock.wait_until(self._ends[self._inputs.current_pair])
        return original()

    def _update(self, original: Any) -> None:
        original()
        self._clock.advance(self._pace.update(self._shapes[self._inputs.current_pair]))
