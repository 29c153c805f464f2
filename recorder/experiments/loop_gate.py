"""Holds an engine's loop before its first batch, until the workload begins.

Starting a loop takes time: the KV cache is cleared, which is half a second for 129 GiB. A request that was submitted
meanwhile would count it as time in the queue, and a server that has been up for a minute has no such time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cbtrace.recorder.hooks import Holder, Hook

_POLL_S = 0.05


class LoopGate:
    """Stands before the first batch of a warmed-up manager that has not been started; goes away once passed.

    The loop waits inside ``prepare_next_batch``, below which a recording sees nothing of the wait. An asynchronous
    engine of Transformers 5.14 must find a request in its first batch, so the gate opens when there is one.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._reached = threading.Event()
        self._opened = threading.Event()
        self._hook = Hook(manager.batch_processor, "prepare_next_batch", self._around)

    def reached(self) -> bool:
        """Wait until the loop stands at the gate; return whether it does, or has ended before."""
        while not self._reached.wait(_POLL_S):
            if not self._manager.is_running():
                return self._reached.is_set()
        return True

    def open(self) -> None:
        """Let the loop go on. Idempotent."""
        self._opened.set()

    def _around(self, hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self._hook.remove()
            self._reached.set()
            self._opened.wait()
            return hook.original(*args, **kwargs)

        return stand_in
