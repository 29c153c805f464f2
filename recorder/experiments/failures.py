"""What kinds of failure a run or a request can come to, and how they are told apart."""

from __future__ import annotations

import re

from cbtrace.recorder.engine_watch import is_out_of_memory
from cbtrace.traces.experiment import FailureKind

_DEAD_END = re.compile(r"No requests? can be (scheduled|offloaded)")
_SIZING = re.compile(r"No positive solution|Memory footprint|num_(sectors|blocks) = -|(n't|not) allocate memory")
"""How engines and the allocator of the CPU say that something does not fit, in errors that are not of memory."""


class EngineDiedError(Exception):
    """The generation thread ended with requests pending; the cause is what it died of."""


def failure_kind(error: BaseException) -> FailureKind:
    """Name the kind of an error that ended a run."""
    cause = error.__cause__ if isinstance(error, EngineDiedError) and error.__cause__ is not None else error
    if isinstance(cause, (KeyboardInterrupt, SystemExit)):
        return "cancelled"
    if is_out_of_memory(cause) or _SIZING.search(str(cause)):
        return "oom"
    return "dead_end" if _DEAD_END.search(str(cause)) else "error"


def request_failure_kind(error_class: str) -> FailureKind:
    """Name the kind of a request's failure by the class of its error, which is all that a trace holds of it."""
    if error_class in ("OutOfMemoryError", "MemoryError"):
        return "oom"
    return "timeout" if "Timeout" in error_class else "error"
