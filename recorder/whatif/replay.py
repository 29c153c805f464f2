"""The engine's generation loop, run by hand on a dry engine: recorded requests are handed over when they are due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cbtrace.recorder.whatif.dry_engine import END_TOKEN, DryEngine
from cbtrace.recorder.whatif.workload import ReplayRequest

Due = Callable[[ReplayRequest, int], bool]
"""Whether a request, or its cancellation, is there when the engine prepares step number ``n``."""

_PATIENCE = 3
"""Without a batch or an arrival nothing changes: as many looks in vain show that there will never be a batch."""


class DeadEndError(Exception):
    """Nothing can be scheduled and nothing can be put off: the engine would have died here."""


class Replay:
    """One pass of the engine's loop over a workload.

    ``arrives`` and ``is_cancelled`` say what is due; ``submit`` is told each request just before it is handed over, and
    ``idle`` that the engine has nothing to do until the next one arrives.
    """

    def __init__(
        self,
        engine: DryEngine,
        workload: Sequence[ReplayRequest],
        *,
        arrives: Due,
        is_cancelled: Due,
        submit: Callable[[ReplayRequest], None],
        idle: Callable[[ReplayRequest], None],
    ) -> None:
        self.steps = 0
        self._engine = engine
        self._arrivals = deque(workload)
        self._cancels = deque(sorted((r for r in workload if r.cancel_ns >= 0), key=lambda r: r.cancel_ns))
        self._arrives, self._is_cancelled, self._submit, self._idle = arrives, is_cancelled, submit, idle

    def run(self) -> None:
        """Serve everything.

        Raises:
            DeadEndError: some requests can never be served.
        """
        processor, inputs = self._engine.processor, self._engine.processor.inputs_and_outputs
        bootstrapping = self._engine.is_async
        idle = 0
        while True:
            self._hand_over()
            if self._prepare():
                idle = 0
                processor._generation_step(None)
                self.steps += 1
                if not bootstrapping:
                    processor.update_batch()
                bootstrapping = False
            elif self._arrivals:
                self._idle(self._arrivals[0])
            elif not processor.has_pending_requests():
                break
            elif (idle := idle + 1) > _PATIENCE:
                raise DeadEndError("The engine has requests and never makes a batch of them.")
        if self._engine.is_async and self.steps:
            inputs.current_pair = 1 - inputs.current_pair
            processor.update_batch()

    def _hand_over(self) -> None:
        from transformers.generation.continuous_batching.requests import RequestState

        processor = self._engine.processor
        while self._arrivals and self._arrives(self._arrivals[0], self.steps):
            request = self._arrivals.popleft()
            state = RequestState(
                request_id=request.id,
                initial_tokens=list(request.tokens),
                num_children=request.children,
                max_new_tokens=request.max_new_tokens,
                eos_token_id=END_TOKEN,
            )
            processor.inputs_and_outputs.outputs |= request.outputs
            self._submit(request)
            processor.input_queue.put(state)
        while self._cancels and self._is_cancelled(self._cancels[0], self.steps):
            processor.scheduler.set_request_cancellation(self._cancels.popleft().id)

    def _prepare(self) -> bool:
        try:
            return bool(self._engine.processor.prepare_next_batch())
        except RuntimeError as error:
            raise DeadEndError(str(error)) from error
