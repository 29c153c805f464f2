"""How long each part of a step takes on one machine with one model.

Every part is a sum of terms, each a count of what the part works on: the scheduler walks members and waiting requests,
filling inputs writes an index for each KV entry read, the device reads the weights once and computes every padded
query. Which terms a part has follows from the engine's code; only their prices are fitted
(:mod:`~cbtrace.recorder.whatif.fitting`). Batches that replay a graph and batches that do not are priced apart where
the two ways differ.

One host is not always as fast: other work on the machine slows a whole process down, for seconds or for good, and all
that its host does by the same factor. So prices of the host are those of a typical recording, and each recording has a
*slowness*, a factor on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.pace import Shape

Floats = NDArray[np.float64]
PartKey = tuple[str, bool]
"""A part, and whether it is the one of batches with a graph: False for parts that are the same either way."""

TERMS: dict[str, tuple[str, ...]] = {
    "schedule": ("one", "members", "waiting"),
    "copy": ("one", "copied_tokens"),
    "prepare": ("one", "members", "queries", "indexed_kv", "max_batch_tokens"),
    "launch": ("one", "members", "first_replay"),
    "capture": ("one", "padded_queries"),
    "device": ("one", "padded_queries", "padded_kv", "attention", "first_replay"),
    "update": ("one", "new_tokens"),
}
"""Of each part. ``one`` is the part itself, ``attention`` padded queries times the KV entries they see."""

BY_GRAPH = frozenset({"launch", "device"})
"""Parts that are another thing with a graph than without."""

_GOLDEN = (5**0.5 - 1) / 2

_WORDS = {
    "attention": "pairs of a query and a KV entry",
    "copied_tokens": "tokens of offloaded KV",
    "first_replay": "new graph",
    "indexed_kv": "KV entries read",
    "padded_kv": "padded KV entries",
    "waiting": "requests waiting",
}


@dataclass(frozen=True)
class Prices:
    """Nanoseconds a count, by term, and the largest count that was seen."""

    by_term: dict[str, float]
    most: dict[str, float]


@dataclass(frozen=True)
class Beyond:
    """A part of a step was asked for a larger count of something than any recording shows."""

    part: str
    term: str
    asked: float
    most: float

    def __str__(self) -> str:
        what = _WORDS.get(self.term, self.term.replace("_", " "))
        if not self.most:
            return f"{self.asked:,.0f} {what} (none in the recordings, so that they are taken to cost nothing)"
        return f"{self.asked:,.0f} {what} (the recordings show {self.most:,.0f} at most)"


@dataclass(frozen=True)
class TimeModel:
    """Prices of every part at a usual pace of the host, and how it departs from that pace."""

    prices: dict[PartKey, Prices]
    between_ns: float
    has_device_times: bool
    seen: tuple[float, ...] = (1.0,)
    """Slowness of the host in each recording; the geometric mean is 1."""
    step_spread: tuple[float, ...] = (1.0,)
    """How much longer than its price the host's work for a step took, evenly spread quantiles; the mean is 1."""
    capture_spread: tuple[float, ...] = (1.0,)
    """Likewise of captures."""

    def priced(self, part: str, shape: Shape) -> tuple[float, list[Beyond]]:
        """Nanoseconds at the host's usual pace, and what was asked for beyond what was seen.

        Raises:
            ReplayError: no recording shows such a part.
        """
        prices = self.prices.get((part, part in BY_GRAPH and shape.uses_graph))
        if prices is None:
            how = (" with CUDA graphs" if shape.uses_graph else " without CUDA graphs") if part in BY_GRAPH else ""
            raise ReplayError(
                f"No recording given shows how long the {part} of a batch takes{how}: add one that does.",
                slug="predicted-unseen",
            )
        total, beyond = 0.0, []
        for term, price in prices.by_term.items():
            asked, most = count(shape, term), prices.most[term]
            total += price * asked
            if asked > most:
                beyond.append(Beyond(part, term, asked, most))
        return total, beyond


class ModelPace:
    """The pace (:class:`~cbtrace.recorder.whatif.pace.Pace`) of one prediction; ``slowness`` is asked how slow the host
    is at each part of a step.

    How much longer than its price a step takes is dealt out evenly: by the golden ratio, so that any few steps in a row
    get nearly the whole spread, and each prediction is the same when it is made again.
    """

    def __init__(self, model: TimeModel, slowness: Callable[[], float]) -> None:
        self.model = model
        self._slowness = slowness
        self.beyond: dict[tuple[str, str], Beyond] = {}
        """By part and term, the largest count asked for beyond what was seen."""
        self._steps, self._captures = _dealt(model.step_spread), _dealt(model.capture_spread)
        self._now = 1.0

    def schedule(self, shape: Shape) -> int:
        """See :class:`~cbtrace.recorder.whatif.pace.Pace`, as all of these."""
        self._now = next(self._steps)
        return self._of_host("schedule", shape, self._now)

    def copy(self, tokens: int) -> int:  # noqa: D102
        shape = Shape(0, 0, 0, 0, 0, 0, 0, 0, 0, copied_tokens=tokens)
        if ("copy", False) in self.model.prices:
            return self._of_host("copy", shape, self._now)
        self._is_beyond(Beyond("copy", "copied_tokens", tokens, 0))
        return 0

    def prepare(self, shape: Shape) -> int:  # noqa: D102
        return self._of_host("prepare", shape, self._now)

    def launch(self, shape: Shape) -> int:  # noqa: D102
        return self._of_host("launch", shape, self._now)

    def capture(self, shape: Shape) -> int:  # noqa: D102
        return self._of_host("capture", shape, next(self._captures))

    def device(self, shape: Shape) -> int:  # noqa: D102
        if is_of_host("device", self.model.has_device_times):
            return self._of_host("device", shape, self._now)
        return round(self._priced("device", shape))

    def update(self, shape: Shape) -> int:  # noqa: D102
        return self._of_host("update", shape, self._now)

    def between(self) -> int:  # noqa: D102
        return round(self.model.between_ns)

    def _of_host(self, part: str, shape: Shape, longer: float) -> int:
        return round(self._priced(part, shape) * self._slowness() * longer)

    def _priced(self, part: str, shape: Shape) -> float:
        total, beyond = self.model.priced(part, shape)
        for found in beyond:
            self._is_beyond(found)
        return total

    def _is_beyond(self, found: Beyond) -> None:
        known = self.beyond.get((found.part, found.term))
        if known is None or found.asked > known.asked:
            self.beyond[found.part, found.term] = found


def _dealt(spread: tuple[float, ...]) -> Iterator[float]:
    at = 0.0
    while True:
        at = (at + _GOLDEN) % 1
        yield spread[int(at * len(spread))]


def is_of_host(part: str, has_device_times: bool) -> bool:
    """Whether the host does the part. Where no device was timed, the host is all there is."""
    return part != "device" or not has_device_times


def count(shape: Shape, term: str) -> float:
    """What one term of a part counts in a batch."""
    if term == "one":
        return 1.0
    if term == "attention":
        return float(shape.padded_queries) * max(shape.padded_kv, shape.kv_read)
    return float(getattr(shape, term))


def table(shapes: Sequence[Shape], part: str) -> Floats:
    """The counts of a part, (shapes, terms)."""
    return np.array([[count(shape, term) for term in TERMS[part]] for shape in shapes]).reshape(-1, len(TERMS[part]))
