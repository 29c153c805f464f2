"""All token gaps of a trace: cut, one row each, and as differences of token times without any cutting."""

from __future__ import annotations

from dataclasses import replace

from cbtrace.site.analysis.attribution import all_cuts
from cbtrace.site.analysis.gaps import GapCuts, piece_matrix
from cbtrace.site.analysis.latency import completed
from cbtrace.traces import Trace
from cbtrace.traces.tables import joined


def every_gap(trace: Trace) -> GapCuts:
    """The cuts of all gaps of completed requests, by request and position."""
    found = joined(GapCuts, [gaps for _, gaps in all_cuts(trace)])
    return found if len(found.request) else replace(found, pieces=piece_matrix(0))


def true_gaps(trace: Trace) -> list[tuple[int, int, int]]:
    """Request, position and length of each of them, by a loop over the table of tokens."""
    tokens, done = trace.tokens, completed(trace.requests)
    rows = list(zip(tokens.request.tolist(), tokens.position.tolist(), tokens.time_ns.tolist(), strict=True))
    return [
        (request, position, time - before)
        for (request, position, time), (other, earlier, before) in zip(rows[1:], rows, strict=False)
        if request == other and position == earlier + 1 and done[request]
    ]
