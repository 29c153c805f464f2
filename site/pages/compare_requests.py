"""What a comparison of single requests and of timelines needs of one run; loaded only for the two runs at hand.

Requests come in order of submission, the first :data:`PAIRED_REQUESTS` of them. Generated token ids, where a trace has
them, lie in files of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cbtrace.site.analysis.latency import completed
from cbtrace.site.analysis.timeline import timeline_rows
from cbtrace.site.analysis.window import measured_window
from cbtrace.site.plain_text import plain
from cbtrace.traces.columns import Bools, Ints
from cbtrace.traces.reader import Trace

PAIRED_REQUESTS = 2000
"""Most requests of a run that can be paired."""
POINTS = 300
"""Most points of each line of the aligned timelines."""
TOKENS_A_FILE = 250
"""Requests whose token ids share a file."""


def compare_requests(trace: Trace, longest_gap: Ints) -> dict[str, Any]:
    """Requests to pair, and the run's timeline. ``longest_gap`` is by request, ns, -1 without one."""
    rows = submitted_order(trace)
    return {
        "requests": _requests(trace, rows, longest_gap[rows]),
        "timeline": _timeline(trace),
        "tokens_a_file": TOKENS_A_FILE if trace.token_ids else None,
    }


def submitted_order(trace: Trace) -> Ints:
    """Ordinals of the requests that can be paired."""
    submit = trace.requests.submit_ns
    return np.lexsort((np.arange(len(submit)), submit))[:PAIRED_REQUESTS].astype(np.int64)


def _requests(trace: Trace, rows: Ints, longest_gap: Ints) -> dict[str, Any]:
    """Columns, one entry a request. Latencies are ms, ``null`` where the request did not end normally."""
    requests = trace.requests
    done = completed(requests)[rows]
    submit, first, last = (column[rows] for column in (requests.submit_ns, requests.first_token_ns, requests.end_ns))
    return {
        "all": len(requests.id),
        "id": [_shown(trace, i) for i in rows.tolist()],
        "key": [_key(trace, i) for i in rows.tolist()],
        "prompt": [requests.prompt_hash[i].hex() for i in rows],
        "output": [requests.output_hash[i].hex() for i in rows],
        "generated": requests.generated[rows].tolist(),
        "ttft_ms": _milliseconds(first - submit, done & (first >= 0) & (submit >= 0)),
        "longest_gap_ms": _milliseconds(longest_gap, longest_gap >= 0),
        "e2e_ms": _milliseconds(last - submit, done & (last >= 0) & (submit >= 0)),
    }


def _shown(trace: Trace, request: int) -> str:
    again = int(trace.requests.incarnation[request])
    name = plain(trace.requests.id[request], 60) or f"#{request}"
    return f"{name} ({again + 1})" if again else name


def _key(trace: Trace, request: int) -> str:
    """The request's id and incarnation, short: runs of the same workload give a request the same one."""
    text = f"{trace.requests.incarnation[request]} {trace.requests.id[request]}"
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def _milliseconds(values_ns: Ints, known: Bools) -> list[float | None]:
    return [round(ns / 1e6, 3) if ok else None for ns, ok in zip(values_ns.tolist(), known.tolist(), strict=True)]


def _timeline(trace: Trace) -> dict[str, Any]:
    """Columns over the run: ms since its own first submit, longest step (ms), most waiting, most KV used (bytes)."""
    steps = trace.steps
    k = max(1, -(-len(steps.index) // POINTS))
    points = timeline_rows(steps, k)
    origin = measured_window(trace.requests).start_ns or (int(points.start_ns[0]) if len(points.steps) else 0)
    return {
        "bucket": k,
        "steps": len(steps.index),
        "start_ms": [round(v / 1e6, 3) for v in (points.start_ns - origin).tolist()],
        "end_ms": [round(v / 1e6, 3) for v in (points.end_ns - origin).tolist()],
        "step_max_ms": [round(v / 1e6, 3) for v in points.duration_max.tolist()],
        "waiting_max": points.waiting_max.tolist(),
        "used_peak": [v if v >= 0 else None for v in points.used_peak.tolist()],
    }


def token_files(trace: Trace) -> Iterator[list[list[int] | None]]:
    """Generated token ids of the requests to pair, :data:`TOKENS_A_FILE` a file; nothing where a trace has none."""
    ids = trace.token_ids
    if not ids:
        return
    rows = submitted_order(trace).tolist()
    for start in range(0, len(rows), TOKENS_A_FILE):
        yield [ids[i].tolist() if i in ids else None for i in rows[start : start + TOKENS_A_FILE]]
