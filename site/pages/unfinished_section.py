"""The requests that did not complete, as plain data for the template: no percentile has them, so they are listed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.latency import unfinished
from cbtrace.site.pages.labels import request_label
from cbtrace.site.pages.windows import window_around
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace

ROWS = 50
ERROR_LENGTH = 200


@dataclass(frozen=True)
class UnfinishedRow:
    """One such request."""

    how: str
    request: str
    ordinal: int
    submitted: str
    ended: str
    window: str
    """The timeline's window with its end in the middle, after its life; empty where the trace lost an end of that."""
    prompt: int
    generated: int
    soft_resets: int
    error: str


@dataclass(frozen=True)
class UnfinishedSection:
    """Requests that failed, were cancelled, ended without a token or still ran: in this order, then by submission."""

    title: str
    text: str
    rows: list[UnfinishedRow]


def unfinished_section(trace: Trace, origin_ns: int, words: Words) -> UnfinishedSection | None:
    """The requests that did not complete, the worst first; None where all did."""
    found = {how: np.flatnonzero(which) for how, which in unfinished(trace.requests).items()}
    count = sum(map(len, found.values()))
    if not count:
        return None
    told = [(how, at) for how, some in found.items() for at in some[:ROWS].tolist()][:ROWS]
    text = words("unfinished.text")
    if len(told) < count:
        text += " " + words("unfinished.some", rows=len(told))
    return UnfinishedSection(
        _title(found, count, len(trace.requests.id), words),
        text,
        [_row(trace, how, at, origin_ns, words) for how, at in told],
    )


def _title(found: dict[str, Ints], count: int, requests: int, words: Words) -> str:
    parts = [
        words("unfinished.part", count=formats.number(len(some)), how=words(f"unfinished.{how}"))
        for how, some in found.items()
        if len(some)
    ]
    return words("unfinished.title", count=formats.number(count), all=formats.number(requests), parts=", ".join(parts))


def _row(trace: Trace, how: str, at: int, origin_ns: int, words: Words) -> UnfinishedRow:
    requests = trace.requests
    submitted, ended = int(requests.submit_ns[at]), int(requests.end_ns[at])
    around = (ended - submitted) // 3
    return UnfinishedRow(
        how=words(f"unfinished.{how}"),
        request=request_label(trace, at),
        ordinal=at,
        submitted=_instant(submitted, origin_ns),
        ended=_instant(ended, origin_ns),
        window=window_around(ended - around, ended + around, origin_ns) if 0 <= submitted <= ended else "",
        prompt=int(requests.prompt_tokens[at]),
        generated=int(requests.generated[at]),
        soft_resets=int(requests.soft_resets[at]),
        error=requests.error[at][:ERROR_LENGTH],
    )


def _instant(at_ns: int, origin_ns: int) -> str:
    return formats.seconds((at_ns - origin_ns) / 1e9 if at_ns >= 0 else None)
