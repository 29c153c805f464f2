"""The trace format: schema, writer, reader, recovery. Imports nothing else of cbtrace.

::

    from cbtrace.traces import open_trace

    trace = open_trace("run.cbt")
    print(trace.recovery.status, trace.requests.generated.sum())
"""

from .errors import (
    CbtraceError,
    EmptyTraceError,
    Message,
    NotATraceError,
    TraceError,
    TraceExistsError,
    TraceFullError,
    TraceNotFoundError,
    TraceVersionError,
    UsageError,
    catalogue,
    declare,
    explain,
)
from .reader import Trace, open_trace
from .recovery import Finding, LostRange, RecoveryReport
from .upgrade import upgrade_trace
from .writer import TraceWriter

__all__ = [
    "CbtraceError",
    "EmptyTraceError",
    "Finding",
    "LostRange",
    "Message",
    "NotATraceError",
    "RecoveryReport",
    "Trace",
    "TraceError",
    "TraceExistsError",
    "TraceFullError",
    "TraceNotFoundError",
    "TraceVersionError",
    "TraceWriter",
    "UsageError",
    "catalogue",
    "declare",
    "explain",
    "open_trace",
    "upgrade_trace",
]
