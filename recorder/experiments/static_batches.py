"""Which requests a static batch is made of, and which have arrived: the rule, apart from any model."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

from cbtrace.recorder.experiments.workload import PlannedRequest

BatchBy = Literal["arrival", "length"]


class BatchQueue:
    """Requests on their way into static batches of at most ``size``.

    The next batch begins as soon as the last one has ended and a request has arrived; it takes who has arrived by then
    and does not wait for more. ``arrival``: the oldest ones. ``length``: the oldest one, and those whose prompts are
    nearest to its in length, so that less padding is needed.
    """

    def __init__(self, requests: tuple[PlannedRequest, ...], size: int, by: BatchBy) -> None:
        self._coming = sorted(requests, key=lambda request: request.at_ns)
        self._instants = [request.at_ns for request in self._coming]
        self._arrived = 0
        self._waiting: list[PlannedRequest] = []
        self._size, self._by = size, by

    def arrive(self, now_ns: int) -> list[PlannedRequest]:
        """Let in who has arrived by ``now_ns`` (from the workload's start); return the new ones."""
        upto = bisect_right(self._instants, now_ns)
        new = self._coming[self._arrived : max(upto, self._arrived)]
        self._arrived += len(new)
        self._waiting += new
        return new

    def next_arrival_ns(self) -> int | None:
        """When the next request arrives; ``None`` when all have."""
        return self._instants[self._arrived] if self._arrived < len(self._instants) else None

    def waiting_at(self, now_ns: int) -> int:
        """How many requests wait at ``now_ns``, those included that arrived while a batch was under way."""
        return len(self._waiting) + max(0, bisect_right(self._instants, now_ns) - self._arrived)

    def take(self) -> list[PlannedRequest]:
        """Take the next batch out of those that wait; empty when none does."""
        chosen = self._waiting[: self._size]
        if self._by == "length" and chosen:
            length = len(chosen[0].prompt)
            # The sort is stable and the oldest is at distance 0, so it always goes first.
            nearest = sorted(self._waiting, key=lambda request: abs(len(request.prompt) - length))
            chosen = nearest[: self._size]
        taken = {request.id for request in chosen}
        self._waiting = [request for request in self._waiting if request.id not in taken]
        return chosen
