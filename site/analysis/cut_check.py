"""Checks that where the time went adds up, to the nanosecond: each TTFT, each token gap, and both together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.traces.columns import Bools, Ints
from cbtrace.traces.errors import declare
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import Finding
from cbtrace.traces.schema import Severity


def check_cuts(trace: Trace) -> list[Finding]:
    """Findings about the attribution of time in ``trace``; none when all of it adds up."""
    cuts = attribute(trace)
    found = [*_pieces_that_differ(cuts), *_requests_that_differ(trace, cuts)]
    if trace.recovery.whole:
        found += _unexplained(cuts)
    return found


def _pieces_that_differ(cuts: Cuts) -> Iterator[Finding]:
    """The pieces of a cut must be its total, and none of them negative."""
    for name, part in (("TTFT", cuts.ttft), ("token gap", cuts.gaps)):
        wrong = (part.pieces.sum(axis=1) != part.total_ns) | (part.pieces < 0).any(axis=1)
        yield from _finding("cuts-not-conserved", part.request, wrong, f"the pieces of a {name} are not its whole")


def _requests_that_differ(trace: Trace, cuts: Cuts) -> Iterator[Finding]:
    """TTFT and gaps together lead from the submit to the last token, wherever every token, the last too, is known."""
    requests, size = trace.requests, len(trace.requests.id)
    lasted = np.zeros(size, dtype=np.int64)
    gaps = np.bincount(cuts.gaps.request, minlength=size)
    for part in (cuts.ttft, cuts.gaps):
        np.add.at(lasted, part.request, part.pieces.sum(axis=1))
    of = cuts.ttft.request
    counted = (gaps[of] == requests.generated[of] - 1) & (requests.last_token_ns[of] >= 0)
    wrong = counted & (lasted[of] != (requests.last_token_ns - requests.submit_ns)[of])
    yield from _finding("cuts-not-conserved", of, wrong, "its TTFT and gaps do not lead to its last token")


def _unexplained(cuts: Cuts) -> Iterator[Finding]:
    """Nothing is missing from the trace, so every nanosecond should have a piece."""
    for name, part in (("TTFT", cuts.ttft), ("token gap", cuts.gaps)):
        rest = part.pieces[:, COLUMN["unattributed"]]
        yield from _finding("time-unattributed", part.request, rest > 0, f"time of a {name} could not be attributed")


def _finding(slug: str, requests: Ints, wrong: Bools, what: str) -> Iterator[Finding]:
    rows = np.unique(requests[wrong])
    if rows.size:
        count = f"Of {rows.size} requests, first of request {rows[0]}:" if rows.size > 1 else f"Of request {rows[0]}:"
        yield Finding(slug, _SEVERITY[slug], f"request {rows[0]}", f"{count} {what}.")


_MESSAGES = [
    declare(
        "cuts-not-conserved",
        Severity.BROKEN,
        "The pieces that a TTFT or a token gap was cut into do not add up to it.",
        "Report it with the trace: this is an error in cbtrace itself.",
    ),
    declare(
        "time-unattributed",
        Severity.INFO,
        "The trace is whole, and still some time of a request has no reason.",
        "Use the figures: what is unattributed is shown as such, and spread over nothing. Report it with the trace.",
    ),
]
_SEVERITY = {message.slug: message.severity for message in _MESSAGES}
