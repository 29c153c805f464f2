"""Everything that is watched of one engine: its manager, its processor, its memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cbtrace.recorder.engine import KvAdapter, adapter_for
from cbtrace.recorder.engine.classes import is_processor
from cbtrace.recorder.gpu_time import GpuStepTimer, StepTimer
from cbtrace.recorder.guard import guarded, noting, spanning
from cbtrace.recorder.hooks import HookSet, PassingHook
from cbtrace.recorder.memory import MemoryProbe
from cbtrace.recorder.memory_model import predicted_memory
from cbtrace.recorder.model_facts import config_facts, generation_facts, model_facts
from cbtrace.recorder.nvml import NvmlSampler, identify_gpu
from cbtrace.recorder.options import Options
from cbtrace.recorder.request_watch import RequestWatch
from cbtrace.recorder.requests import RequestLedger
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.step_watch import StepWatch
from cbtrace.recorder.steps import OpenSteps
from cbtrace.recorder.supported import is_verified
from cbtrace.traces.schema import Clock, Engine, Event, EventKind, Facts, Severity

_CLOCK_EVERY_NS = 10_000_000_000
_PATIENCE_S = 0.5


class EngineWatch:
    """Records one manager into one trace. Handlers are called by the hooks of :mod:`cbtrace.recorder.attach` for what
    happens before the engine exists, and by hooks on the engine's own objects from then on."""

    def __init__(self, sink: Sink, options: Options, planned: Mapping[str, int] | None = None) -> None:
        self.sink = sink
        self.hooks = HookSet()
        self.requested: Facts = {}
        self.keeps_engine = False
        """The manager was told to keep its engine for the next session when it was last stopped."""
        self._options = options
        self._ledger = RequestLedger()
        self._steps = OpenSteps()
        self._requests = RequestWatch(
            sink, self._ledger, self._steps, keep_token_ids=options.token_ids, planned=planned
        )
        self._requests.on_first_visible = self._first_visible
        self._step_watch: StepWatch | None = None
        self._timer: StepTimer | None = None
        self._processor: Any = None
        self._processor_hooks = HookSet()
        self._engine_seen = False
        self._engine_lock = threading.RLock()
        self._memory: MemoryProbe | None = None
        self._nvml: NvmlSampler | None = None
        self._next_clock_ns = 0
        self._phase = ""
        self._submitting = threading.local()
        self._queue: Any = None

    # Called for the manager ------------------------------------------------------------------------------------------

    def created(self, manager: Any) -> None:
        """The manager exists: from here on its requests can be seen when they are submitted. One that is older than the
        recording may have its engine already."""
        queue = getattr(manager, "input_queue", None)
        if queue is not None and self._queue is None:
            self._queue = queue
            self.hooks.add(queue, "put", guarded(self.sink, before=self._queued), label="input_queue.put")
        processor = getattr(manager, "batch_processor", None)
        if not self._engine_seen and is_processor(processor):
            with self._engine_lock:
                if not self._engine_seen:
                    self.engine_created(manager, processor)

    def submit_begins(self, t_ns: int) -> None:
        """``add_request`` was entered on this thread."""
        self._submitting.since = t_ns

    def _queued(self, t_ns: int, args: Any, kwargs: Any) -> None:
        state = args[0] if args else kwargs["item"]
        since = getattr(self._submitting, "since", None)
        self._submitting.since = None
        self._requests.submitted(state, t_ns if since is None else since)

    def cancel_requested(self, t_ns: int, request_id: Any) -> None:
        """``cancel_request`` was called."""
        self._requests.cancel_requested(t_ns, request_id)

    def session(self, t_ns: int, kind: EventKind) -> None:
        """The generation thread was started or stopped."""
        self._event(kind, t_ns)

    def cache_begins(self, manager: Any) -> None:
        """The engine's processor, and with it the cache, is about to be created, unless it exists already."""
        if getattr(manager, "batch_processor", None) is None:
            self._phase = "cache creation"
            self.sink.emit(self._probe(manager).mark("model_loaded"))

    def inputs_begin(self) -> None:
        """The cache exists; the static inputs are next."""
        self._phase = "input creation"
        if self._memory is not None:
            self.sink.emit(self._memory.mark("cache_created"))

    def engine_created(self, manager: Any, processor: Any) -> None:
        """A processor was created, or an old one reset for a new session. Idempotent."""
        self._phase = ""
        if not is_processor(processor):
            return
        with self._engine_lock:
            if self._engine_seen:
                self._requests.dropped(self.sink.now())
            if processor is self._processor:
                return
            self._leave_engine()
            self._processor, self._engine_seen = processor, True
            self.created(manager)
            adapter = adapter_for(processor.cache)
            self._watch_processor(processor, adapter, self._gpu_timer(processor))
            self._write_engine(manager, processor, adapter)
            self.sink.emit(self._probe(manager).mark("inputs_created"))
            self._requests.engine_ready(adapter)
            self._start_nvml(manager)

    def replay_begins(self, manager: Any, processor: Any, timer: StepTimer) -> KvAdapter:
        """Watch an engine that computes nothing, on a clock of its own. Memory, GPU and wall clock are not sampled, and
        who replays it writes the frame of the engine."""
        self._engine_seen, self._processor = True, processor
        self._next_clock_ns = sys.maxsize
        self.created(manager)
        adapter = adapter_for(processor.cache)
        self._watch_processor(processor, adapter, timer)
        self._requests.engine_ready(adapter)
        return adapter

    def thread_ended(self) -> None:
        """The generation thread has ended after a stop, which is about to give the engine's memory back unless the
        engine is kept: then so do we, or its KV cache would stay in memory until the end of the recording."""
        if not self.keeps_engine:
            self._leave_engine()
        elif self._step_watch is not None:
            self._step_watch.flush()

    def manager_gone(self) -> None:
        """The manager is garbage, and its engine with it. Called by the garbage collector, on any thread and perhaps
        amid our own work: so nothing is written."""
        self._let_go()

    def _leave_engine(self) -> None:
        self._let_step_finish()
        steps, timer = self._let_go()
        if steps is not None:
            steps.flush()
        if timer is not None:
            self._tell_gpu_time(timer)

    def _let_go(self) -> tuple[StepWatch | None, StepTimer | None]:
        self._processor_hooks.remove()
        steps, timer = self._step_watch, self._timer
        self._processor = self._step_watch = self._timer = self._requests.adapter = None
        return steps, timer

    def fatal(self, t_ns: int, error: BaseException, processor: Any) -> None:
        """The generation loop dies of this error."""
        if self._step_watch is not None:
            self._step_watch.flush()
        self.out_of_memory(t_ns, error)
        self._event(EventKind.FATAL_ERROR, t_ns, text=type(error).__name__)
        if processor is None:
            for record in self._ledger.not_yet_visible():
                if record.state is not None:
                    self._requests.failed(t_ns, error, record.state)

    def out_of_memory(self, t_ns: int, error: BaseException) -> None:
        """Note an error that is one of memory, with the phase it came in. The same error may pass several hooks."""
        if not is_out_of_memory(error) or getattr(error, "_cbtrace_noted", False):
            return
        error._cbtrace_noted = True  # type: ignore[attr-defined]
        phase = self._phase or (self._step_watch.phase() if self._step_watch is not None else "unknown")
        self._event(EventKind.OUT_OF_MEMORY, t_ns, text=f"{phase}: {type(error).__name__}")

    def close(self, ended_by: str = "") -> None:
        """Give every hooked method back, stop sampling, end the trace; see :meth:`Sink.close`."""
        self.hooks.remove()
        try:
            self._leave_engine()
            if self._nvml is not None:
                self._nvml.stop()
            if self._engine_seen:
                self._requests.last_roster()
                self.sink.release()
            self._tell_losses()
            if self._memory is not None:
                self._memory.close()
        except Exception as error:
            self.sink.fail(error)
        self.sink.close(ended_by)

    def _let_step_finish(self) -> None:
        """Whoever has just received a last token may close at once, while the engine still applies that very step."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._step_watch is not None and self._step_watch.applying and time.monotonic() < deadline:
            time.sleep(0.0005)

    # Set up ----------------------------------------------------------------------------------------------------------

    def _probe(self, manager: Any) -> MemoryProbe:
        if self._memory is None:
            device = getattr(manager.model, "device", "cpu")
            self._memory = MemoryProbe(device, self.sink.now, keep_user_peaks=self._options.keep_user_peaks)
        return self._memory

    def _start_nvml(self, manager: Any) -> None:
        if self._nvml is None and self._options.nvml:
            self._nvml = NvmlSampler(self.sink.emit, self.sink.now, identify_gpu(manager.model.device))
            self._nvml.start()

    def _gpu_timer(self, processor: Any) -> StepTimer:
        device = processor.model_device if self._options.gpu_time else "cpu"
        return GpuStepTimer(lambda: processor.inputs_and_outputs.compute_stream, device)

    def _watch_processor(self, processor: Any, adapter: KvAdapter, timer: StepTimer) -> None:
        sink, requests = self.sink, self._requests
        self._processor_hooks = hooks = HookSet()
        self._timer = timer
        steps = StepWatch(sink, self._ledger, self._steps, requests, adapter, processor, timer, self._after_step)
        self._step_watch = steps
        scheduler, runner, offloading = processor.scheduler, processor.model_runner, processor.offloading_manager

        def watch(owner: Any, name: str, **handlers: Callable[..., Any]) -> None:
            hooks.add(owner, name, guarded(sink, **handlers), label=_label(owner, name))

        def keep(owner: Any, name: str, note: Callable[[Any], None]) -> PassingHook:
            return hooks.add_passing(owner, name, noting(sink, note), label=_label(owner, name))

        prepare = "prepare_next_batch"
        hooks.add(processor, prepare, spanning(sink, steps.prepared), label=_label(processor, prepare))
        watch(scheduler, "add_waiting_request", before=self._request_waits)
        # What cannot happen with this engine's settings, or not now, is not listened to: each hook costs every step.
        steps.while_waiting = [keep(scheduler, "_process_candidates", steps.walked)]
        if hasattr(scheduler, "_try_to_meet_safety_margin"):
            steps.while_waiting.append(keep(scheduler, "_try_to_meet_safety_margin", steps.margin_checked))
        watch(scheduler, "schedule_batch", after=steps.scheduled)
        watch(scheduler, "finish_request", before=lambda t, a, k: requests.finished(t, (*a, *k.values())[0]))
        self._watch_cancels(scheduler)
        watch(offloading, "offload_requests", before=steps.offloading, after=steps.offloaded)
        if hasattr(processor.cache, "evict_cached_blocks"):
            watch(processor.cache, "evict_cached_blocks", before=steps.evicting, after=steps.evicted)
        if getattr(processor.cb_config, "cpu_offload_space", None) != 0:
            watch(offloading, "restore_scheduled_requests", before=steps.restoring, after=steps.restored)
        if runner.pad_inputs:
            watch(runner, "maybe_pad_inputs", before=steps.padding, after=steps.padded)
        if runner.pad_inputs or not timer.reason:
            watch(runner, "compute_batch", before=steps.computing, after=steps.computed, failed=self._broke)
            watch(runner, "_capture_graph", before=steps.capturing, after=steps.captured)
        keep(processor, "_generation_step", steps.launched)
        watch(processor.inputs_and_outputs, "prepare_batch_update", after=steps.results_ready)
        watch(processor, "update_batch", after=steps.updated)
        watch(processor, "_handle_request_error", before=self._request_failed)
        watch(processor, "warmup", before=self._warmup_begins, after=self._warmup_ended, failed=self._warmup_failed)

    def _watch_cancels(self, scheduler: Any) -> None:
        """Listen to what the scheduler takes out of its queues, from each cancellation to the next time it does."""

        def cancelled(states: list[Any]) -> None:
            if cancelling:
                clearing.lift()
            if states:
                self._requests.cancelled(states)

        name, hooks = "clear_cancelled_requests", self._processor_hooks
        clearing = hooks.add_passing(scheduler, name, noting(self.sink, cancelled), label=_label(scheduler, name))
        name = "set_request_cancellation"
        asked = guarded(self.sink, before=lambda _t, _args, _kwargs: clearing.put())
        cancelling = hooks.add(scheduler, name, asked, label=_label(scheduler, name))

    def _write_engine(self, manager: Any, processor: Any, adapter: KvAdapter) -> None:
        version, verified = is_verified()
        config = manager.continuous_batching_config
        predicted, reason = predicted_memory(processor.cache, config, manager.model)
        missing = [*self.hooks.missing, *self._processor_hooks.missing]
        engine = Engine(
            t_ns=self.sink.now(),
            adapter=adapter.name,
            verified=verified,
            requested=self.requested,
            resolved=config_facts(config) | effective_settings(processor),
            model=model_facts(manager.model, paths=self._options.paths),
            generation=generation_facts(manager.generation_config, manager),
            kv=adapter.geometry,
            missing=missing,
            predicted_memory=predicted,
        )
        self.sink.emit(engine)
        if not verified:
            text = f"Transformers {version} is not one that cbtrace was tested on: figures may be wrong."
            self.sink.notice("unverified-version", Severity.WARNING, text)
        self.sink.tell_missing(missing)
        if reason:
            self.sink.notice("memory-model-unknown", Severity.INFO, reason)

    # Handlers --------------------------------------------------------------------------------------------------------

    def _after_step(self, t_ns: int) -> int:
        """Take what is due; return when something is due next."""
        if t_ns >= self._next_clock_ns:
            self._next_clock_ns = t_ns + _CLOCK_EVERY_NS
            self.sink.hold(Clock(self.sink.now(), time.time_ns()))
        if self._memory is None:
            return self._next_clock_ns
        self.sink.hold(self._memory.sample(t_ns))
        return min(self._next_clock_ns, self._memory.next_ns)

    def _request_waits(self, t_ns: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._step_watch is not None:
            self._step_watch.request_waits()
        self._requests.visible(t_ns, (*args, *kwargs.values())[0])

    def _first_visible(self) -> None:
        self._requests.on_first_visible = lambda: None
        if self._memory is not None:
            self.sink.hold(self._memory.mark("before_first_request"))

    def _request_failed(self, t_ns: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        error, state = [*args, *kwargs.values()]
        self._requests.failed(t_ns, error, state)

    def _warmup_begins(self, t_ns: int, _args: Any, _kwargs: Any) -> int:
        self._phase = "warm-up"
        self._event(EventKind.WARMUP_BEGIN, t_ns)
        return t_ns

    def _warmup_ended(self, t_ns: int, _result: Any, begun: int | None) -> None:
        self._phase = ""
        self._event(EventKind.WARMUP_END, t_ns, duration_ns=t_ns - begun if begun is not None else -1)
        if self._memory is not None:
            self.sink.emit(self._memory.mark("warmed_up"))

    def _warmup_failed(self, t_ns: int, error: BaseException, begun: int | None) -> None:
        self.out_of_memory(t_ns, error)
        self._warmup_ended(t_ns, None, begun)

    def _broke(self, t_ns: int, error: BaseException, _token: Any) -> None:
        self.out_of_memory(t_ns, error)

    def _tell_losses(self) -> None:
        """Say which figures are absent or have gaps, and why."""
        nvml, memory = self._nvml, self._memory
        if nvml is not None and nvml.reason:
            self._tell("no-nvml", nvml.reason)
        for field, count in sorted(nvml.errors.items()) if nvml is not None else ():
            self._tell("no-nvml", f"{count} readings of {field} failed")
        for reason in memory.reasons if memory is not None else ():
            self._tell("memory-unread", reason)

    def _tell_gpu_time(self, timer: StepTimer) -> None:
        if timer.reason:
            self._tell("no-gpu-time", timer.reason)
        if timer.not_ready:
            self._tell("no-gpu-time", f"the GPU time of {timer.not_ready} steps was not ready when their results were")

    def _tell(self, slug: str, text: str) -> None:
        self.sink.notice(slug, Severity.INFO, text)

    def _event(self, kind: EventKind, t_ns: int, *, duration_ns: int = -1, text: str = "") -> None:
        self.sink.emit(Event(kind, t_ns, self._steps.next_index, duration_ns=duration_ns, text=text))


def effective_settings(processor: Any) -> Facts:
    """Settings that only the running engine knows: a scheduler without a margin of its own takes its class's."""
    scheduler = processor.scheduler
    return {
        "safety_margin": float(scheduler.safety_margin),
        "scheduler": type(scheduler).__name__,
        "max_batch_tokens": int(processor.max_batch_tokens),
        "use_prefix_sharing": bool(processor.cache.use_prefix_sharing),
    }


def _label(owner: Any, method: str) -> str:
    return f"{type(owner).__name__}.{method}"


def is_out_of_memory(error: BaseException) -> bool:
    """Torch raises a class of its own, the engine's sizing a ``MemoryError``; neither is imported to be recognized."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
