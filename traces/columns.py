"""The tables a trace is read into: numpy columns, one dataclass a table.

All columns of a table have the same length. Times are int64 nanoseconds from the trace's start, ``-1`` for never or
unknown; KV amounts are int64 **bytes**. ``request`` columns hold ordinals (row numbers of :class:`Requests`), ``step``
columns hold step indices (:attr:`Steps.index`, not row numbers: a damaged trace has gaps).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Steps:
    """One row a step, in order of index."""

    index: Ints
    start_ns: Ints
    scheduled_ns: Ints
    prepared_ns: Ints
    launched_ns: Ints
    ready_ns: Ints
    done_ns: Ints
    gpu_ns: Ints
    kv_free: Ints
    kv_cached: Ints
    kv_used: Ints
    """Capacity less free less cached."""
    waiting: Ints
    active: Ints
    members: Ints
    """Requests in the batch."""
    prefill_tokens: Ints
    """Prompt tokens computed for the first time."""
    decode_tokens: Ints
    recompute_tokens: Ints
    """Tokens computed again after a soft reset."""
    new_tokens: Ints
    """Tokens delivered to requests."""
    wasted_tokens: Ints
    """Tokens computed and dropped."""
    kv_read: Ints
    """KV entries of earlier positions that the batch reads, summed over its members; -1 where one is unknown."""
    padded_queries: Ints
    """Query length after padding; equals the real one when nothing is padded."""
    padded_kv: Ints
    """KV length after padding; -1 on the decode fast path, and the real one when nothing is padded."""
    starved: Ints
    """Active requests that got no KV."""
    stop: Ints
    """:class:`~cbtrace.traces.schema.AdmissionStop`."""
    flags: Ints
    """:class:`~cbtrace.traces.schema.StepFlag`."""
    attempts: Ints
    members_known: Bools
    """False where damage lost an admission, so that some members cannot be named."""


@dataclass(frozen=True)
class StepRequests:
    """One row for each request in each step, ordered by step, then by request."""

    step: Ints
    request: Ints
    prefill: Ints
    decode: Ints
    recompute: Ints
    position: Ints
    """KV entries of the request before the step; -1 where damage, or a ring, lost what it takes to know."""
    new_token: Bools
    """The step gave the request a token that was delivered."""
    wasted: Bools
    """The step computed a token for the request that was dropped."""


@dataclass(frozen=True)
class Requests:
    """One row a request; row number = ordinal."""

    id: list[str]
    incarnation: Ints
    parent: Ints
    prompt_tokens: Ints
    max_new_tokens: Ints
    planned_ns: Ints
    submit_ns: Ints
    visible_ns: Ints
    """First hand-over to the scheduler."""
    admitted_ns: Ints
    """First admission (prefix match or first scheduled token)."""
    first_token_ns: Ints
    last_token_ns: Ints
    end_ns: Ints
    end_reason: Ints
    """:class:`~cbtrace.traces.schema.EndReason`."""
    generated: Ints
    """Tokens delivered."""
    prefill_computed: Ints
    prefix_hit: Ints
    """Prompt tokens that the first admission found in the prefix cache."""
    recomputed: Ints
    recompute_saved: Ints
    """Tokens that a later admission found in the prefix cache instead of computing them again."""
    wasted: Ints
    soft_resets: Ints
    offloads: Ints
    flags: Ints
    """:class:`~cbtrace.traces.schema.RequestFlag`."""
    prompt_hash: list[bytes]
    output_hash: list[bytes]
    error: list[str]


@dataclass(frozen=True)
class Tokens:
    """One row a delivered token, ordered by request, then position."""

    request: Ints
    position: Ints
    """1 for the first token of a request; -1 where steps are missing and it cannot be counted from either end."""
    step: Ints
    time_ns: Ints
    """The host had the results of the step (:attr:`Steps.ready_ns`)."""


@dataclass(frozen=True)
class Admissions:
    """One row an admission, ordered by serial."""

    serial: Ints
    request: Ints
    slot: Ints
    step: Ints
    time_ns: Ints
    residency: Ints
    start: Ints
    prefix_hit: Ints
    computed: Ints


@dataclass(frozen=True)
class Events:
    """One row an event, ordered as recorded. Fields as :class:`~cbtrace.traces.schema.Event`.

    An event of a request that a ring has given up names none (-1)."""

    kind: Ints
    time_ns: Ints
    step: Ints
    request: Ints
    tokens: Ints
    blocks: Ints
    bytes: Ints
    duration_ns: Ints
    text: list[str]


@dataclass(frozen=True)
class MemorySamples:
    """One row a sample or budget mark. Fields as :class:`~cbtrace.traces.schema.Memory`."""

    time_ns: Ints
    mark: list[str]
    allocated: Ints
    reserved: Ints
    peak_allocated: Ints
    peak_reserved: Ints
    device_used: Ints
    device_total: Ints
    host_rss: Ints


@dataclass(frozen=True)
class GpuSamples:
    """One row an NVML sample. Fields as :class:`~cbtrace.traces.schema.Gpu`."""

    time_ns: Ints
    utilization: Ints
    memory_used: Ints
    power_mw: Ints
    sm_clock_mhz: Ints
    memory_clock_mhz: Ints
    temperature_c: Ints
    throttle: Ints
    processes: Ints
