"""Whether the repeats of one setting gave the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site.analysis.experiment import Variant
from cbtrace.traces.experiment import Correctness


@dataclass(frozen=True)
class UnlikeRepeats:
    """Requests that have other tokens in one repeat than in another: at least so many, of those compared in all."""

    requests: int
    compared: int


def unlike_repeats(variant: Variant) -> UnlikeRepeats | None:
    """Count them by where each repeat first differs from the reference; ``None`` where no difference is known of.

    Repeats that first differ from it by the same token may differ further on: the count is the least there are.
    """
    checked = [run.entry.correctness for run in variant.measured if run.entry.correctness is not None]
    compared = [found for found in checked if found.compared and found.reference == checked[0].reference]
    if len(compared) < 2:
        return None
    first, *others = map(_first_differences, compared)
    unlike = {
        request
        for other in others
        for request in first.keys() | other.keys()
        if first.get(request) != other.get(request)
    }
    requests = len(unlike)
    if any(found.differences_left_out for found in compared):
        # Of those that are not listed only how many there are is known.
        requests = max(found.equal for found in compared) - min(found.equal for found in compared)
    return UnlikeRepeats(requests, min(found.compared for found in compared)) if requests else None


def _first_differences(correctness: Correctness) -> dict[str, tuple[int, int]]:
    return {it.request: (it.position, it.found) for it in correctness.differences}
