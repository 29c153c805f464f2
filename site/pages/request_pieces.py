"""The files that the page of a run loads of requests, in pieces that can be made apart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cbtrace.site.analysis.attribution import Cuts, TtftCuts
from cbtrace.site.analysis.goodput import service_times
from cbtrace.site.analysis.request_lives import Lives
from cbtrace.site.pages.goodput_section import goodput_data
from cbtrace.site.pages.packed import Packed
from cbtrace.site.pages.pieces import Piece
from cbtrace.site.pages.request_data import (
    DETAILS_A_FILE,
    LISTED_A_FILE,
    gaps_a_request,
    request_details,
    request_head,
    request_lists,
)
from cbtrace.site.words import Words
from cbtrace.traces.pairs import Span
from cbtrace.traces.reader import Trace


def request_pieces(trace: Trace, cuts: Cuts, origin_ns: int, words: Words) -> list[Piece]:
    """Lists, details, and what the page begins with. Times are microseconds from ``origin_ns``."""
    spans, longest = trace.request_spans(), cuts.longest_gap
    lists = -(-len(trace.requests.id) // LISTED_A_FILE)
    begins = [first for span in spans for first in _firsts(span)]
    return [
        Piece("list", 0, lists, lambda: request_lists(trace, longest, origin_ns)),
        Piece("requests", 0, 1, lambda: [request_head(trace, longest, begins, origin_ns, words)]),
        Piece("goodput", 0, 1, lambda: [goodput_data(service_times(trace, longest), words)]),
        *_detail_pieces(trace, cuts.ttft, spans, origin_ns),
    ]


def _detail_pieces(trace: Trace, ttft: TtftCuts, spans: list[Span], origin_ns: int) -> Iterator[Piece]:
    lives = Lives(trace, gaps_a_request(len(trace.requests.id)))
    first = 0
    for span in spans:
        files = len(_firsts(span))
        yield Piece("request", first, files, partial(_details, lives, ttft, span, origin_ns))
        first += files


def _firsts(span: Span) -> range:
    """The first request of each file."""
    return range(*span, DETAILS_A_FILE)


def _details(lives: Lives, ttft: TtftCuts, span: Span, origin_ns: int) -> Iterator[dict[str, Packed]]:
    found = lives.of(span)
    for first in _firsts(span):
        yield request_details(ttft, found, first, min(first + DETAILS_A_FILE, found.end), origin_ns)
