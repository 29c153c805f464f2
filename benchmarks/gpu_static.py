"""Checks of static batching on a real GPU: its times on the GPU, and that watching it changes no token.

A part of ``gpu_checks.py``, in a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import GenerationConfig

from cbtrace.recorder.experiments import LogNormal, SyntheticSpec, Uniform, Workload, build_workload, run_static
from cbtrace.recorder.experiments.workload import PlannedRequest
from cbtrace.traces import open_trace

BATCH = 8
SPEC = SyntheticSpec(
    requests=3 * BATCH,
    prompt_tokens=LogNormal(median=245, sigma=1.0, low=8, high=2000),
    new_tokens=Uniform(low=16, high=64),
)


class Checks(Protocol):
    """Where verdicts go: the table of ``gpu_checks.py``."""

    def check(self, what: str, holds: bool, detail: object = "") -> None: ...

    def say(self, verdict: str, what: str, detail: object = "") -> None: ...


def static_batching(table: Checks, engine: Any, out: Path) -> None:
    """GPU times of static batching, against a forward pass timed alone and against the wall clock."""
    model = engine.model
    workload = build_workload(SPEC, seed=1, vocabulary=model.config.vocab_size)
    plain = unwatched(model, workload)
    path = out / "static.cbt"
    answers = run_static(model, workload, path, generation_config=greedy(), batch_size=BATCH, overwrite=True)
    table.check("static: recorded tokens = unrecorded tokens", answers == plain, len(answers))
    trace = open_trace(path)
    steps, requests = trace.steps, trace.requests
    table.check("static: every forward pass has a GPU time", bool((steps.gpu_ns > 0).all()), steps.gpu_ns.size)
    whole = steps.done_ns - steps.start_ns
    table.check("static: a GPU time is within its step", bool((steps.gpu_ns <= whole).all()))
    window = int(steps.ready_ns[-1] - steps.start_ns[0])
    busy = steps.gpu_ns.sum() / window
    table.check("static: GPU busy at most the window", 0 < busy <= 1.0, f"{busy:.1%} of {window / 1e9:.2f} s")
    first = steps.prefill_tokens > 0
    recorded = (steps.gpu_ns[first] / 1e6).round(2).tolist()
    alone = [round(prefill_ms(model, batch), 2) for batch in batches(workload)]
    close = np.allclose(recorded, alone, rtol=0.25, atol=0.5)
    table.check("static: prefills take as long as timed alone (25 %)", close, (recorded, alone))
    rows = np.minimum(steps.padded_queries, BATCH)[~first]
    table.check("static: a decode computes every row of its batch", set(rows.tolist()) == {BATCH})
    limits = dict(zip(requests.id, requests.generated.tolist(), strict=True))
    planned = {request.id: request.new_tokens for request in workload.requests}
    table.check("static: each request has its own limit", limits == planned)
    decode_ms = np.percentile(steps.gpu_ns[~first] / 1e6, [50, 99]).round(2).tolist()
    table.say("    ", "static: GPU ms of a decode p50, p99; padding", (decode_ms, round(padding(steps), 3)))


def padding(steps: Any) -> float:
    """Share of the computed queries that nobody needed."""
    needed = int((steps.prefill_tokens + steps.decode_tokens).sum())
    return 1 - needed / int(steps.padded_queries.sum())


def batches(workload: Workload) -> Iterator[list[PlannedRequest]]:
    """The batches that static batching makes of requests that are all there: by arrival."""
    requests = iter(workload.requests)
    while batch := list(islice(requests, BATCH)):
        yield batch


def padded(batch: list[PlannedRequest], device: Any) -> tuple[Any, Any]:
    """Token ids and mask, left-padded."""
    width = max(len(request.prompt) for request in batch)
    gaps = [width - len(request.prompt) for request in batch]
    ids = [[0] * gap + request.prompt for gap, request in zip(gaps, batch, strict=True)]
    mask = [[0] * gap + [1] * (width - gap) for gap in gaps]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def greedy(**limits: int) -> GenerationConfig:
    """The likeliest token each time, and no end token."""
    return GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, **limits)


def unwatched(model: Any, workload: Workload) -> dict[str, list[int]]:
    """The same batches through ``generate`` alone, each answer cut at its limit."""
    answers = {}
    for batch in batches(workload):
        ids, mask = padded(batch, model.device)
        settings = greedy(max_new_tokens=max(request.new_tokens for request in batch))
        with torch.no_grad():
            outputs = model.generate(ids, attention_mask=mask, generation_config=settings)
        for request, row in zip(batch, outputs[:, ids.shape[1] :].tolist(), strict=True):
            answers[request.id] = row[: request.new_tokens]
    return answers


def prefill_ms(model: Any, batch: list[PlannedRequest], tries: int = 5) -> float:
    """Median GPU time of the first forward pass of a batch, timed by events of its own."""
    ids, mask = padded(batch, model.device)
    times = []
    for _ in range(tries):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.no_grad():
            begin.record()
            model(ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
            end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))
