"""Records a real engine for a while, under load that swells and ebbs: arrivals by chance, prefixes that requests share,
a KV cache that is too small at the peaks, cancelled requests.

    python benchmarks/long_engine.py OUT.cbt --seconds 300                             # a tiny Llama on the CPU
    python benchmarks/long_engine.py OUT.cbt --seconds 300 --device cuda --shape 1b    # a 1.2 B Llama on a GPU

All weights are random. :mod:`long_run` measures what the trace takes.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recorder_overhead import build_model
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from cbtrace.recorder import record

MOST_WAITING = 160
"""No request is sent while more are unanswered."""
SHARED = 8


@dataclass(frozen=True)
class Load:
    """What is sent to an engine."""

    requests_per_s: float
    prompt: int
    """Tokens of the median prompt; a tenth is more than twice as long."""
    answer: int
    """Tokens of the longest answer."""
    blocks: int
    block: int
    batch_tokens: int
    cancel_every: int
    """One of so many requests is cancelled; 0 for none, since it can end an engine that works asynchronously."""


LOADS = {
    "cpu": Load(12, 40, 120, blocks=160, block=16, batch_tokens=256, cancel_every=97),
    "cuda": Load(75, 250, 320, blocks=96, block=256, batch_tokens=2048, cancel_every=0),
}


@dataclass
class Source:
    """Makes requests, by a seed."""

    load: Load
    vocabulary: int
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.prefixes = [self._tokens(self.load.prompt) for _ in range(SHARED)]

    def _tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(self.vocabulary) for _ in range(count)]

    def prompt(self) -> list[int]:
        """Log-normal in length; every third begins as others do."""
        length = max(4, int(self.load.prompt * self.chance.lognormvariate(0, 0.6)))
        begin = self.chance.choice(self.prefixes) if self.chance.random() < 1 / 3 else []
        return begin + self._tokens(length)

    def answer(self) -> int:
        """Any length up to the longest."""
        return self.chance.randint(1, self.load.answer)

    def pause(self, elapsed: float, seconds: float) -> float:
        """Until the next arrival, in seconds: exponential, around a rate with three swells."""
        swell = 1 + 0.6 * math.sin(2 * math.pi * 3 * elapsed / seconds)
        return self.chance.expovariate(self.load.requests_per_s * swell)


def drive(manager: Any, source: Source, seconds: float) -> int:
    """Send requests for some seconds, wait for their answers; returns how many were sent."""
    sent, answered = 0, 0
    recent: deque[str] = deque(maxlen=3)
    begun = time.monotonic()
    due = begun
    while (now := time.monotonic()) < begun + seconds or answered < sent:
        if now >= begun + seconds + 60 or not manager.is_running():
            break
        if due <= now < begun + seconds and sent - answered < MOST_WAITING:
            recent.append(manager.add_request(source.prompt(), max_new_tokens=source.answer()))
            sent += 1
            due = max(due, now - 1) + source.pause(now - begun, seconds)
            if source.load.cancel_every and sent % source.load.cancel_every == 0:
                manager.cancel_request(recent.popleft())
                answered += 1  # a cancelled request gets no answer
            continue
        result = manager.get_result(timeout=0.002)
        answered += result is not None and result.is_finished()
    return sent


def record_engine(path: Path, seconds: float, device: str = "cpu", shape: str = "tiny") -> int:
    """Record a real engine under load; returns how many requests it was sent."""
    load = LOADS[device]
    model = build_model(shape, device)
    size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    settings = ContinuousBatchingConfig(
        **{size: load.block},
        num_blocks=load.blocks,
        max_batch_tokens=load.batch_tokens,
        max_memory_percent=0.3,
        max_blocks_per_request=0,  # the decode fast path needs a flash attention with paged KV
    )
    generation = GenerationConfig(max_new_tokens=load.answer, do_sample=False, eos_token_id=-1)
    with record(path, name="long engine", overwrite=True):
        manager = model.init_continuous_batching(generation, settings)
        manager.start()
        sent = drive(manager, Source(load, model.config.vocab_size), seconds)
        manager.stop(block=True, timeout=60)
    return sent


def main() -> None:
    """Record one trace and print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--device", choices=sorted(LOADS), default="cpu")
    parser.add_argument("--shape", default="tiny")
    asked = parser.parse_args()
    sent = record_engine(asked.out, asked.seconds, asked.device, asked.shape)
    print(f"{sent} requests, {asked.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
