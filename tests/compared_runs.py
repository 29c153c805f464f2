"""Runs for tests of comparisons: traces whose numbers are known by hand, and conditions that differ as asked."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cbtrace.traces.schema import EndReason, Facts, Memory, TokenIds
from trace_builder import TraceBuilder, engine, header

CONDITIONS: Facts = {
    "hardware.cpu": "A CPU",
    "hardware.gpu.name": "NVIDIA H200",
    "software.torch": "2.13.0",
    "software.transformers": "5.24.0",
    "workload.digest": "0123456789abcdef",
    "workload.requests": 12,
    "measurement.nvml": True,
}
MODEL: Facts = {"type": "llama", "dtype": "bfloat16", "device": "cuda:0", "attention": "sdpa", "layers": 2}
SETTINGS: Facts = {
    "scheduler_type": "fifo",
    "num_blocks": 4096,
    "max_batch_tokens": 256,
    "max_memory_percent": "unset",
    "safety_margin": "unset",
    "use_cuda_graph": False,
}
RESOLVED: Facts = SETTINGS | {"max_memory_percent": 0.9, "safety_margin": 0.15}
PREFILL_NS = 12_000_000
"""Two thirds of a step are over when its tokens come out: a TTFT of 8 ms."""
DECODE_NS = 20_000_000
REQUESTS = 4
TOKENS = 100


def timed_run(
    path: Path,
    *,
    prefill_ns: float = PREFILL_NS,
    decode_ns: float = DECODE_NS,
    requested: Facts | None = None,
    resolved: Facts | None = None,
    conditions: Facts | None = None,
    model: Facts | None = None,
    generation: Facts | None = None,
    tags: Mapping[str, str] | None = None,
    adapter: str = "blocks",
    predicted: bool = False,
    recorded_s: int = 0,
    tokens: bool = False,
    other_token: tuple[int, int] | None = None,
    failing: int = 0,
) -> Path:
    """Requests one after the other: a prompt in one step of ``prefill_ns``, then decodes of ``decode_ns``.

    The facts given are laid over :data:`CONDITIONS`, :data:`MODEL`, :data:`SETTINGS` and :data:`RESOLVED`. ``tokens``
    stores token ids, all alike but for ``other_token``: which request, and which of its tokens, from 1. The last
    ``failing`` requests fail instead of ending.
    """
    first, second = header(path.stem, dict(tags or {})), engine()
    first.fingerprint = CONDITIONS | (conditions or {})
    first.predicted = predicted
    first.run_id = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    first.wall_ns += recorded_s * 1_000_000_000
    second.adapter = adapter
    second.requested = SETTINGS | (requested or {})
    second.resolved = RESOLVED | (requested or {}) | (resolved or {})
    second.model = MODEL | (model or {})
    second.generation = {"do_sample": False} | (generation or {})
    build = TraceBuilder(path, name=path.stem, described_by=(first, second))
    for i in range(REQUESTS):
        request = build.submit(32, TOKENS, id=f"request_{i}")
        build.admit(request)
        build.step_ns = round(prefill_ns)
        build.step({request: 32})
        build.step_ns = round(decode_ns)
        for _ in range(TOKENS - 1):
            build.step([request])
        if tokens:
            ids = np.arange(TOKENS, dtype="<i4")
            if other_token is not None and other_token[0] == i:
                ids[other_token[1] - 1] = 9999
            build.write(TokenIds(request.ordinal, ids.tobytes()))
        if i >= REQUESTS - failing:
            build.finish(request, EndReason.FAILED, error="RuntimeError")
        else:
            build.finish(request)
        build.write(Memory(build.now, "", 10 << 20, 20 << 20, 11 << 20, 21 << 20))
    build.close()
    return path


def repeats(folder: Path, count: int, *, slower: float = 1.0, seed: int = 0, **described: object) -> list[Path]:
    """Repeats of one setting: prefill wavers by about 0.5 % and is ``slower`` by that factor, decode wavers by 2 %."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    return [
        timed_run(
            folder / f"run-{i}.cbt",
            prefill_ns=PREFILL_NS * slower * source.gauss(1, 0.005),
            decode_ns=DECODE_NS * source.gauss(1, 0.02),
            recorded_s=60 * i,
            **described,  # type: ignore[arg-type]
        )
        for i in range(count)
    ]


def slower_pair(folder: Path, count: int = 5) -> tuple[list[Path], list[Path]]:
    """Baseline and candidate with one setting changed. The candidate is 10 % slower to its first tokens, only there."""
    a = repeats(folder / "baseline", count, seed=1)
    b = repeats(folder / "candidate", count, slower=1.1, seed=1, requested={"num_blocks": 2048})
    return a, b
