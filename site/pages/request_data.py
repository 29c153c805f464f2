"""Requests as the browser loads them when asked: lists of all, and the life, cut and gaps of each in further files.

Every request of a run is there, in order of its ordinal, so that an ordinal says in which file it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cbtrace.site.analysis.attribution import TtftCuts
from cbtrace.site.analysis.gaps import GapCuts
from cbtrace.site.analysis.kv_stays import KvStays
from cbtrace.site.analysis.lifelines import STATES, Lifelines
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.request_lives import RequestLives
from cbtrace.site.pages.labels import request_label
from cbtrace.site.pages.packed import Packed, packed_groups, packed_table
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints, Requests
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason

LISTED_A_FILE = 4096
DETAILS_A_FILE = 256
ORDERED = 10_000
"""How far an order by a number goes over the whole run; what matches a search or a window is sorted wholly."""
GAPS_A_REQUEST = 8
GAPS_STORED = 600_000
"""Most gaps that are stored over all requests, though each has its longest one."""
NAME_LENGTH = 200
NS_A_US = 1000
UNKNOWN = -(1 << 50)
"""An instant that is not known, microseconds."""

_INSTANTS = ("visible", "admitted", "first_token", "last_token", "end")
_COUNTS = ("prompt_tokens", "generated", "prefix_hit", "recomputed", "soft_resets", "offloads", "end_reason")
_TROUBLE = {EndReason.FAILED: 3, EndReason.CANCELLED: 2, EndReason.RUNNING: 1}


def request_head(trace: Trace, longest: Ints, details: Sequence[int], origin_ns: int, words: Words) -> dict[str, Any]:
    """What the list of requests begins with: orders of the whole run, and the span of time of each file of the list.

    ``longest`` is the longest token gap of each request in ns, -1 without one; ``details`` are the ordinals that the
    files of details begin with. Times are microseconds from ``origin_ns``.
    """
    requests = trace.requests
    count = len(requests.id)
    begin, end = _alive(requests, origin_ns)
    starts = np.arange(0, count, LISTED_A_FILE)
    files = {
        "begin_us": np.minimum.reduceat(begin, starts) if count else begin,
        "end_us": np.maximum.reduceat(end, starts) if count else end,
    }
    return {
        "all": count,
        "unknown": UNKNOWN,
        "listed_a_file": LISTED_A_FILE,
        "details": packed_table({"first": np.array(details, dtype=np.int64)}),
        "gaps_a_request": gaps_a_request(count),
        "files": packed_table(files),
        "orders": packed_table({name: _largest(values) for name, values in _measures(requests, longest).items()}),
        "trouble": [_TROUBLE.get(reason, 0) for reason in EndReason],
        "states": list(STATES),
        "pieces": list(PIECES),
        "words": words.starting("request.js.") | words.starting("state.") | words.starting("piece."),
    }


def gaps_a_request(requests: int) -> int:
    """How many gaps of each request are stored in a run of so many requests."""
    return max(1, min(GAPS_A_REQUEST, GAPS_STORED // max(requests, 1)))


def _alive(requests: Requests, origin_ns: int) -> tuple[Ints, Ints]:
    """By request: from when to when it was there, as far as that is known; beyond all times where it is not."""
    known = np.stack([getattr(requests, f"{name}_ns") for name in ("submit", *_INSTANTS)])
    begin = np.where(known < 0, np.iinfo(np.int64).max, known).min(axis=0)
    begin = np.where((known < 0).all(axis=0), UNKNOWN, (begin - origin_ns) // NS_A_US)
    end = requests.end_ns
    return begin, np.where(end < 0, -UNKNOWN, (end - origin_ns) // NS_A_US)


def _measures(requests: Requests, longest: Ints) -> dict[str, Ints]:
    """What requests can be sorted by: largest first."""

    def since_submit(instant: Ints) -> Ints:
        return np.where((instant < 0) | (requests.submit_ns < 0), -1, instant - requests.submit_ns)

    trouble = sum(rank * (requests.end_reason == reason) for reason, rank in _TROUBLE.items())
    return {
        "ttft": since_submit(requests.first_token_ns),
        "gap": longest,
        "e2e": since_submit(requests.end_ns),
        "resets": requests.soft_resets,
        "prompt": requests.prompt_tokens,
        "trouble": np.asarray(trouble, dtype=np.int64),
    }


def _largest(values: Ints) -> Ints:
    """Ordinals of the largest values, equal ones in their order."""
    return np.argsort(-values, kind="stable")[:ORDERED]


def request_lists(trace: Trace, longest: Ints, origin_ns: int) -> Iterator[dict[str, Any]]:
    """One row a request, :data:`LISTED_A_FILE` a file. Later instants count from the submit, where that is known."""
    requests = trace.requests
    submit = _instants(requests.submit_ns, origin_ns)
    known = np.where(submit == UNKNOWN, 0, submit)
    columns = {name: getattr(requests, name) for name in _COUNTS}
    columns["submit_us"] = submit
    for name in _INSTANTS:
        instant = _instants(getattr(requests, f"{name}_ns"), origin_ns)
        columns[f"{name}_us"] = np.where(instant == UNKNOWN, UNKNOWN, instant - known)
    columns["longest_gap_us"] = np.where(longest < 0, UNKNOWN, longest // NS_A_US)
    for first in range(0, len(requests.id), LISTED_A_FILE):
        rows = range(first, min(first + LISTED_A_FILE, len(requests.id)))
        yield {
            "columns": packed_table(columns, slice(rows.start, rows.stop)),
            "id": [request_label(trace, i)[:NAME_LENGTH] for i in rows],
            "error": {str(i - first): requests.error[i][:NAME_LENGTH] for i in rows if requests.error[i]},
        }


def _instants(values_ns: Ints, origin_ns: int) -> Ints:
    return np.where(values_ns < 0, UNKNOWN, (values_ns - origin_ns) // NS_A_US)


def request_details(ttft: TtftCuts, parts: RequestLives, first: int, end: int, origin_ns: int) -> dict[str, Packed]:
    """Of requests ``first`` up to and without ``end``: spans, the cut of the TTFT, the longest gaps, and stays.

    ``ttft`` and ``parts`` are of these requests, or of more.
    """
    return {
        "lives": _lives(parts.lives, first, end, origin_ns),
        "ttft": _ttft(ttft, first, end),
        **_gaps(parts.gaps, first, end, origin_ns),
        "stays": _stays(parts.stays, first, end, origin_ns),
    }


def _of(request: Ints, first: int, end: int) -> tuple[slice, Ints]:
    """Rows of the requests, and how many each has. ``request`` is sorted."""
    rows = slice(*np.searchsorted(request, (first, end)))
    return rows, np.bincount(request[rows] - first, minlength=end - first)


def _lives(lives: Lifelines, first: int, end: int, origin_ns: int) -> Packed:
    """Each span: its state, how long after the one before (or after the origin) it begins, and how long it is."""
    rows, counts = _of(lives.request, first, end)
    start, stop = ((times[rows] - origin_ns) // NS_A_US for times in (lives.start_ns, lives.end_ns))
    before = np.concatenate([[0], stop])[: len(start)]
    before[(np.cumsum(counts) - counts)[counts > 0]] = 0
    return packed_groups(counts, {"state": lives.state[rows], "after_us": start - before, "length_us": stop - start})


def _ttft(ttft: TtftCuts, first: int, end: int) -> Packed:
    """The pieces of each TTFT; none of a request that has none to cut."""
    rows = slice(*np.searchsorted(ttft.request, (first, end)))
    row, piece = np.nonzero(ttft.pieces[rows])
    counts = np.bincount(ttft.request[rows][row] - first, minlength=end - first)
    return packed_groups(counts, {"piece": piece, "ns": ttft.pieces[rows][row, piece]})


def _gaps(gaps: GapCuts, first: int, end: int, origin_ns: int) -> dict[str, Packed]:
    """The longest gaps of each request, longest first, and the pieces of each gap."""
    rows, counts = _of(gaps.request, first, end)
    worst = rows.start + np.lexsort((-gaps.total_ns[rows], gaps.request[rows]))
    row, piece = np.nonzero(gaps.pieces[worst])
    columns = {
        "position": gaps.position[worst],
        "start_us": (gaps.start_ns[worst] - origin_ns) // NS_A_US,
        "duration_us": gaps.total_ns[worst] // NS_A_US,
        "first_step": gaps.first_step[worst],
        "later_steps": gaps.last_step[worst] - gaps.first_step[worst],
        "absent": gaps.absent_steps[worst],
    }
    pieces = {"piece": piece, "ns": gaps.pieces[worst][row, piece]}
    return {
        "gaps": packed_groups(counts, columns),
        "gap_pieces": packed_groups(np.bincount(row, minlength=len(worst)), pieces),
    }


def _stays(stays: KvStays, first: int, end: int, origin_ns: int) -> Packed:
    """By stay: when it began, tokens that were there, tokens reached, blocks, bytes, and what ended it."""
    rows, counts = _of(stays.request, first, end)
    columns = {name: getattr(stays, name)[rows] for name in ("start", "reached", "blocks", "bytes", "left")}
    return packed_groups(counts, {"begun_us": (stays.time_ns[rows] - origin_ns) // NS_A_US} | columns)
