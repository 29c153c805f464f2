"""How long each part of a step takes on one machine with one model, fitted from recorded runs.

Every part is a sum of terms, each a count of what the part works on: the scheduler walks members and waiting requests,
filling inputs writes an index for each KV entry read, the device reads the weights once and computes every padded
query. Which terms a part has follows from the engine's code; only their prices are fitted, and none is negative.
Batches that replay a graph and batches that do not are priced apart where the two ways differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.pace import Shape
from cbtrace.recorder.whatif.shapes import Measured

Floats = NDArray[np.float64]

TERMS: dict[str, tuple[str, ...]] = {
    "schedule": ("one", "members", "waiting"),
    "prepare": ("one", "members", "queries", "indexed_kv", "max_batch_tokens"),
    "launch": ("one", "members"),
    "capture": ("one", "padded_queries"),
    "device": ("one", "padded_queries", "padded_kv", "attention"),
    "update": ("one", "new_tokens"),
}
"""Of each part. ``one`` is the part itself, ``attention`` padded queries times the KV entries they see."""

BY_GRAPH = frozenset({"launch", "device"})
"""Parts that are another thing with a graph than without."""

_WORDS = {
    "attention": "pairs of a query and a KV entry",
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
        asked, most = f"{self.asked:,.0f}", f"{self.most:,.0f}"
        return f"the {self.part} of a batch with {asked} {what}, where the recordings show {most} at most"


@dataclass
class TimeModel:
    """Prices of every part, as a :class:`~cbtrace.recorder.whatif.pace.Pace`. What it was asked beyond what was seen is
    kept."""

    prices: dict[tuple[str, bool], Prices]
    between_ns: float
    has_device_times: bool
    beyond: dict[tuple[str, str], Beyond] = field(default_factory=dict)
    """By part and term."""

    def _ask(self, part: str, shape: Shape) -> int:
        prices = self.prices.get((part, part in BY_GRAPH and shape.uses_graph))
        if prices is None:
            how = (" with CUDA graphs" if shape.uses_graph else " without CUDA graphs") if part in BY_GRAPH else ""
            raise ReplayError(
                f"No recording given shows how long the {part} of a batch takes{how}: add one that does.",
                slug="predicted-unseen",
            )
        total = 0.0
        for term, price in prices.by_term.items():
            asked, most = count(shape, term), prices.most[term]
            total += price * asked
            if asked > most:
                known = self.beyond.get((part, term))
                if known is None or asked > known.asked:
                    self.beyond[part, term] = Beyond(part, term, asked, most)
        return round(total)

    def schedule(self, shape: Shape) -> int:
        """See :class:`~cbtrace.recorder.whatif.pace.Pace`, as all of these."""
        return self._ask("schedule", shape)

    def prepare(self, shape: Shape) -> int:  # noqa: D102
        return self._ask("prepare", shape)

    def launch(self, shape: Shape) -> int:  # noqa: D102
        return self._ask("launch", shape)

    def capture(self, shape: Shape) -> int:  # noqa: D102
        return self._ask("capture", shape)

    def device(self, shape: Shape) -> int:  # noqa: D102
        return self._ask("device", shape)

    def update(self, shape: Shape) -> int:  # noqa: D102
        return self._ask("update", shape)

    def between(self) -> int:  # noqa: D102
        return round(self.between_ns)


def fit(runs: Sequence[Measured]) -> TimeModel:
    """Fit the prices of all parts over the steps of these runs (one machine, one model).

    Each run weighs the same, however many steps it has.
    """
    prices = {}
    for part in TERMS:
        for uses_graph in (False, True) if part in BY_GRAPH else (False,):
            found = _fit_part(part, uses_graph, runs)
            if found is not None:
                prices[part, uses_graph] = found
    between_ns = float(np.median([run.between_ns for run in runs]))
    return TimeModel(prices, between_ns, all(run.has_device_times for run in runs))


def _fit_part(part: str, uses_graph: bool, runs: Sequence[Measured]) -> Prices | None:
    names = TERMS[part]
    terms, values, weights = [], [], []
    for run in runs:
        rows = [
            row
            for row in np.flatnonzero(np.isfinite(run.parts[part]))
            if part not in BY_GRAPH or run.shapes[row].uses_graph == uses_graph
        ]
        if rows:
            terms.append([[count(run.shapes[row], name) for name in names] for row in rows])
            values.append(run.parts[part][rows])
            weights.append(np.full(len(rows), len(rows) ** -0.5))
    if not values:
        return None
    table, weight = np.concatenate([np.array(block) for block in terms]), np.concatenate(weights)
    found = non_negative_fit(table * weight[:, None], np.concatenate(values) * weight)
    most = table.max(axis=0)
    return Prices(dict(zip(names, found.tolist(), strict=True)), dict(zip(names, most.tolist(), strict=True)))


def count(shape: Shape, term: str) -> float:
    """What one term of a part counts in a batch."""
    if term == "one":
        return 1.0
    if term == "attention":
        return float(shape.padded_queries) * max(shape.padded_kv, shape.kv_read)
    return float(getattr(shape, term))


def non_negative_fit(terms: Floats, values: Floats) -> Floats:
    """Least squares with no coefficient below 0: the most negative one is dropped until there is none. ``terms`` is
    (rows, terms), ``values`` (rows,); returns (terms,)."""
    # Counts differ by many orders of magnitude: the fit is of columns of like size.
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-300)
    kept = list(range(terms.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(terms[:, kept] / scale[kept], values, rcond=None)
        if len(kept) == 1 or (found >= 0).all():
            break
        kept.pop(int(np.argmin(found)))
    prices = np.zeros(terms.shape[1])
    prices[kept] = np.maximum(found, 0) / scale[kept]
    return prices
