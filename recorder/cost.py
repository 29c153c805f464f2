"""What the recorder itself costs, in bounded memory."""

from __future__ import annotations

_SUBDIVISIONS = 4  # bits below the leading one that a bucket keeps: buckets are at most 6.25 % wide
_AT_ONCE = 64


class CostHistogram:
    """Durations in logarithmic buckets: totals are exact, percentiles are right to 6.25 %."""

    def __init__(self, frame_ns: int = 0) -> None:
        self.frame_ns = frame_ns
        """What each hook adds beyond the time it measures itself."""
        self.open_ns = 0
        """Spent in the step in progress. Hooks add to it themselves: a call would cost as much as it measures."""
        self.count = 0
        self._closed_ns = 0
        self._buckets: dict[int, int] = {}
        self._unsorted: list[int] = []
        """Newest steps that are not in buckets yet: sorting many at once costs each of them less."""

    @property
    def total_ns(self) -> int:
        """All that was spent so far."""
        return self._closed_ns + self.open_ns

    def end_step(self) -> None:
        """Close the step in progress: what was spent since the last one is its cost."""
        spent = self.open_ns
        self.open_ns = 0
        self._closed_ns += spent
        self.count += 1
        self._unsorted.append(spent)
        if len(self._unsorted) == _AT_ONCE:
            self._sort()

    def percentile(self, share: float) -> int:
        """Return the lower bound of the bucket that holds the given share of steps; -1 without steps."""
        self._sort()
        remaining = share * self.count
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                return _floor_of(bucket)
        return -1

    def _sort(self) -> None:
        steps, self._unsorted = self._unsorted, []
        for bucket in map(_bucket_of, steps):
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1


def _bucket_of(duration_ns: int) -> int:
    shift = max(duration_ns.bit_length() - _SUBDIVISIONS - 1, 0)
    return (shift << (_SUBDIVISIONS + 1)) + (duration_ns >> shift)


def _floor_of(bucket: int) -> int:
    shift, mantissa = bucket >> (_SUBDIVISIONS + 1), bucket & ((1 << (_SUBDIVISIONS + 1)) - 1)
    return mantissa << shift
