"""What the page tells of single requests: life, stays in the KV cache, longest gaps; some requests at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cbtrace.site.analysis.attribution import Cutter
from cbtrace.site.analysis.gaps import GapCuts, longest_places
from cbtrace.site.analysis.kv_stays import KvStays, Stays
from cbtrace.site.analysis.lifelines import Lifelines, lifelines
from cbtrace.traces.pairs import GROUP
from cbtrace.traces.reader import Trace
from cbtrace.traces.tables import Table, joined


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
    """All requests of ``trace`` in order, in parts that begin at multiples of :data:`~cbtrace.traces.pairs.GROUP`."""
    held: list[RequestLives] = []
    for part in _parts(trace, gaps_a_request):
        held.append(part)
        if part.end % GROUP == 0 or part.end == len(trace.requests.id):
            yield held[0] if len(held) == 1 else _joined(held)
            held = []


def _joined(parts: list[RequestLives]) -> RequestLives:
    def of(table: type[Table], name: str) -> Table:
        whole: Table = joined(table, [getattr(part, name) for part in parts])
        return whole

    return RequestLives(
        parts[0].first, parts[-1].end, of(Lifelines, "lives"), of(GapCuts, "gaps"), of(KvStays, "stays")
    )


def _parts(trace: Trace, gaps_a_request: int) -> Iterator[RequestLives]:
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
