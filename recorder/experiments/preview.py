"""What a workload will send, in figures and as plots of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cbtrace.recorder.experiments.arrivals import NS_PER_S
from cbtrace.recorder.experiments.workload import Workload

_BARS = 12
_WIDTH = 40


def preview(workload: Workload, seed: int) -> Iterator[str]:
    """Lines that show lengths, limits, arrivals and shared prefixes."""
    requests = workload.requests
    prompts = np.array([len(request.prompt) for request in requests])
    limits = np.array([request.new_tokens for request in requests])
    instants = np.array([request.at_ns for request in requests]) / NS_PER_S
    yield f"{'workload':<16}{workload.name}, seed {seed}, digest {workload.facts['workload.digest']}"
    yield f"{'requests':<16}{len(requests)}"
    yield ""
    yield f"{'tokens':<16}{'min':>8}{'p50':>8}{'p95':>8}{'max':>8}{'total':>12}"
    yield _row("prompt", prompts)
    yield _row("generated", limits)
    yield ""
    yield from _prefixes(workload, int(prompts.sum()))
    yield from _arrivals(workload, instants)
    yield ""
    yield "Prompt tokens (requests)"
    yield from histogram(prompts)
    yield "Generation limit in tokens (requests)"
    yield from histogram(limits)
    if not workload.at_once and instants[-1] > 0:
        yield "Arrival in seconds (requests)"
        yield from histogram(instants)


def _row(name: str, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    p50, p95 = np.percentile(values, [50, 95])
    return f"{name:<16}{values.min():>8}{p50:>8.0f}{p95:>8.0f}{values.max():>8}{values.sum():>12}"


def _prefixes(workload: Workload, prompt_tokens: int) -> Iterator[str]:
    sharing = [request for request in workload.requests if request.prefix_tokens]
    if sharing:
        tokens = sum(request.prefix_tokens for request in sharing)
        groups = len({request.prefix_group for request in sharing})
        yield (
            f"{'shared prefixes':<16}{len(sharing)} requests in {groups} groups, {tokens} tokens "
            f"({tokens / prompt_tokens:.0%} of all prompt tokens)"
        )
    else:
        yield f"{'shared prefixes':<16}none"


def _arrivals(workload: Workload, instants: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Iterator[str]:
    if workload.at_once:
        yield f"{'arrivals':<16}all at once, before the engine's first step"
        return
    span = float(instants[-1])
    rate = f", {(len(instants) - 1) / span:.3g} a second" if span > 0 else ""
    yield f"{'arrivals':<16}over {span:.3f} s{rate}"
    gaps = np.diff(instants)
    if gaps.size and gaps.mean() > 0:
        yield f"{'gaps':<16}mean {gaps.mean():.4f} s, variation {gaps.std() / gaps.mean():.2f} (1 is a Poisson process)"


def histogram(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> Iterator[str]:
    """Bars of text: how many values fall into each of some equal intervals; every value is in one.

    Intervals of whole numbers are named by the first and the last number in them.
    """
    whole = bool(np.issubdtype(values.dtype, np.integer))
    counts, edges = np.histogram(values, bins=_whole_edges(values) if whole else _BARS)
    for count, start, end in zip(counts.tolist(), edges.tolist(), edges.tolist()[1:], strict=False):
        bar = "█" * round(_WIDTH * count / max(counts.max(), 1)) or ("▏" if count else "")
        label = f"{start:>10} to {end - 1:<10}" if whole else f"{start:>10.3f} to {end:<10.3f}"
        yield f"{label}{bar} {count}"


def _whole_edges(values: np.ndarray[tuple[int], np.dtype[Any]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // _BARS)
    return np.arange(low, high + width + 1, width)
