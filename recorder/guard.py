"""Hooks that cannot hurt: whatever our handlers do, the engine's call is made once, with its own arguments, and returns
or raises what it would have without us.

A step passes through about ten of them, so each shape of hook has a stand-in of its own, without a layer in between.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cbtrace.recorder.cost import CostHistogram
from cbtrace.recorder.hooks import Around, Holder
from cbtrace.recorder.sink import Sink

_BALLAST = 1 << 21
"""Copying 2 MiB touches 4 MiB: more than a core's second-level cache."""

Before = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""``(t_ns, args, kwargs)``; what it returns is handed to the handler that runs after the call."""
After = Callable[[int, Any, Any], None]
"""``(t_ns, result, token)`` with what the handler before the call returned (``None`` without one)."""
Failed = Callable[[int, BaseException, Any], None]
"""``(t_ns, error, token)``; the error goes on to the engine afterwards."""


def noting(sink: Sink, note: Callable[[Any], None]) -> Around:
    """Build the stand-in for a method whose result is only to be kept: too little to be timed."""
    cost, frame = sink.cost, sink.cost.frame_ns

    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            result = hook.original(*args, **kwargs)
            if sink.live:
                try:
                    note(result)
                except Exception as error:
                    sink.fail(error)
                cost.open_ns += frame
            return result

        return stand_in

    return around


def spanning(sink: Sink, after: After) -> Around:
    """Build the stand-in for a method of which only begin and end are of interest: the token is when it began."""
    clock, epoch, cost, frame = sink.clock, sink.epoch_ns, sink.cost, sink.cost.frame_ns

    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            begun = clock()
            result = hook.original(*args, **kwargs)
            if sink.live:
                ended = clock()
                try:
                    after(ended - epoch, result, begun - epoch)
                except Exception as error:
                    sink.fail(error)
                cost.open_ns += clock() - ended + frame
            return result

        return stand_in

    return around


def guarded(
    sink: Sink, before: Before | None = None, after: After | None = None, failed: Failed | None = None
) -> Around:
    """Build the stand-in for a method: handlers run around it, are timed, and never raise."""
    if before is not None and after is not None:
        return _both(sink, before, after, failed)
    assert failed is None, "the failure of a method is watched together with its begin and end"
    if before is not None:
        return _before(sink, before)
    assert after is not None
    return _after(sink, after)


def _before(sink: Sink, before: Before) -> Around:
    clock, epoch, cost, frame = sink.clock, sink.epoch_ns, sink.cost, sink.cost.frame_ns

    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if sink.live:
                begun = clock()
                try:
                    before(begun - epoch, args, kwargs)
                except Exception as error:
                    sink.fail(error)
                cost.open_ns += clock() - begun + frame
            return hook.original(*args, **kwargs)

        return stand_in

    return around


def _after(sink: Sink, after: After) -> Around:
    clock, epoch, cost, frame = sink.clock, sink.epoch_ns, sink.cost, sink.cost.frame_ns

    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            result = hook.original(*args, **kwargs)
            if sink.live:
                begun = clock()
                try:
                    after(begun - epoch, result, None)
                except Exception as error:
                    sink.fail(error)
                cost.open_ns += clock() - begun + frame
            return result

        return stand_in

    return around


def _both(sink: Sink, before: Before, after: After, failed: Failed | None) -> Around:
    clock, epoch, cost, frame = sink.clock, sink.epoch_ns, sink.cost, sink.cost.frame_ns

    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not sink.live:
                return hook.original(*args, **kwargs)
            token = None
            begun = clock()
            try:
                token = before(begun - epoch, args, kwargs)
            except Exception as error:
                sink.fail(error)
            cost.open_ns += clock() - begun + frame
            try:
                result = hook.original(*args, **kwargs)
            except BaseException as error:
                if failed is not None and sink.live:
                    try:
                        failed(sink.now(), error, token)
                    except Exception as own:
                        sink.fail(own)
                raise
            if sink.live:
                begun = clock()
                try:
                    after(begun - epoch, result, token)
                except Exception as error:
                    sink.fail(error)
                cost.open_ns += clock() - begun + frame
            return result

        return stand_in

    return around


@functools.cache
def measure_frame(calls: int = 25) -> int:
    """Return the nanoseconds of a hook that its own clock cannot see: calling the stand-in, and reading the clock.

    Measured once a process, with the processor's caches emptied before each call, since that is how hooks find them: in
    a tight loop, the same takes a third. It takes some tens of milliseconds.
    """

    class Bare:
        cost = CostHistogram()
        live, epoch_ns, clock = True, 0, time.monotonic_ns

    def engine_call() -> None: ...

    hooked = _after(Bare, lambda _t, _result, _token: None)(SimpleNamespace(original=engine_call))  # type: ignore[arg-type]
    unseen: dict[Callable[..., Any], list[int]] = {engine_call: [], hooked: []}
    ballast = bytearray(_BALLAST)
    for _ in range(calls):
        for call, spent in unseen.items():
            bytes(ballast)
            seen = Bare.cost.open_ns
            begun = time.perf_counter_ns()
            call()
            spent.append(time.perf_counter_ns() - begun - (Bare.cost.open_ns - seen))
    bare, with_hook = (statistics.median(spent) for spent in unseen.values())
    return max(0, round(with_hook - bare))
