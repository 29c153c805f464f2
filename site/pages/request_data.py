"""Requests as the browser loads them when asked: one row each, and the life, cut and gaps of each in further files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.kv_stays import KvStays, kv_stays
from cbtrace.site.analysis.lifelines import STATES, Lifelines, lifelines
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.pages.class_section import longest_gaps
from cbtrace.site.pages.labels import request_label
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace

LISTED = 10_000
"""Most requests that are listed: half of them the slowest ones, the rest evenly chosen."""
DETAILS_A_FILE = 250
GAPS_A_REQUEST = 8
NAME_LENGTH = 200
NS_A_US = 1000


@dataclass(frozen=True)
class RequestFiles:
    """The list, and the details in files; keys as the browser asks for them."""

    listed: dict[str, Any]
    details: list[dict[str, Any]]


def request_files(trace: Trace, cuts: Cuts, origin_ns: int, words: Words) -> RequestFiles:
    """All data of the requests. Times are microseconds from ``origin_ns``; -1 is unknown."""
    longest = longest_gaps(cuts, len(trace.requests.id))
    chosen = _chosen(trace, longest)
    made = _Made(cuts, lifelines(trace.requests, cuts.rows, cuts.costs), kv_stays(trace))
    details = [
        _details(trace, made, chosen[start : start + DETAILS_A_FILE], origin_ns)
        for start in range(0, len(chosen), DETAILS_A_FILE)
    ]
    return RequestFiles(_listed(trace, longest, chosen, origin_ns, words), details)


def _chosen(trace: Trace, longest: Ints) -> Ints:
    """Which requests are listed, in order of submission."""
    requests = trace.requests
    count = len(requests.id)
    if count <= LISTED:
        rows = np.arange(count, dtype=np.int64)
    else:
        ttft = np.where(requests.first_token_ns >= 0, requests.first_token_ns - requests.submit_ns, 0)
        slow = [np.argsort(-values, kind="stable")[: LISTED // 4] for values in (ttft, longest)]
        rows = np.unique(np.concatenate([*slow, np.linspace(0, count - 1, LISTED // 2).astype(np.int64)]))
    return rows[np.argsort(requests.submit_ns[rows], kind="stable")]


def _listed(trace: Trace, longest: Ints, chosen: Ints, origin_ns: int, words: Words) -> dict[str, Any]:
    requests = trace.requests
    columns = ("prompt_tokens", "generated", "prefix_hit", "recomputed", "soft_resets", "offloads", "end_reason")
    return {
        "all": len(requests.id),
        "ordinal": chosen.tolist(),
        "id": [request_label(trace, i)[:NAME_LENGTH] for i in chosen.tolist()],
        "longest_gap_us": _spans(longest[chosen]),
        **{name: getattr(requests, name)[chosen].tolist() for name in columns},
        **{
            f"{name}_us": _instants(getattr(requests, f"{name}_ns")[chosen], origin_ns)
            for name in ("submit", "visible", "admitted", "first_token", "last_token", "end")
        },
        "error": [requests.error[i][:NAME_LENGTH] for i in chosen.tolist()],
        "states": list(STATES),
        "pieces": list(PIECES),
        "words": words.starting("request.js.") | words.starting("state.") | words.starting("piece."),
    }


def _instants(values: Ints, origin_ns: int) -> list[int | None]:
    return [None if v < 0 else (v - origin_ns) // NS_A_US for v in values.tolist()]


def _spans(values: Ints) -> list[int | None]:
    return [None if v < 0 else v // NS_A_US for v in values.tolist()]


@dataclass(frozen=True)
class _Made:
    """What the details are taken from."""

    cuts: Cuts
    lives: Lifelines
    stays: KvStays


def _details(trace: Trace, made: _Made, chosen: Ints, origin_ns: int) -> dict[str, Any]:
    """By request, in the order of the list: its spans, the cut of its TTFT, its longest gaps and its stays."""
    cuts, lives = made.cuts, made.lives
    gap_order = np.lexsort((-cuts.gaps.total_ns, cuts.gaps.request))
    gap_request = cuts.gaps.request[gap_order]
    ttft_row = np.full(len(trace.requests.id), -1, dtype=np.int64)
    ttft_row[cuts.ttft.request] = np.arange(len(cuts.ttft.request))
    blocks = {"lives": [], "ttft": [], "gaps": [], "stays": []}  # type: dict[str, list[Any]]
    for request in chosen.tolist():
        part = slice(*np.searchsorted(lives.request, (request, request + 1)))
        spans = np.stack([lives.state[part], lives.start_ns[part], lives.end_ns[part]], axis=1)
        spans[:, 1:] = (spans[:, 1:] - origin_ns) // NS_A_US
        blocks["lives"].append(spans.reshape(-1).tolist())
        row = int(ttft_row[request])
        blocks["ttft"].append(None if row < 0 else _sparse(cuts.ttft.pieces[row]))
        lo, hi = np.searchsorted(gap_request, (request, request + 1))
        worst = gap_order[lo : min(hi, lo + GAPS_A_REQUEST)].tolist()
        blocks["gaps"].append([_gap(cuts, i, origin_ns) for i in worst])
        blocks["stays"].append(_stays(made.stays, request, origin_ns))
    return blocks


def _stays(stays: KvStays, request: int, origin_ns: int) -> list[list[int]]:
    """By stay: when it began, tokens that were there, tokens reached, blocks, bytes, and what ended it."""
    part = slice(*np.searchsorted(stays.request, (request, request + 1)))
    columns = [(stays.time_ns[part] - origin_ns) // NS_A_US]
    columns += [getattr(stays, name)[part] for name in ("start", "reached", "blocks", "bytes", "left")]
    rows: list[list[int]] = np.stack(columns, axis=1).tolist()
    return rows


def _gap(cuts: Cuts, row: int, origin_ns: int) -> list[Any]:
    """Position, start, length, first and last step, steps without the request, and the pieces."""
    gaps = cuts.gaps
    return [
        int(gaps.position[row]),
        (int(gaps.start_ns[row]) - origin_ns) // NS_A_US,
        int(gaps.total_ns[row]) // NS_A_US,
        int(gaps.first_step[row]),
        int(gaps.last_step[row]),
        int(gaps.absent_steps[row]),
        _sparse(gaps.pieces[row]),
    ]


def _sparse(pieces: Ints) -> list[int]:
    """Alternately the column and the nanoseconds of each piece that is not zero: they add up exactly."""
    used = np.flatnonzero(pieces)
    flat: list[int] = np.stack([used, pieces[used]], axis=1).reshape(-1).tolist()
    return flat
