"""Static batching: ``model.generate()`` on padded batches, recorded like an engine.

It is the reference for correctness, and the other side of the question whether continuous batching pays.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cbtrace.recorder.experiments.static_batches import BatchBy, BatchQueue
from cbtrace.recorder.experiments.static_trace import StaticTrace, kv_geometry
from cbtrace.recorder.experiments.workload import PlannedRequest, Workload
from cbtrace.recorder.gpu_time import GpuStepTimer
from cbtrace.recorder.memory import MemoryProbe
from cbtrace.recorder.model_facts import generation_setting_facts
from cbtrace.recorder.nvml import NvmlSampler, identify_gpu
from cbtrace.traces.schema import EndReason, Scalar


def run_static(
    model: Any,
    workload: Workload,
    path: str | os.PathLike[str],
    *,
    generation_config: Any,
    batch_size: int,
    batch_by: BatchBy = "arrival",
    name: str = "static",
    tags: Mapping[str, str] | None = None,
    facts: Mapping[str, Scalar] | None = None,
    overwrite: bool = False,
    token_ids: bool = True,
) -> dict[str, list[int]]:
    """Generate a workload in static batches and record it. Return the generated tokens by request; they are also
    stored in the trace unless ``token_ids=False``.

    A batch is left-padded and goes through ``model.generate()``; each of its requests has its own limit, and the batch
    goes on until the last one has ended. When the next batch begins and who is in it is said by :class:`BatchQueue`.

    Raises:
        cbtrace.traces.CbtraceError: the trace cannot be created.
        Exception: whatever ends generation, running out of memory for one; the trace holds what came before.
    """
    trace = StaticTrace(
        path,
        name=name,
        tags=tags or {},
        facts={**workload.facts, **(facts or {})},
        overwrite=overwrite,
        token_ids=token_ids,
    )
    try:
        return StaticRunner(model, workload, trace, generation_config, batch_size, batch_by).run()
    finally:
        trace.sink.close()


class StaticRunner:
    """Runs one workload on one model, batch after batch."""

    def __init__(
        self,
        model: Any,
        workload: Workload,
        trace: StaticTrace,
        generation_config: Any,
        batch_size: int,
        batch_by: BatchBy,
    ) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.pending = 0
        """Requests of the batch under way that have not ended."""
        self._model = model
        self._workload = workload
        self._trace = trace
        self._generation_config = generation_config
        self._queue = BatchQueue(workload.requests, batch_size, batch_by)
        self._memory = MemoryProbe(model.device, trace.sink.now)
        self._settings: dict[str, Scalar] = {"batch_size": batch_size, "batch_by": batch_by}

    def run(self) -> dict[str, list[int]]:
        """Run to the last request."""
        sink, requests = self._trace.sink, self._workload.requests
        nvml = NvmlSampler(sink.emit, sink.now, identify_gpu(self._model.device))
        longest = max(len(request.prompt) for request in requests) + max(request.new_tokens for request in requests)
        size = min(int(self._settings["batch_size"] or 1), len(requests))
        sink.emit(self._memory.mark("model_loaded"))
        self._trace.engine(
            self._model,
            self._settings,
            generation_setting_facts(self._generation_config),
            kv_geometry(self._model, size, longest),
        )
        sink.emit(self._memory.mark("before_first_request"))
        nvml.start()
        try:
            self._run_batches(sink.now())
        finally:
            nvml.stop()
        return self.tokens

    def _run_batches(self, start_ns: int) -> None:
        sink = self._trace.sink
        while True:
            now = sink.now()
            for request in self._queue.arrive(now - start_ns):
                self._trace.submitted(request, start_ns + request.at_ns, now)
            batch = self._queue.take()
            if batch:
                self._run_batch(batch, start_ns)
                continue
            upcoming = self._queue.next_arrival_ns()
            if upcoming is None:
                return
            time.sleep(max(0, start_ns + upcoming - sink.now()) / 1e9)

    def _run_batch(self, batch: list[PlannedRequest], start_ns: int) -> None:
        run = _Batch(self._model, batch, self._trace, self._memory, self._generation_config.eos_token_id)
        self.pending = len(batch)
        run.waiting_at = lambda t_ns: self._queue.waiting_at(t_ns - start_ns)
        try:
            run.generate(self._generation_config)
        except BaseException as error:
            self._trace.failed(error, run.phase)
            for row in run.unfinished():
                now = self._trace.sink.now()
                self._trace.ended(batch[row], now, run.tokens[row], EndReason.FAILED, type(error).__name__)
            raise
        self.pending = 0
        self.tokens |= {request.id: tokens for request, tokens in zip(batch, run.tokens, strict=True)}


class _Batch:
    """One call of ``generate``, watched through hooks around the forward pass and a stopping criterion.

    The criterion is where the host waits for the tokens of a step anyway, to know whether to go on.
    """

    def __init__(
        self, model: Any, batch: list[PlannedRequest], trace: StaticTrace, memory: MemoryProbe, end_tokens: Any
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in batch]
        self.waiting_at: Any = lambda _t_ns: 0
        self._model, self._batch, self._trace, self._memory = model, batch, trace, memory
        self._end_tokens = set(end_tokens if isinstance(end_tokens, (list, tuple)) else [end_tokens])
        self._ended = [False] * len(batch)
        self._width = max(len(request.prompt) for request in batch)
        self._timer = GpuStepTimer(lambda: None, model.device)
        self._begun_ns = self._prepared_ns = self._launched_ns = 0
        self._kv_units = 0

    @property
    def phase(self) -> str:
        """What an error would have come in."""
        return "decode growth" if self.tokens[0] else "prefill"

    def unfinished(self) -> list[int]:
        """Rows whose requests have not ended."""
        return [row for row, ended in enumerate(self._ended) if not ended]

    def generate(self, generation_config: Any) -> None:
        """Run the batch to its end."""
        import torch

        self._begun_ns = self._trace.sink.now()
        for row, request in enumerate(self._batch):
            self._trace.admitted(request, row, self._begun_ns)
        padding = [self._width - len(request.prompt) for request in self._batch]
        rows = [[0] * pad + request.prompt for pad, request in zip(padding, self._batch, strict=True)]
        mask = [[0] * pad + [1] * (self._width - pad) for pad in padding]
        settings = copy.deepcopy(generation_config)
        settings.max_new_tokens = max(request.new_tokens for request in self._batch)
        with torch.no_grad(), self._hooked():
            self._model.generate(
                torch.tensor(rows, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                generation_config=settings,
                stopping_criteria=[self._results],
            )

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        before = self._model.register_forward_pre_hook(self._forward_begins)
        after = self._model.register_forward_hook(self._forward_ends)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _forward_begins(self, _model: Any, _args: Any) -> None:
        self._prepared_ns = self._trace.sink.now()
        self._timer.begin(self._trace.next_step)

    def _forward_ends(self, _model: Any, _args: Any, output: Any) -> None:
        self._timer.end(self._trace.next_step)
        self._launched_ns = self._trace.sink.now()
        self._kv_units = _tokens_in_cache(output)

    def _results(self, input_ids: Any, _scores: Any, **_kwargs: Any) -> Any:
        """Take the tokens of the step to the host; return which rows are done."""
        import torch

        newest = input_ids[:, -1].tolist()
        ready_ns = self._trace.sink.now()
        members = self.unfinished()
        first = not self.tokens[0]
        self._write_step(members, first, ready_ns)
        for row in members:
            self._take(row, newest[row], ready_ns)
        now = self._trace.sink.now()
        if now >= self._memory.next_ns:
            self._trace.sink.emit(self._memory.sample(now))
        self._begun_ns = self._trace.sink.now()
        return torch.tensor(self._ended, device=input_ids.device)

    def _write_step(self, members: list[int], first: bool, ready_ns: int) -> None:
        lengths = {row: len(self._batch[row].prompt) + len(self.tokens[row]) for row in members}
        rows, generated = len(self._batch), max(map(len, self.tokens))
        # Of its own newest token a request has no KV before the step, as in every trace.
        before = 0 if first else sum(length - 1 for length in lengths.values())
        padded_before = 0 if first else rows * (self._width + generated - 1)
        scheduled_ns = self._begun_ns
        self._trace.step(
            (self._begun_ns, scheduled_ns, self._prepared_ns, self._launched_ns, ready_ns, self._trace.sink.now()),
            prefill={self._batch[row].id: lengths[row] for row in members} if first else {},
            decode_rows=[] if first else members,
            padded=(rows * self._width if first else rows, padded_before),
            real=(sum(lengths.values()) if first else len(members), before),
            gpu_ns=self._timer.collect(self._trace.next_step),
            kv_used=self._kv_units,
            waiting=self.waiting_at(ready_ns),
        )

    def _take(self, row: int, token: int, ready_ns: int) -> None:
        request, tokens = self._batch[row], self.tokens[row]
        tokens.append(token)
        by_end_token = token in self._end_tokens
        if by_end_token or len(tokens) >= request.new_tokens:
            self._ended[row] = True
            self._trace.ended(request, ready_ns, tokens, EndReason.EOS if by_end_token else EndReason.LENGTH)


def _tokens_in_cache(output: Any) -> int:
    """KV entries in the cache of a batch, summed over rows and layers; it has had two names in Transformers."""
    cache = getattr(output, "cache", None) or getattr(output, "past_key_values", None)
    keys = [getattr(layer, "keys", None) for layer in getattr(cache, "layers", [])]
    return sum(key.shape[0] * key.shape[2] for key in keys if key is not None and key.dim() == 4)
