"""What a trace may take: the promise that benchmarks/trace_size.py measures in full."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cbtrace.traces.codec import encode
from cbtrace.traces.frames import preamble, seal


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "trace_size.py"
    spec = importlib.util.spec_from_file_location("trace_size", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_a_decode_heavy_run_takes_at_most_a_byte_a_token(benchmark: ModuleType) -> None:
    promised = benchmark.PROMISED
    assert (promised.steps, promised.requests) == (10_000, 64)
    run = benchmark.Workload(promised.steps, promised.requests, promised.tokens)
    size = len(preamble()) + sum(len(seal(encode(frame))) for frame in run.frames())
    assert len(run.token_times) == 640_000
    assert size / len(run.token_times) <= 1.0


def test_a_step_in_which_nothing_changes_takes_at_most_64_bytes(benchmark: ModuleType) -> None:
    assert benchmark.steady_step() <= 64
