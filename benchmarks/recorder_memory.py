"""Whether a long recording keeps the recorder's memory flat.

Drives the recorder's hooks as hook_replay.py does, without an engine behind them: 200,000 steps of 64 requests, one of
which ends and one of which joins every ``--join`` steps, under a new id each time, with memory and clocks sampled as in
a real recording. It is done twice: the first time, the resident set of the process is read at every mark; the second
time, ``tracemalloc`` counts what Python has allocated, which is exact but slow.

Growth is counted from the first mark on, when everything is warm. More than ``--goal`` megabytes of it fail. The GPU's
timer and the NVML sampler are not part of this: there is no GPU behind these hooks.

    python benchmarks/recorder_memory.py
    python benchmarks/recorder_memory.py --ring 8000000
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from hook_replay import drive, watched

from cbtrace.recorder.memory import MemoryProbe

MEGABYTE = 1 << 20


def resident() -> int:
    """Bytes of the process that are in memory."""
    return int(psutil.Process().memory_info().rss)


def traced() -> int:
    """Bytes that Python has allocated since tracing began."""
    return tracemalloc.get_traced_memory()[0]


def record(read: Callable[[], int], options: argparse.Namespace, folder: Path, number: int) -> list[int]:
    """Record the steps; return a reading at every mark."""
    limits: dict[str, Any] = {"max_bytes": options.ring, "ring": True} if options.ring else {}
    watch, processor = watched(folder, number, cold=False, **limits)
    watch._memory = MemoryProbe("cpu", watch.sink.now, keep_user_peaks=False)
    readings: list[int] = []
    hooked, steps = processor.prepare_next_batch, 0

    def prepare_next_batch() -> bool:
        nonlocal steps
        if steps and steps % options.every == 0:
            gc.collect()
            readings.append(read())
        steps += 1
        return hooked()

    processor.prepare_next_batch = prepare_next_batch  # type: ignore[method-assign]
    drive(processor, options.steps + 1, options.requests, options.join)
    if not watch.sink.live:
        raise SystemExit("the recording stopped")
    watch.close()
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=20_000, help="steps between two marks")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--join", type=int, default=10, help="steps between a request that ends and one that joins")
    parser.add_argument("--ring", type=int, metavar="BYTES", help="record a ring of this size")
    parser.add_argument("--goal", type=float, default=20.0, help="megabytes of growth that are allowed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        in_memory = record(resident, options, Path(folder), 0)
        tracemalloc.start()
        allocated = record(traced, options, Path(folder), 1)
        tracemalloc.stop()
    print(f"{options.requests} requests at a time, {options.requests + options.steps // options.join} in all")
    print(f"{'steps':>9}{'resident MB':>14}{'growth':>9}{'traced MB':>12}{'growth':>9}")
    for number, (rss, python) in enumerate(zip(in_memory, allocated, strict=True), 1):
        cells = (rss, rss - in_memory[0], python, python - allocated[0])
        figures = "".join(f"{value / MEGABYTE:>{width}.2f}" for value, width in zip(cells, (14, 9, 12, 9), strict=True))
        print(f"{number * options.every:>9}{figures}")
    growth = max(max(readings) - readings[0] for readings in (in_memory, allocated)) / MEGABYTE
    print(f"largest growth after the first mark: {growth:.2f} MB (goal {options.goal:.0f} MB)")
    if growth > options.goal:
        raise SystemExit("the recorder's memory grows")


if __name__ == "__main__":
    main()
