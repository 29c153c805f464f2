"""The methods of Transformers' engine that the recorder hooks, and the parameters that it expects them to take.

The recorder itself finds out at run time what is there and what is not (:class:`~cbtrace.recorder.hooks.HookSet`). This
table is for ``cbtrace doctor``: it also covers hooks that only an engine on a GPU gets, and names parameters, which
tell that a method has changed its meaning before any figure is wrong.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PACKAGE = "transformers.generation.continuous_batching"


@dataclass(frozen=True)
class HookPoint:
    """One method. ``parameters`` are those that it takes first, without ``self``; more may follow. An ``optional`` one
    is in some tested versions only."""

    module: str
    owner: str
    method: str
    parameters: tuple[str, ...] = ()
    optional: bool = False

    @property
    def name(self) -> str:
        """Class and method."""
        return f"{self.owner}.{self.method}"


def _points(module: str, owner: str, **methods: tuple[str, ...]) -> list[HookPoint]:
    return [HookPoint(module, owner, method, parameters) for method, parameters in methods.items()]


_MANAGER = _points(
    "continuous_api",
    "ContinuousBatchingManager",
    __init__=("model", "generation_config", "continuous_batching_config"),
    _create_batch_processor=(),
    add_request=("input_ids", "request_id", "max_new_tokens", "streaming"),
    cancel_request=("request_id",),
    start=(),
    stop=("block", "timeout", "keep_for_next_session"),
    join=("stop_trigger_time", "timeout"),
    _handle_critical_error=("error", "batch_processor"),
)
_PROCESSOR = _points(
    "continuous_api",
    "ContinuousBatchProcessor",
    __init__=("cache",),
    prepare_next_batch=(),
    _generation_step=("model",),
    update_batch=(),
    warmup=("model",),
    _handle_request_error=("error", "state"),
)
_SCHEDULER = _points(
    "scheduler",
    "Scheduler",
    add_waiting_request=("state",),
    finish_request=("request_id",),
    set_request_cancellation=("request_id",),
    clear_cancelled_requests=(),
    schedule_batch=("token_budget", "cache_budget"),
    _process_candidates=("candidates", "token_budget", "cache_budget", "request_ids_to_remove_from_waiting"),
)
_WORKERS = [
    *_points(
        "offloading_manager",
        "OffloadingManager",
        offload_requests=(),
        restore_scheduled_requests=("requests_in_batch",),
    ),
    *_points(
        "model_runner",
        "ModelRunner",
        maybe_pad_inputs=("num_q_tokens", "max_kv_read", "use_decode_fast_path"),
        compute_batch=("model", "batch_data"),
        _capture_graph=("forward_fn", "compute_stream"),
    ),
    *_points("input_outputs", "ContinuousBatchingIOs", prepare_batch_update=()),
    *_points("input_outputs", "ContinuousBatchingAsyncIOs", prepare_batch_update=()),
]
_SINCE_5_20 = [
    HookPoint("scheduler", "Scheduler", "_try_to_meet_safety_margin", optional=True),
    HookPoint("cache", "PagedAttentionCache", "evict_cached_blocks", optional=True),
]

HOOK_POINTS = (*_MANAGER, *_PROCESSOR, *_SCHEDULER, *_WORKERS, *_SINCE_5_20)
"""All of them, as they are in every tested version."""


@dataclass(frozen=True)
class Difference:
    """A hook point that is not as expected. ``found`` are its parameters; ``None`` when it is not there at all."""

    point: HookPoint
    found: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.found is None:
            return self.point.name
        expected = ", ".join(self.point.parameters)
        return f"{self.point.name}({', '.join(self.found)}) instead of ({expected})"


def differences() -> Iterator[Difference]:
    """Compare :data:`HOOK_POINTS` with the installed Transformers, importing it.

    Raises:
        ImportError: there is no continuous batching to compare with.
    """
    importlib.import_module(_PACKAGE)
    for point in HOOK_POINTS:
        method = _find(point)
        if method is None:
            if not point.optional:
                yield Difference(point, None)
            continue
        found = list(inspect.signature(method).parameters.values())[1:]
        if not _fits(point.parameters, found):
            yield Difference(point, tuple(parameter.name for parameter in found))


def _find(point: HookPoint) -> Any:
    try:
        module = importlib.import_module(f"{_PACKAGE}.{point.module}")
    except ImportError:
        return None
    method = getattr(getattr(module, point.owner, None), point.method, None)
    return method if callable(method) else None


def _fits(expected: tuple[str, ...], found: list[inspect.Parameter]) -> bool:
    """Whether the recorder finds what it reads of a call, by position and by name. What follows is passed on unread."""
    positional = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return tuple(positional[: len(expected)]) == expected
