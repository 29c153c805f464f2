"""What the page tells of single requests: life, stays in the KV cache, longest gaps; some requests at a time."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site.analysis.attribution import Cutter
from cbtrace.site.analysis.gaps import GapCuts, longest_places
from cbtrace.site.analysis.kv_stays import KvStays, Stays
from cbtrace.site.analysis.lifelines import Lifelines, lifelines
from cbtrace.traces.pairs import Span
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


class Lives:
    """Finds the lives of some requests at a time, with the ``gaps_a_request`` longest gaps of each."""

    def __init__(self, trace: Trace, gaps_a_request: int) -> None:
        self._cutter, self._stays = Cutter(trace), Stays(trace)
        self._gaps_a_request = gaps_a_request

    def of(self, span: Span) -> RequestLives:
        """Those of one of the trace's :meth:`~cbtrace.traces.reader.Trace.request_spans`."""
        cutter, (first, end) = self._cutter, span
        (part,) = cutter.parts([span])
        longest = longest_places(part.request, cutter.durations(part), self._gaps_a_request)
        return RequestLives(
            first,
            end,
            lifelines(cutter.trace.requests, first, end, part.rows, cutter.costs),
            cutter.gap_cuts(part, longest),
            self._stays.of(part.block),
        )
