"""What the page tells of single requests: life, stays in the KV cache, longest gaps; some requests at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cbtrace.site.analysis.attribution import Cutter
from cbtrace.site.analysis.gaps import GapCuts, longest_places
from cbtrace.site.analysis.kv_stays import KvStays, Stays
from cbtrace.site.analysis.lifelines import Lifelines, lifelines
from cbtrace.traces.reader import Trace


@dataclass(frozen=True)
class RequestLives:
    """The requests from ``first`` up to and without ``end``; tables are ordered by request."""

    first: int
    end: int
    lives: Lifelines
    gaps: GapCuts
    """The longest ones of each request, by position."""
    stays: KvStays


def request_lives(trace: Trace, gaps_a_request: int) -> Iterator[RequestLives]:
    """All requests of ``trace`` in order, some at a time."""
    cutter, stays = Cutter(trace), Stays(trace)
    for part in cutter.parts():
        first, end = part.block.first, part.block.end
        longest = longest_places(part.request, cutter.durations(part), gaps_a_request)
        yield RequestLives(
            first,
            end,
            lifelines(trace.requests, first, end, part.rows, cutter.costs),
            cutter.gap_cuts(part, longest),
            stays.of(part.block),
        )
