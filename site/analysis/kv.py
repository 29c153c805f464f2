"""The KV cache of a run as a budget: capacity, used, cached, free, and the safety-margin band. All in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

import numpy as np

from cbtrace.traces.columns import Ints, Steps
from cbtrace.traces.schema import Engine


@dataclass(frozen=True)
class KvBudget:
    """Capacity and use of the KV cache over the steps of a run. Free and used are as scheduled, step by step."""

    unit_name: str
    unit_bytes: int
    capacity_units: int
    capacity_bytes: int
    capacity_tokens: int
    reserved_bytes: int
    """Allocated beyond the capacity and never given out."""
    safety_margin: float | None
    """Share of the capacity that new requests may not take; ``None`` when unknown."""
    margin_bytes: int | None
    """The band in bytes: policy, not spare room."""
    peak_used_bytes: int | None
    mean_used_bytes: float | None
    """Mean weighted by the time from each step to the next."""
    peak_cached_bytes: int | None
    min_free_bytes: int | None


def kv_budget(engine: Engine, steps: Steps) -> KvBudget:
    """The KV budget of a run: sizes of ``engine``'s cache, use over ``steps``."""
    kv = engine.kv
    capacity = kv.capacity_units * kv.unit_bytes
    margin = safety_margin(engine)
    known = steps.kv_used >= 0  # damage may hide the geometry
    return KvBudget(
        unit_name=kv.unit_name,
        unit_bytes=kv.unit_bytes,
        capacity_units=kv.capacity_units,
        capacity_bytes=capacity,
        capacity_tokens=kv.capacity_tokens,
        reserved_bytes=kv.reserved_bytes,
        safety_margin=margin,
        margin_bytes=None if margin is None else round(margin * capacity),
        peak_used_bytes=int(steps.kv_used[known].max()) if known.any() else None,
        mean_used_bytes=time_weighted_mean(steps.kv_used[known], steps.scheduled_ns[known]) if known.any() else None,
        peak_cached_bytes=int(steps.kv_cached[known].max()) if known.any() else None,
        min_free_bytes=int(steps.kv_free[known].min()) if known.any() else None,
    )


def safety_margin(engine: Engine) -> float | None:
    """The margin that the scheduler worked with, as a share of the capacity; ``None`` when it is not one."""
    value = engine.resolved.get("safety_margin")
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if known and value is not None else None


def blocks_for(tokens: Ints, tokens_per_block: int, window: int) -> Ints:
    """Blocks of one group of layers that hold so many tokens of a request; ``window`` is -1 for full attention.

    A group without a block size (a damaged trace) counts every token as a block.
    """
    kept = np.minimum(tokens, window) if window >= 0 else tokens
    return -(-kept // max(tokens_per_block, 1))


def time_weighted_mean(values: Ints, at_ns: Ints) -> float:
    """Mean of a quantity that holds from each instant to the next; the last value has no weight unless it is alone.

    Computed in whole numbers, whose products are beyond 64 bits, and rounded once.
    """
    weights: list[int] = np.diff(at_ns).tolist()
    total = sum(weights)
    if not total:
        return float(values.mean())
    weighted: int = sum(map(mul, values[:-1].tolist(), weights))
    return weighted / total
