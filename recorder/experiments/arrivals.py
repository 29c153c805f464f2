"""When requests arrive: the instants at which a workload is to be submitted."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from cbtrace.recorder.experiments.spec_error import SpecError

NS_PER_S = 1_000_000_000

LONGEST_S = 366 * 86400
"""Between the first arrival and the last."""
Rate = Annotated[float, Meta(ge=1e-9, le=1_000_000)]
"""Requests a second."""


class AtOnce(Struct, tag_field="kind", tag="at_once", forbid_unknown_fields=True, frozen=True):
    """All requests are queued before the engine's first step."""


class Constant(Struct, tag_field="kind", tag="constant", forbid_unknown_fields=True, frozen=True):
    """Evenly spaced."""

    per_s: Rate


class Poisson(Struct, tag_field="kind", tag="poisson", forbid_unknown_fields=True, frozen=True):
    """A Poisson process: exponential gaps, as independent users make them."""

    per_s: Rate


class Gamma(Struct, tag_field="kind", tag="gamma", forbid_unknown_fields=True, frozen=True):
    """Gamma-distributed gaps. ``burstiness`` is the shape: 1 is a Poisson process, less is burstier."""

    per_s: Rate
    burstiness: Annotated[float, Meta(ge=0.001, le=1000)]


class Bursts(Struct, tag_field="kind", tag="bursts", forbid_unknown_fields=True, frozen=True):
    """``size`` requests at the same instant, every ``every_s`` seconds."""

    size: Annotated[int, Meta(ge=1)]
    every_s: Annotated[float, Meta(gt=0, le=86400)]


Arrivals = AtOnce | Constant | Poisson | Gamma | Bursts


def draw_instants(arrivals: Arrivals, count: int, random: np.random.RandomState) -> list[int]:
    """Draw ``count`` instants in nanoseconds from the start of the workload, in order. The first is 0.

    Raises:
        SpecError: the last one would come after more than a year.
    """
    instants = _instants(arrivals, count, random)
    if instants and instants[-1] > LONGEST_S * NS_PER_S:
        raise SpecError("The last request would arrive after more than a year: raise the rate.", at=("arrivals",))
    return instants


def _instants(arrivals: Arrivals, count: int, random: np.random.RandomState) -> list[int]:
    if isinstance(arrivals, AtOnce):
        return [0] * count
    if isinstance(arrivals, Constant):
        return [round(number * NS_PER_S / arrivals.per_s) for number in range(count)]
    if isinstance(arrivals, Bursts):
        return [round(number // arrivals.size * arrivals.every_s * NS_PER_S) for number in range(count)]
    shape = arrivals.burstiness if isinstance(arrivals, Gamma) else 1.0
    gaps = random.gamma(shape, 1 / (shape * arrivals.per_s), size=max(count - 1, 0))
    return [0, *(round(float(at) * NS_PER_S) for at in np.cumsum(gaps))][:count]
