"""The timeline of a run: one row a step, or a bucket of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis import buckets
from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Ints, Steps


@dataclass(frozen=True)
class TimelineRows:
    """Columns of equal length, one entry a bucket of ``bucket`` steps. Times are ns of the trace's clock.

    Token columns are sums over the bucket; divided by ``steps`` they are means a step. ``used_peak`` and ``cached`` are
    bytes at the step of the bucket that used most.
    """

    bucket: int
    first_step: Ints
    steps: Ints
    start_ns: Ints
    end_ns: Ints
    prefill: Ints
    decode: Ints
    recompute: Ints
    wasted: Ints
    tokens_max: Ints
    """Most tokens computed in one step of the bucket."""
    used_peak: Ints
    used_min: Ints
    cached: Ints
    waiting_max: Ints
    waiting_min: Ints
    active_max: Ints
    active_min: Ints
    duration_max: Ints
    """Longest step of the bucket, ns."""
    duration_sum: Ints
    gpu_sum: Ints
    """GPU time of the bucket's steps, ns; -1 when any of them is unknown."""


def timeline_rows(steps: Steps, bucket: int) -> TimelineRows:
    """The steps in buckets of ``bucket`` rows; extremes are kept, see :mod:`~cbtrace.site.analysis.buckets`."""
    k, n = bucket, len(steps.index)
    starts = buckets.bucket_starts(n, k)
    ends = np.minimum(starts + k, n) - 1
    computed = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    fullest = buckets.row_of_largest(steps.kv_used, k)
    duration = step_durations(steps)
    gpu_known = buckets.smallest(steps.gpu_ns, k) >= 0
    return TimelineRows(
        bucket=k,
        first_step=steps.index[starts],
        steps=buckets.bucket_sizes(n, k),
        start_ns=steps.start_ns[starts],
        end_ns=steps.done_ns[ends],
        prefill=buckets.total(steps.prefill_tokens, k),
        decode=buckets.total(steps.decode_tokens, k),
        recompute=buckets.total(steps.recompute_tokens, k),
        wasted=buckets.total(steps.wasted_tokens, k),
        tokens_max=buckets.largest(computed, k),
        used_peak=steps.kv_used[fullest],
        used_min=buckets.smallest(steps.kv_used, k),
        cached=steps.kv_cached[fullest],
        waiting_max=buckets.largest(steps.waiting, k),
        waiting_min=buckets.smallest(steps.waiting, k),
        active_max=buckets.largest(steps.active, k),
        active_min=buckets.smallest(steps.active, k),
        duration_max=buckets.largest(duration, k),
        duration_sum=buckets.total(duration, k),
        gpu_sum=np.where(gpu_known, buckets.total(steps.gpu_ns, k), -1),
    )
