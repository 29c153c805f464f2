"""The demo makes real runs, and says nothing but what their traces say."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import cbtrace.traces
from cbtrace.recorder.demo import NEW_TOKENS, REQUESTS, RUNS
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.formats import number, size
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.rank_groups import stand_ins
from cbtrace.traces.schema import EndReason, EventKind
from conftest import COMMAND


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, float]:
    """What one demo printed, its folder, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("demo")
    begun = time.monotonic()
    result = subprocess.run([COMMAND, "demo", "-o", folder], capture_output=True, text=True, timeout=300, check=True)
    return result.stdout, folder, time.monotonic() - begun


@pytest.fixture(scope="module")
def traces(demo: tuple[str, Path, float]) -> list[Trace]:
    return [open_trace(demo[1] / "traces" / f"{run.slug}.cbt") for run in RUNS]


@pytest.mark.engine
def test_every_run_is_whole_and_every_request_complete(traces: list[Trace]) -> None:
    for trace in traces:
        assert trace.recovery.status == "clean"
        assert np.all(trace.requests.end_reason == EndReason.LENGTH)
        assert trace.requests.generated.tolist() == [NEW_TOKENS] * REQUESTS


@pytest.mark.engine
def test_the_settings_are_really_different(traces: list[Trace]) -> None:
    automatic, few_blocks, few_tokens = traces
    capacity = [trace.engines[0].kv.capacity_tokens for trace in traces]
    assert capacity[1] < capacity[0] / 10
    assert few_tokens.engines[0].resolved["max_batch_tokens"] == 64
    scheduled = few_tokens.steps.prefill_tokens + few_tokens.steps.decode_tokens + few_tokens.steps.recompute_tokens
    assert scheduled.max() <= 64 < automatic.steps.prefill_tokens.max()
    assert np.sum(few_blocks.events.kind == EventKind.SOFT_RESET) > 0
    assert np.sum(automatic.events.kind == EventKind.SOFT_RESET) == 0


def test_what_it_says_is_what_the_traces_say(demo: tuple[str, Path, float], traces: list[Trace]) -> None:
    automatic, few_blocks, _ = (summarize(trace) for trace in traces)
    sentence = demo[0].splitlines()[-1]
    assert automatic.kv and few_blocks.kv
    for text in (
        f"a KV cache of {size(few_blocks.kv.capacity_bytes)} instead of {size(automatic.kv.capacity_bytes)}",
        f"{few_blocks.soft_resets} soft resets instead of {automatic.soft_resets}",
        f"computed {number(few_blocks.prompt_tokens_recomputed)} tokens again",
        f"{number(few_blocks.ttft_ms.p95)} ms instead of {number(automatic.ttft_ms.p95)} ms",
    ):
        assert text in sentence


def test_the_pages_it_names_are_there(demo: tuple[str, Path, float]) -> None:
    index, *links = re.findall(r"(/\S+index\.html|file://\S+)", demo[0])
    assert Path(index).is_file()
    assert links[0] == Path(index).as_uri()
    page, _, sides = links[1].removeprefix("file://").partition("#")
    assert Path(page).is_file()
    slugs = re.fullmatch(r"a=(\S+)&b=(\S+)", sides)
    assert slugs and all((Path(page).parent / "runs" / slug / "index.html").is_file() for slug in slugs.groups())


def test_recordings_of_a_gpu_stand_beside_them(demo: tuple[str, Path, float]) -> None:
    samples = sorted((Path(cbtrace.traces.__file__).parent / "samples").glob("*.cbt"))
    runs = stand_ins(samples)
    assert len(runs) == len(samples) - 1 > 10, "one of them was recorded on two GPUs"
    assert f"{len(runs)} recordings on NVIDIA H200s" in demo[0]
    pages = [path for path in (demo[1] / "site" / "runs").iterdir() if (path / "index.html").is_file()]
    assert len(pages) == len(RUNS) + len(runs)


def test_it_can_be_repeated_and_is_done_in_a_minute(demo: tuple[str, Path, float]) -> None:
    _, folder, seconds = demo
    before = {path: path.stat().st_mtime_ns for path in (folder / "traces").iterdir()}
    subprocess.run([COMMAND, "demo", "-o", folder], capture_output=True, timeout=300, check=True)
    after = {path: path.stat().st_mtime_ns for path in (folder / "traces").iterdir()}
    assert after.keys() == before.keys() and all(after[path] > before[path] for path in before)
    # The promise is 60 s for a demo alone on two cores; here other tests run beside it.
    assert seconds < 120
