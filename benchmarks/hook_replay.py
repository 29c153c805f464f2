"""What one step costs in the recorder's hooks, replayed in a tight loop without an engine behind them.

The hooks are the real ones, on objects that only hand out a canned schedule: ``--requests`` requests that decode, and
every ``--join`` steps one that ends and one that joins with a chunk of prefill. Prints microseconds a step by part.

A real engine touches megabytes between two hooks, so that each of them finds its code and data out of the caches;
``--cold`` does the same between the calls of the canned engine, and shows what a step really costs.

    python benchmarks/hook_replay.py --requests 64
    python benchmarks/hook_replay.py --requests 128 --cold
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cbtrace.recorder.cost import CostHistogram
from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.guard import measure_frame
from cbtrace.recorder.options import Options
from cbtrace.recorder.sink import Sink
from cbtrace.traces import TraceWriter
from cbtrace.traces.schema import KvGeometry, KvGroup, Step
from cbtrace.traces.stepcode import pack_times


class State:
    """The part of the engine's request state that hooks read."""

    def __init__(self, name: str, prompt: int) -> None:
        self.request_id = name
        self.initial_tokens = list(range(prompt))
        self.generated_tokens: list[int] = []
        self._true_initial_tokens = 0
        self._eos_token_ids: set[int] = set()
        self._new_tokens_limit = self.max_new_tokens = 10**9
        self.streaming = self.is_cpu_offloaded = False
        self.position_offset = 0
        self.status = self._status = None


class Member:
    """As the engine's FutureRequestState."""

    __slots__ = ("complete_blocks", "has_new_token", "query_length", "state")

    def __init__(self, state: State, queries: int) -> None:
        self.state, self.has_new_token, self.complete_blocks, self.query_length = state, True, 0, queries


class Adapter:
    """A cache that is always half full."""

    name = "canned"
    cache = None
    cache_budget = 65536
    geometry = KvGeometry(1 << 16, 4096, 0, 65536, [KvGroup("full_attention", 16, 1 << 16, 16)])

    def free_and_cached(self) -> tuple[int, int]:
        return 2048, 16

    def groups(self) -> None:
        return None

    def held(self, _request_id: str) -> tuple[int, int]:
        return 4, 4 << 16

    def can_ever_hold(self, _tokens: int) -> bool:
        return True

    def margin_met(self, _margin: float) -> bool:
        return True


class Scheduler:
    """Hands out the batch that was put in ``batch``."""

    def __init__(self) -> None:
        self.active_requests: dict[str, State] = {}
        self.waiting_requests_order: list[str] = []
        self.starved_requests: list[Any] = []
        self._requests_to_fork: list[Any] = []
        self.block_new_requests = False
        self.safety_margin, self.max_requests_per_batch = 0.15, 1024
        self.batch: list[Member] = []

    def _try_to_meet_safety_margin(self) -> bool:
        return True

    def _process_candidates(self, *_: Any) -> Any:
        self._try_to_meet_safety_margin()
        return self.batch, False, False, sum(m.query_length for m in self.batch), 5000

    def schedule_batch(self, _token_budget: int, _cache_budget: int) -> Any:
        batch, _, fast, queries, kv = self._process_candidates()
        return batch, fast, queries, kv

    def add_waiting_request(self, state: State) -> None:
        self.active_requests[state.request_id] = state

    def finish_request(self, request_id: str) -> None:
        del self.active_requests[request_id]

    def clear_cancelled_requests(self) -> list[Any]:
        return []

    def set_request_cancellation(self, _request_id: str) -> None: ...


class Processor:
    """Calls its parts in the engine's order, and does nothing else but to empty the caches if asked to."""

    def __init__(self, cold: bool = False) -> None:
        self._ballast = np.zeros(1 << 20) if cold else np.zeros(0)  # 8 MiB: more than a core's second-level cache
        self.scheduler, self.cache = Scheduler(), None
        self.max_batch_tokens = 8192
        self.use_async_batching, self.model_device = False, "cpu"
        self.cb_config = SimpleNamespace(cpu_offload_space=0.0)
        self.model_runner = SimpleNamespace(
            pad_inputs=False,
            use_cuda_graph_decode=False,
            use_cuda_graph_varlen=False,
            maybe_pad_inputs=lambda q, kv, fast: (q, kv),
            compute_batch=lambda *_: None,
            _capture_graph=lambda *_: None,
        )
        self.offloading_manager = SimpleNamespace(
            offload_requests=lambda: False, restore_scheduled_requests=lambda _: None
        )
        self.inputs_and_outputs = SimpleNamespace(
            compute_stream=None, prepare_batch_update=lambda: (self.scheduler.batch, [], None)
        )
        self.ending: list[str] = []

    def _work(self) -> None:
        if self._ballast.size:
            self._ballast += 1.0

    def prepare_next_batch(self) -> bool:
        self._work()
        self.scheduler.clear_cancelled_requests()
        batch, fast, queries, kv = self.scheduler.schedule_batch(8192, 65536)
        self.offloading_manager.restore_scheduled_requests(batch)
        self.model_runner.maybe_pad_inputs(queries, kv, fast)
        self._work()
        return True

    def _generation_step(self, _model: Any) -> None:
        self._work()
        self.model_runner.compute_batch(None, {})

    def update_batch(self) -> None:
        self._work()
        self.inputs_and_outputs.prepare_batch_update()
        for request_id in self.ending:
            self.scheduler.finish_request(request_id)
        self._work()

    def warmup(self, _model: Any) -> None: ...

    def _handle_request_error(self, *_: Any) -> None: ...


def drive(processor: Processor, steps: int, requests: int, join: int) -> float:
    """Run the schedule; return seconds."""
    scheduler = processor.scheduler
    states = [State(f"req_{n}", 32) for n in range(requests)]
    for state in states:
        scheduler.add_waiting_request(state)
    scheduler.batch = [Member(state, 32) for state in states]
    born = requests
    begun = time.perf_counter()
    for step in range(steps):
        processor.prepare_next_batch()
        processor._generation_step(None)
        processor.ending = [states[0].request_id] if step % join == join - 1 else []
        processor.update_batch()
        if processor.ending:
            states = [*states[1:], State(f"req_{born}", 32)]
            born += 1
            scheduler.add_waiting_request(states[-1])
        batch = [Member(state, 1) for state in states]
        batch[-1].query_length = 32 if processor.ending else 1
        scheduler.batch = batch
    return time.perf_counter() - begun


def watched(folder: Path, number: int, cold: bool, **limits: Any) -> tuple[EngineWatch, Processor]:
    """A processor with the recorder's hooks on it."""
    path = folder / f"{number}.cbt"
    sink = Sink(TraceWriter(path, **limits), path, time.monotonic_ns(), measure_frame())
    watch = EngineWatch(sink, Options(nvml=False))
    processor = Processor(cold)
    watch._watch_processor(processor, Adapter(), watch._gpu_timer(processor))
    watch._requests.adapter = Adapter()
    return watch, processor


def part_costs(folder: Path) -> dict[str, float]:
    """Microseconds of the parts that do not depend on the engine."""
    path = folder / "parts.cbt"
    writer, count = TraceWriter(path), 20_000
    step = Step(1, pack_times(*range(0, 6_000_000, 1_000_000)), -1, b"\xff" * 8, 2048, 16, 0, 64, 0, 0)
    histogram = CostHistogram()

    def timed(act: Any) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            act()
        return (time.perf_counter() - begun) / count * 1e6

    return {
        "encode, checksum and write": timed(lambda: writer.write(step)),
        "pack instants": timed(lambda: pack_times(0, 10, 20, 30, 40, 50)),
        "own cost bookkeeping": timed(histogram.end_step),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--join", type=int, default=40, help="steps between a request that ends and one that joins")
    parser.add_argument("--cold", action="store_true", help="empty the caches between hooks, as an engine does")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    bare, hooked, own = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            bare.append(drive(Processor(options.cold), options.steps, options.requests, options.join))
            watch, processor = watched(Path(folder), number, options.cold)
            hooked.append(drive(processor, options.steps, options.requests, options.join))
            own.append(watch.sink.cost.total_ns / 1e9)
            if not watch.sink.live:
                raise SystemExit("the recording stopped")
            watch.close()
        parts = part_costs(Path(folder))
    scale = 1e6 / options.steps
    cost = statistics.median(h - b for h, b in zip(hooked, bare, strict=True)) * scale
    goal = 20 + 0.2 * options.requests
    print(f"{options.requests} requests, {options.steps} steps, median of {options.rounds} interleaved rounds")
    print(f"  recorder                    {cost:6.1f} us a step   (goal {goal:.1f}: ratio {cost / goal:.2f})")
    print(f"  as its footer would tell    {statistics.median(own) * scale:6.1f} us a step")
    for name, microseconds in parts.items():
        print(f"  {name:<27} {microseconds:6.2f} us")


if __name__ == "__main__":
    main()
