"""How large a trace is, what writing it costs, and how fast it is read.

``python benchmarks/trace_size.py`` measures what is promised (64 requests, 10,000 steps, at most 1.0 byte a generated
token and 64 bytes a step when nothing changes) and exits with 1 if that does not hold; then runs of shorter answers, in
which requests are replaced as they end. ``--steps N --requests N --tokens FROM TO`` measures another run instead, and
``--engine TOKENS`` the recording of a real engine on the CPU.

The runs are synthetic, with full-size values: nanoseconds of hours, KV units in thousands, a GPU time in each step;
submissions, admissions, chunks, ends and rosters are all counted. JSON beside it: one line a token, with the request's
number and the time, as a recorder without steps would write it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from cbtrace.traces import TraceWriter, open_trace
from cbtrace.traces.codec import decode, encode
from cbtrace.traces.frames import PREAMBLE_BYTES, Damage, FrameScanner, seal
from cbtrace.traces.schema import (
    Admit,
    ChunkFlag,
    End,
    EndReason,
    Engine,
    Footer,
    Frame,
    Header,
    KvGeometry,
    KvGroup,
    Request,
    Roster,
    Step,
    StepDetail,
    Visible,
)
from cbtrace.traces.stepcode import pack_chunks, pack_slots, pack_times

STEP_NS = 11_000_000
START_NS = 3 * 3600 * 10**9
ROSTER_EVERY = 512


@dataclass
class Slot:
    request: int = -1
    serial: int = -1
    left: int = 0
    length: int = 0


class Workload:
    """A decode-heavy run: every slot is always taken, by the next request when one has ended."""

    def __init__(self, steps: int, requests: int, tokens: tuple[int, int]) -> None:
        self.chance = random.Random(20)
        self.steps, self.tokens = steps, tokens
        self.slots = [Slot() for _ in range(requests)]
        self.submitted = self.serial = self.now = 0
        self.token_times: list[tuple[int, int]] = []

    def frames(self) -> list[Frame]:
        frames: list[Frame] = [header(), engine()]
        self.now = START_NS
        for index in range(self.steps):
            chunks = [self._replace(slot, index, frames) for slot in self.slots if not slot.left]
            frames.append(self._step(index, [chunk for chunk in chunks if chunk]))
            if index % ROSTER_EVERY == ROSTER_EVERY - 1:
                frames.append(self._roster(index + 1))
        frames.append(Footer(self.now, "closed", self.steps, self.submitted, len(frames) + 1, 10**9, 70_000, 600_000))
        return frames

    def _replace(self, slot: Slot, index: int, frames: list[Frame]) -> int:
        if slot.request >= 0:
            frames.append(End(slot.request, self.now, index, EndReason.LENGTH, slot.length, 20, bytes(8)))
        request, place = self.submitted, self.slots.index(slot)
        slot.request, slot.serial = request, self.serial
        slot.left = slot.length = self.chance.randint(*self.tokens)
        self.submitted += 1
        self.serial += 1
        frames.append(Request(request, f"req_{request}", 0, -1, 200, slot.length, self.now, prompt_hash=bytes(8)))
        frames.append(Visible(request, self.now))
        frames.append(Admit(slot.serial, request, place, index, self.now, 0, 0, 0, 0))
        return place + 1

    def _step(self, index: int, new: list[int]) -> Step:
        began = [self.slots[place - 1] for place in new]
        chunks = pack_chunks((slot.request, 200, 0, int(ChunkFlag.NEW_TOKEN)) for slot in began)
        decoding = [place for place, slot in enumerate(self.slots) if slot not in began]
        jitter = self.chance.randint(0, 500_000)
        offsets = (0, 400_000, 900_000, 1_300_000, 10_000_000 + jitter, 10_400_000 + jitter)
        instants = [self.now + offset for offset in offsets]
        self.now += STEP_NS + jitter
        for slot in self.slots:
            slot.left -= 1
            self.token_times.append((slot.request, instants[4]))
        free, cached = self.chance.randint(2000, 9000), self.chance.randint(200, 900)
        detail = StepDetail(chunks) if chunks else None
        gpu = 9_000_000 + jitter
        slots = pack_slots(decoding)
        return Step(index, pack_times(*instants), gpu, slots, free, cached, 300, len(self.slots), 1, 3, 5, detail)

    def _roster(self, step: int) -> Roster:
        pairs = [value for place, slot in enumerate(self.slots) for value in (place, slot.request)]
        done = [slot.length - slot.left for slot in self.slots]
        return Roster(step, self.serial, pairs, [slot.serial for slot in self.slots], [200 + n for n in done], done)


def header() -> Header:
    return Header("0123456789abcdef", "size", {}, "0", 1, 1, 0, 1, [], {f"fact.{n}": "value" * 3 for n in range(80)})


def engine() -> Engine:
    groups = [KvGroup("full_attention", 32, 1 << 21, 256)]
    geometry = KvGeometry(1 << 21, 12_000, 1 << 21, 3_000_000, groups)
    facts = {f"setting_{n}": n for n in range(60)}
    return Engine(0, "blocks", True, facts, facts, facts, facts, geometry, [], {})


def json_size(workload: Workload) -> int:
    return sum(len(json.dumps([request, at], separators=(",", ":"))) + 1 for request, at in workload.token_times)


def write_cost(frames: list[Frame], folder: Path) -> tuple[int, list[int]]:
    """Size of the file, and nanoseconds of each write of a step."""
    costs = []
    with TraceWriter(folder / "size.cbt", overwrite=True) as writer:
        for frame in frames:
            start = time.perf_counter_ns()
            writer.write(frame)
            if type(frame) is Step:
                costs.append(time.perf_counter_ns() - start)
        return writer.bytes_written, costs


def steady_step() -> int:
    """Bytes of a step in which nothing changes, late in a long run: every value as wide as it gets."""
    instants = [START_NS + offset for offset in (0, 400_000, 900_000, 1_300_000, 10_000_000, 10_400_000)]
    every = pack_slots(range(64))
    return len(seal(encode(Step(2_000_000, pack_times(*instants), 9_000_000, every, 9000, 900, 300, 64, 1, 3, 5))))


def say_sizes(path: Path) -> None:
    """Print what a trace takes, over all and by kind of frame."""
    trace, size = open_trace(path), path.stat().st_size
    steps, tokens = len(trace.steps.index), int(trace.requests.generated.sum())
    print(
        f"{steps} steps, {len(trace.requests.id)} requests, {int(trace.steps.active.max())} at a time, {tokens} tokens"
    )
    print(f"trace {size} bytes: {size / tokens:.3f} a token, {size / steps:.1f} a step, all frames counted")
    print("by kind of frame: " + ", ".join(f"{kind} {part / size:.1%}" for kind, part in by_kind(path).items()))


def record_engine(path: Path, requests: int, tokens: int) -> None:
    """A real engine on the CPU: a tiny Llama of random weights, all requests at once."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from engines import Case, prompts, recorded, tiny_llama

    blocks = requests * (tokens // 16 + 5)
    case = Case(prompts(requests, 20, 60), tokens, {"num_blocks": blocks, "max_batch_tokens": 256})
    recorded(case, tiny_llama(), path)


def by_kind(path: Path) -> dict[str, int]:
    """Bytes of each kind of frame in a file."""
    sizes: Counter[str] = Counter()
    with path.open("rb") as file:
        file.seek(PREAMBLE_BYTES)
        for found in FrameScanner(file.read, PREAMBLE_BYTES):
            assert not isinstance(found, Damage)
            sizes[type(decode(found[1])).__name__] += len(seal(found[1]))
    return dict(sizes)


@dataclass(frozen=True)
class Run:
    """What to measure: steps, requests at a time, and how many tokens each generates, from and to."""

    steps: int = 10_000
    requests: int = 64
    tokens: tuple[int, int] = (10_000, 10_000)


PROMISED = Run()
OTHERS = (Run(tokens=(1000, 3000)), Run(tokens=(300, 900)), Run(requests=8, tokens=(300, 900)))
MOST_BYTES_A_TOKEN, MOST_BYTES_A_STEP = 1.0, 64


def measure(run: Run) -> float:
    """Print what a run takes; returns bytes a generated token."""
    workload = Workload(run.steps, run.requests, run.tokens)
    frames = workload.frames()
    tokens = len(workload.token_times)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "size.cbt"
        size, costs = write_cost(frames, Path(name))
        began = time.perf_counter()
        trace = open_trace(path)
        opened = time.perf_counter() - began
        assert trace.recovery.whole, trace.recovery.messages
        assert int(trace.steps.new_tokens.sum()) == int(trace.requests.generated.sum()) == tokens
        read = time.perf_counter() - began
        say_sizes(path)
    text = json_size(workload)
    print(f"JSON  {text} bytes: {text / tokens:.3f} a token (request and time only): {text / size:.1f} times the trace")
    tail = statistics.quantiles(costs, n=100)
    median = statistics.median(costs) / 1000
    print(f"writing a step: median {median:.2f} us, p99 {tail[98] / 1000:.2f} us, on {os.cpu_count()} cores")
    each = read / run.steps * 1e6
    print(f"reading: {opened:.2f} s to open, {read:.2f} s with steps and requests ({each:.1f} us a step)\n")
    return size / tokens


def measure_engine(requests: int, tokens: int) -> None:
    """Record a real engine and print what that takes."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "engine.cbt"
        record_engine(path, requests, tokens)
        say_sizes(path)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=PROMISED.steps)
    options.add_argument("--requests", type=int, default=PROMISED.requests, help="at a time")
    options.add_argument("--tokens", type=int, nargs=2, metavar=("FROM", "TO"), help="generated by a request")
    options.add_argument(
        "--engine", type=int, metavar="TOKENS", help="record a real engine instead, so many tokens each"
    )
    given = options.parse_args()
    if given.engine:
        measure_engine(given.requests, given.engine)
        return 0
    if given.tokens:
        measure(Run(given.steps, given.requests, tuple(given.tokens)))
        return 0
    print("What is promised:")
    per_token, steady = measure(PROMISED), steady_step()
    kept = per_token <= MOST_BYTES_A_TOKEN and steady <= MOST_BYTES_A_STEP
    print(f"{per_token:.3f} bytes a generated token, at most {MOST_BYTES_A_TOKEN} promised")
    print(
        f"{steady} bytes a step of 64 decodes when nothing changes, at its widest; at most {MOST_BYTES_A_STEP} promised"
    )
    print("kept\n" if kept else "NOT KEPT\n")
    for other in OTHERS:
        print(f"Beside it, answers of {other.tokens[0]} to {other.tokens[1]} tokens, {other.requests} at a time:")
        measure(other)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
