"""Rules about tensor-parallel ranks."""

from __future__ import annotations

from cbtrace.site.analysis.evidence import Evidence, Told

_WORTH = 0.05
"""Share of the step time that waiting for late ranks takes, from which on it is worth a word."""


def late_rank(evidence: Evidence) -> Told:
    """One rank is the last to launch far more often than chance would have it, and the others' waits add up."""
    found = evidence.ranks
    waits = found.waits if found else None
    if found is None or not waits or found.skew_share is None or found.skew_share < _WORTH:
        return None
    rank, wait = max(zip(found.ranks, waits, strict=True), key=lambda pair: pair[1].slowest)
    share, by_chance = wait.slowest / found.compared, 1 / len(waits)
    if share < by_chance + 0.4 * (1 - by_chance):
        return None
    return found.skew_share, {"rank": str(rank.rank), "last_share": share, "skew_share": found.skew_share}
