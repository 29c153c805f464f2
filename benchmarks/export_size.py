"""Exports a run of many tokens to Perfetto and to tables, and measures time and memory.

``python benchmarks/export_size.py [--steps N] [--requests N]``: each step gives every request a token. The run is the
synthetic one of trace_size.py. Memory is the highest resident set of the process, with the trace alone and during each
export; what the export for Perfetto adds must not grow with the number of tokens. Tables are made one at a time, the
one of tokens as a whole.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trace_size import Workload

from cbtrace.traces import TraceWriter, open_trace
from cbtrace.traces.export.perfetto import write_perfetto
from cbtrace.traces.export.tables import write_tables


def highest_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(path: Path, act: Callable[[Any], Any], told: Any) -> None:
    trace = open_trace(path)
    tokens = int(trace.requests.generated.sum())
    before, began, calls = highest_mib(), time.perf_counter(), [0]
    act(trace, lambda _done, _total: calls.__setitem__(0, calls[0] + 1))  # type: ignore[call-arg]
    told.put((tokens, before, highest_mib(), time.perf_counter() - began, calls[0]))


def perfetto(trace: Any, progress: Any) -> None:
    write_perfetto(trace, trace.path.with_suffix(".json"), progress=progress)


def parquet(trace: Any, progress: Any) -> None:
    write_tables(trace, trace.path.with_suffix(".tables"), progress=progress)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=15_625)
    options.add_argument("--requests", type=int, default=64)
    given = options.parse_args()
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.cbt"
        with TraceWriter(path) as writer:
            for frame in Workload(given.steps, given.requests, (300, 900)).frames():
                writer.write(frame)
        for act in (perfetto, parquet):
            told = fresh.Queue()
            process = fresh.Process(target=measured, args=(path, act, told))
            process.start()
            tokens, before, after, seconds, calls = told.get()
            process.join()
            written = path.with_suffix(".json" if act is perfetto else ".tables")
            parts = written.iterdir() if written.is_dir() else [written]
            size = sum(part.stat().st_size for part in parts) / 2**20
            memory = f"{after - before:.0f} MiB on top of {before:.0f} MiB"
            print(f"{act.__name__}: {tokens} tokens, {size:.0f} MiB, {seconds:.1f} s, {memory}, progress {calls} times")


if __name__ == "__main__":
    main()
