"""What the interval of each step was spent on.

The interval of a step runs from the results of the step before to its own results: the time that a request in it waits
from one token to the next. The first step of a trace has none before it, so its interval begins at its own start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.clock import Phase, PhaseClock
from cbtrace.traces.columns import Bools, Ints, Steps

LIKE_SIZE = 1.25
"""A decode-only step is of like size when its number of decode tokens is within this factor."""


@dataclass(frozen=True)
class StepCosts:
    """One row a step; nanoseconds. ``host + capture + copy + idle + compute`` is the interval, where it is known."""

    start_ns: Ints
    end_ns: Ints
    host: Ints
    capture: Ints
    copy: Ints
    idle: Ints
    compute: Ints
    """A batch was in flight, and nothing of the above."""
    shared: Ints
    """Estimate: how much longer the step computed than decode-only steps of like size, because of prompt tokens."""
    shared_known: Bools
    """False where the run has no decode-only step of like size, so that there is no estimate."""
    baseline: Ints
    """The median compute time of decode-only steps of like size; -1 where there are none."""
    plain: Bools
    """Decode-only steps without a capture: those that the baseline is made of."""
    known: Bools
    """False where damage lost the step before."""


def step_costs(steps: Steps, clock: PhaseClock) -> StepCosts:
    """Costs of every step of a run."""
    end = steps.ready_ns
    start = np.concatenate([steps.start_ns[:1], end[:-1]])
    known = np.ones(len(end), dtype=bool)
    known[1:] = np.diff(steps.index) == 1
    spent = clock.amounts(start, end)
    host, capture, copy, idle = (spent[phase] for phase in (Phase.HOST, Phase.CAPTURE, Phase.COPY, Phase.IDLE))
    compute = end - start - host - capture - copy - idle
    mixed = (steps.prefill_tokens + steps.recompute_tokens) > 0
    plain = ~mixed & known & (capture == 0) & (steps.decode_tokens > 0)
    baseline = _baseline(steps.decode_tokens, compute, plain)
    extra = np.maximum(compute - baseline, 0)
    return StepCosts(
        start_ns=start,
        end_ns=end,
        host=host,
        capture=capture,
        copy=copy,
        idle=idle,
        compute=compute,
        shared=np.where(mixed & (baseline >= 0), extra, 0),
        shared_known=~mixed | (baseline >= 0),
        baseline=baseline,
        plain=plain,
        known=known,
    )


def _baseline(tokens: Ints, compute: Ints, plain: Bools) -> Ints:
    """By step: the median compute time of decode-only steps of like size; -1 where there are none."""
    sizes, size_of = np.unique(tokens, return_inverse=True)
    order = np.argsort(tokens[plain], kind="stable")
    sorted_tokens, sorted_compute = tokens[plain][order], compute[plain][order]
    first = np.searchsorted(sorted_tokens, np.ceil(sizes / LIKE_SIZE))
    last = np.searchsorted(sorted_tokens, np.floor(sizes * LIKE_SIZE), side="right")
    medians = [
        int(np.median(sorted_compute[lo:hi])) if hi > lo else -1
        for lo, hi in zip(first.tolist(), last.tolist(), strict=True)
    ]
    found: Ints = np.array(medians, dtype=np.int64)[size_of]
    return found
