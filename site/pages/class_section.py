"""Latency by class of request, as plain data for the template."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.classes import Chunking, RequestClass, chunking, request_classes
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace


@dataclass(frozen=True)
class ClassRow:
    """One class of requests."""

    dimension: str
    first: bool
    """Whether it is the first class of its dimension."""
    span: int
    """How many classes the dimension has."""
    range: str
    n: str
    ttft_p50: str
    ttft_p95: str
    queue_p50: str
    e2e_p95: str
    gap_p50: str
    gap_p95: str
    resets: str


@dataclass(frozen=True)
class ClassSection:
    """The classes, and how prompts were chunked."""

    title: str
    chunking: str
    rows: list[ClassRow]


def class_section(trace: Trace, cuts: Cuts, token_budget: int | None, words: Words) -> ClassSection:
    """The section of the page."""
    capacity = trace.geometry.capacity_units * trace.geometry.unit_bytes if trace.geometry else 0
    found = request_classes(trace, cuts.longest_gap, capacity)
    split = chunking(trace.steps, trace.chunks, len(trace.requests.id), token_budget)
    return ClassSection(_title(found, words), _chunking(split, words), _rows(found, words))


def _title(found: list[RequestClass], words: Words) -> str:
    """The class with the worst TTFT against the best of the same dimension."""
    worst, ratio = None, 0.0
    for one in found:
        best = min(other.ttft_ms.p95 or 0.0 for other in found if other.dimension == one.dimension)
        if best > 0 and (one.ttft_ms.p95 or 0.0) / best > ratio:
            worst, ratio = one, (one.ttft_ms.p95 or 0.0) / best
    if worst is None or ratio < 1.2:
        return words("classes.title_none")
    name = words(f"class.{worst.dimension}")
    return words("classes.title", dimension=name, range=_range(worst, words), ratio=formats.number(round(ratio, 1)))


def _chunking(split: Chunking, words: Words) -> str:
    if not split.chunked:
        return words("classes.chunking_none", whole=formats.number(split.whole))
    values = {name: formats.number(value) for name, value in vars(split).items()}
    return words("classes.chunking", **values)


def _rows(found: list[RequestClass], words: Words) -> list[ClassRow]:
    rows = []
    for place, one in enumerate(found):
        first = place == 0 or found[place - 1].dimension != one.dimension
        rows.append(
            ClassRow(
                dimension=words(f"class.{one.dimension}"),
                first=first,
                span=sum(other.dimension == one.dimension for other in found),
                range=_range(one, words),
                n=formats.number(one.n),
                ttft_p50=formats.milliseconds(one.ttft_ms.p50),
                ttft_p95=formats.milliseconds(one.ttft_ms.p95),
                queue_p50=formats.milliseconds(one.queue_ms.p50),
                e2e_p95=formats.milliseconds(one.e2e_ms.p95),
                gap_p50=formats.milliseconds(one.longest_gap_ms.p50),
                gap_p95=formats.milliseconds(one.longest_gap_ms.p95),
                resets=formats.number(one.soft_resets),
            )
        )
    return rows


def _range(one: RequestClass, words: Words) -> str:
    if one.dimension in ("prefix_hit", "chunked"):
        return words("class.yes" if one.low else "class.no")
    low, high = formats.number(one.low), formats.number(one.high)
    return low if low == high else f"{low}\N{EN DASH}{high}"
