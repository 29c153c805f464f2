"""Hooks that cannot hurt: whatever our handlers do, the engine's call is made once, with its own arguments, and returns
or raises what it would have without us."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cbtrace.recorder.hooks import Around, Hook
from cbtrace.recorder.sink import Sink

Before = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""``(t_ns, args, kwargs)``; what it returns is handed to the handler that runs after the call."""
After = Callable[[int, Any, Any], None]
"""``(t_ns, result, token)`` with what the handler before the call returned (``None`` without one)."""
Failed = Callable[[int, BaseException, Any], None]
"""``(t_ns, error, token)``; the error goes on to the engine afterwards."""


def guarded(
    sink: Sink, before: Before | None = None, after: After | None = None, failed: Failed | None = None
) -> Around:
    """Build the stand-in for a method: handlers run around it, are timed, and never raise."""
    clock, epoch, spend = time.monotonic_ns, sink.epoch_ns, sink.cost.spend

    def run(handler: Callable[..., Any], *args: Any) -> Any:
        begun = clock()
        try:
            return handler(begun - epoch, *args)
        except Exception as error:
            sink.fail(error)
            return None
        finally:
            spend(clock() - begun)

    def around(hook: Hook) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if not sink.live:
                return hook.original(*args, **kwargs)
            token = run(before, args, kwargs) if before is not None else None
            try:
                result = hook.original(*args, **kwargs)
            except BaseException as error:
                if failed is not None and sink.live:
                    run(failed, error, token)
                raise
            if after is not None and sink.live:
                run(after, result, token)
            return result

        return stand_in

    return around
