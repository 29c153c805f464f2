"""Follows batches: scheduled, prepared, launched, results ready, requests updated."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any

from cbtrace.recorder.admission import Outcome, admission_stop
from cbtrace.recorder.engine import KvAdapter
from cbtrace.recorder.gpu_time import StepTimer
from cbtrace.recorder.hooks import PassingHook
from cbtrace.recorder.request_watch import RequestWatch
from cbtrace.recorder.requests import RequestLedger
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.steps import OpenSteps, StepDraft
from cbtrace.traces.schema import Event, EventKind, Frame, GraphKey, StepFlag

_state_of = attrgetter("state")
# Plain integers: operations on flag enums cost more than all else that is done with them.
_FAST_PATH, _BLOCKED = int(StepFlag.DECODE_FAST_PATH), int(StepFlag.ADMISSION_BLOCKED)
_CAPTURED, _HIT = int(StepFlag.GRAPH_CAPTURED), int(StepFlag.GRAPH_HIT)
_ROSTER_EVERY = 512


class StepWatch:
    """Builds one :class:`~cbtrace.traces.schema.Step` a batch. Runs on the generation thread only.

    The order of calls in a synchronous engine is scheduled, prepared, launched, results_ready, updated; an asynchronous
    one goes through scheduled to launched for the next batch before results_ready and updated of this one.

    Between two of these calls the engine fills the caches with its own code and data, so what they cost is less what
    they do than how much code they do it with: what every step passes through is written out, and not in parts.
    """

    def __init__(
        self,
        sink: Sink,
        ledger: RequestLedger,
        steps: OpenSteps,
        requests: RequestWatch,
        adapter: KvAdapter,
        processor: Any,
        gpu_timer: StepTimer,
        after_step: Callable[[int], int],
    ) -> None:
        self._sink = sink
        self._ledger = ledger
        self._steps = steps
        self._requests = requests
        self._adapter = adapter
        self._has_groups = adapter.groups() is not None
        self._scheduler = processor.scheduler
        self._runner = processor.model_runner
        self._token_budget = int(processor.max_batch_tokens)
        self._base_flags = int(StepFlag.ASYNC) if processor.use_async_batching else 0
        self._gpu_timer = gpu_timer
        self._after_step = after_step
        """Called when it is due; returns when it is due next."""
        self._due_ns = 0
        self._clock, self._epoch_ns = sink.clock, sink.epoch_ns
        self._roster_every = 1 if sink.is_ring else _ROSTER_EVERY
        self._defer = not gpu_timer.reason
        self._finished: list[tuple[StepDraft | None, int, list[Frame]]] = []
        self._forking = False
        self._draft = steps.begin()
        self._current: StepDraft | None = None
        self._under_way = False
        """Between prepared and launched; the engine also computes batches of its own to warm up."""
        self.applying = False
        """Results are being applied: outputs may be out already while their step is not yet written."""
        self._graphs: dict[tuple[bool, int, int], int] = {}
        self._margin_met: bool | None = None
        self._allocation_failed: bool | None = None
        self.while_waiting: list[PassingHook] = []
        """Hooks that only tell why waiting requests were not admitted."""
        self._may_wait = True
        self._steady: list[Any] = []
        """States of the last batch if each of them decoded one token; a batch of the same states is then the same."""
        self._steady_mask = 0

    # Scheduling ------------------------------------------------------------------------------------------------------

    def margin_checked(self, met: Any) -> None:
        """The scheduler compared the free share with its safety margin (Transformers 5.20 and newer)."""
        self._margin_met = bool(met)

    def walked(self, result: Any) -> None:
        """The scheduler walked its candidates; the second value says whether one of them found no KV."""
        self._allocation_failed = bool(result[1])

    def request_waits(self) -> None:
        """A request was handed to the scheduler: from now on, why one that waits is not admitted is of interest."""
        self._may_wait = True
        for hook in self.while_waiting:
            hook.put()

    def scheduled(self, t_ns: int, result: Any, _token: Any) -> None:
        """The scheduler has answered; ``None`` or an empty list is no batch."""
        members, fast_path, queries, kv_read = result
        draft, scheduler, ledger = self._draft, self._scheduler, self._ledger
        draft.attempts += 1
        draft.scheduled = t_ns
        if members:
            draft.first = members[0]
            steady = self._steady
            if len(members) == len(steady) == queries and all(map(is_, map(_state_of, members), steady)):
                draft.decode_mask = self._steady_mask
            else:
                self._take_members(t_ns, members)
        active = scheduler.active_requests
        if len(active) != ledger.admitted:
            self._requests.admit_unscheduled(t_ns, active)
        if members:
            draft.active = len(active)
            draft.kv_free, draft.kv_cached = free, cached = self._adapter.free_and_cached()
            if free < 0 or cached < 0:  # what is no number raises here, too
                raise ValueError("the engine's free KV makes no sense")
            if self._has_groups:
                draft.groups = self._adapter.groups()
            blocked = scheduler.block_new_requests
            draft.flags = self._base_flags | (_FAST_PATH if fast_path else 0) | (_BLOCKED if blocked else 0)
            if scheduler.starved_requests:
                starved = [ledger.current[state.request_id].ordinal for state, _ in scheduler.starved_requests]
                draft.starved = tuple(starved)
            draft.waiting = len(scheduler.waiting_requests_order)
            if self._may_wait or draft.waiting:
                self._tell_waiting(len(members), bool(fast_path), queries, kv_read)
            if not draft.index % self._roster_every and (draft.index % _ROSTER_EVERY == 0 or self._sink.wants_roster):
                self._requests.roster()
        self._margin_met = self._allocation_failed = None

    def _take_members(self, t_ns: int, members: list[Any]) -> None:
        draft, ledger = self._draft, self._ledger
        states = [member.state for member in members]
        keys = list(map(id, states))
        decoding = ledger.decoding
        others = [member for member, key in zip(members, keys, strict=True) if key not in decoding]
        mask = ledger.decode_mask
        if len(members) - len(others) != len(decoding):
            for key in decoding.keys() - keys:
                mask ^= decoding[key].bit
        draft.decode_mask = mask
        for member in others:
            self._take_other(t_ns, member)
        self._steady, self._steady_mask = ([], 0) if others else (states, mask)

    def _take_other(self, t_ns: int, member: Any) -> None:
        """A member that is not known to be decoding: a chunk of prefill, of recomputation, or a first sight."""
        state = member.state
        record = self._requests.record_of(t_ns, state)
        self._draft.add_chunk(record, int(state.position_offset), int(member.query_length), bool(member.has_new_token))
        if member.has_new_token:
            self._ledger.start_decoding(record)
            # A limit of no new tokens is noticed by the engine only once it has one.
            if state._new_tokens_limit <= len(state.generated_tokens):
                self._draft.drop(record)

    def _tell_waiting(self, scheduled: int, fast_path: bool, queries: int, kv_read: int) -> None:
        draft, scheduler, adapter = self._draft, self._scheduler, self._adapter
        if not draft.waiting:
            self._may_wait = False
            for hook in self.while_waiting:
                hook.lift()
            return
        margin_met = adapter.margin_met(scheduler.safety_margin) if self._margin_met is None else self._margin_met
        draft.stop = admission_stop(
            Outcome(
                left_waiting=draft.waiting,
                scheduled=scheduled,
                blocked=scheduler.block_new_requests,
                token_budget=self._token_budget,
                tokens_used=queries,
                cache_budget=adapter.cache_budget,
                cache_used=kv_read,
                decode_fast_path=fast_path,
                request_cap=scheduler.max_requests_per_batch,
                margin_met=margin_met,
                allocation_failed=bool(self._allocation_failed),
                walk_seen=self._allocation_failed is not None,
            )
        )

    def offloading(self, t_ns: int, _args: Any, _kwargs: Any) -> int:
        """Some active requests found no KV: the engine is about to put some of them off."""
        self._requests.offload_begins(self._scheduler.starved_requests)
        return t_ns

    def offloaded(self, t_ns: int, _result: Any, begun: int | None) -> None:
        """It has done so, or found that giving up cached blocks is enough."""
        self._steady = []
        if begun is not None:
            self._requests.offload_ends(t_ns - begun)

    def evicting(self, _t_ns: int, _args: Any, _kwargs: Any) -> int:
        """All cached blocks are about to be given up, for the safety margin or to spare active requests."""
        return self._adapter.free_and_cached()[1]

    def evicted(self, t_ns: int, _result: Any, cached: int | None) -> None:
        """They are free."""
        if cached:
            given_up = cached - self._adapter.free_and_cached()[1]
            self._sink.hold(Event(EventKind.CACHE_EVICTION, t_ns, self._steps.next_index, blocks=given_up))

    def restoring(self, t_ns: int, args: Any, kwargs: Any) -> tuple[int, list[Any]] | None:
        """Members that were on the CPU are about to be copied back."""
        members = [member for member in (*args, *kwargs.values())[0] if member.state.is_cpu_offloaded]
        return (t_ns, members) if members else None

    def restored(self, t_ns: int, _result: Any, token: tuple[int, list[Any]] | None) -> None:
        """The copies are under way (on a GPU they run behind the host's back: the duration is the host's)."""
        if token is not None:
            begun, members = token
            self._requests.restored(t_ns, members, t_ns - begun)

    # Running ---------------------------------------------------------------------------------------------------------

    def padded(self, _t_ns: int, result: Any, token: tuple[bool, ...]) -> None:
        """The batch's sizes were rounded up, if they are at all."""
        if token is None:
            return
        key = (token[0], int(result[0]), int(result[1]))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = len(self._graphs) + 1
            self._sink.hold(GraphKey(graph, *key))
        self._draft.graph = graph

    def padding(self, _t_ns: int, args: Any, kwargs: Any) -> tuple[bool]:
        """Sizes are about to be rounded up; which path the batch takes decides how."""
        return (bool(kwargs["use_decode_fast_path"] if "use_decode_fast_path" in kwargs else args[2]),)

    def prepared(self, t_ns: int, is_step: Any, begun_ns: int) -> None:
        """The inputs are written: the batch is a step. Otherwise the engine has nothing to do."""
        draft = self._draft
        if not is_step:
            draft.attempts = 0
            self.flush()
            return
        draft.start = begun_ns
        draft.prepared = t_ns
        self._under_way = True
        self._steps.launch(draft)

    def computing(self, _t_ns: int, _args: Any, _kwargs: Any) -> None:
        """The forward pass is about to be enqueued."""
        if self._under_way:
            self._gpu_timer.begin(self._draft.index)

    def computed(self, _t_ns: int, _result: Any, _token: Any) -> None:
        """The forward pass is enqueued (on a CPU: done)."""
        if not self._under_way:
            return
        draft = self._draft
        self._gpu_timer.end(draft.index)
        fast_path = draft.flags & _FAST_PATH
        uses_graph = self._runner.use_cuda_graph_decode if fast_path else self._runner.use_cuda_graph_varlen
        if draft.captured:
            draft.flags |= _CAPTURED
        elif uses_graph:
            draft.flags |= _HIT
        self.flush()

    def capturing(self, t_ns: int, _args: Any, _kwargs: Any) -> int:
        """There is no graph for the batch's sizes: it runs once by itself and once to be captured."""
        return t_ns

    def captured(self, t_ns: int, _result: Any, begun: int | None) -> None:
        """The graph is kept for batches of the same sizes."""
        draft = self._draft
        draft.captured = True
        duration = t_ns - begun if begun is not None else -1
        self._sink.hold(Event(EventKind.GRAPH_CAPTURE, t_ns, draft.index, tokens=draft.graph, duration_ns=duration))

    def launched(self, _result: Any) -> None:
        """The launch returned; a synchronous engine has waited for the device here."""
        self._draft.launched = self._clock() - self._epoch_ns
        self._under_way = False
        self._draft = self._steps.begin()

    # Results ---------------------------------------------------------------------------------------------------------

    def results_ready(self, t_ns: int, result: Any, _token: Any) -> None:
        """The host has the results of a batch, the oldest one that is open, and goes on to apply them."""
        self.applying = True
        draft = self._current = self._steps.results_of(result[0])
        self._forking = bool(self._scheduler._requests_to_fork)
        self._requests.ready_ns = t_ns
        if draft is not None:
            draft.ready = t_ns

    def updated(self, t_ns: int, _result: Any, _token: Any) -> None:
        """The results are applied: the step is complete."""
        draft, self._current = self._current, None
        requests = self._requests
        if self._forking:
            requests.forked(t_ns, self._scheduler.active_requests)
        requests.ready_ns = -1
        ends = requests.ends
        if ends:
            requests.ends = []
        if self._defer:
            self._finished.append((draft, t_ns, ends))
        else:
            self._write(draft, t_ns, ends)
        if t_ns >= self._due_ns:
            self._due_ns = self._after_step(t_ns)
        self.applying = False

    def flush(self) -> None:
        """Write the steps that are complete, each followed by the ends it brought.

        Where a device does the work, this is put off until the next batch has been launched: the host then has to wait
        for the device anyway, and the engine does not wait for our write. At most two steps are kept back.
        """
        while self._finished:
            self._write(*self._finished.pop(0))
        self._sink.release()

    def _write(self, draft: StepDraft | None, done: int, ends: list[Frame]) -> None:
        """Write a step together with what is held, or by itself, as most steps are."""
        sink = self._sink
        if draft is not None:
            frame = draft.frame(done, self._gpu_timer.collect(draft.index) if self._defer else -1)
            sink.steps += 1
            sink.cost.end_step()
            if not ends and not sink.held:
                sink.emit(frame)
                return
            sink.hold(frame)
        for end in ends:
            sink.hold(end)
        sink.release()

    def phase(self) -> str:
        """Name what the batch under way does, for an error that ends it."""
        return "prefill" if self._draft.has_prefill else "decode growth"
