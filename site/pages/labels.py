"""Words for values of the trace: events, reasons and the health of a recording."""

from __future__ import annotations

from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, EndReason, EventKind, Severity


def event_label(words: Words, kind: int) -> str:
    """The name of an event; a kind that this version does not know is shown by its number."""
    if kind in EventKind.__members__.values():
        return words(f"event.{EventKind(kind).name}")
    return words("event.unknown", kind=kind)


def stop_label(words: Words, reason: int) -> str:
    """Why admission stopped."""
    known = AdmissionStop(reason) if reason in AdmissionStop.__members__.values() else AdmissionStop.UNKNOWN
    return words(f"stop.{known.name}")


def severity_name(severity: int) -> str:
    """The class of a severity in the pages' style: ``info``, ``warning``, ``data_loss`` or ``broken``."""
    known = Severity(severity) if severity in Severity.__members__.values() else Severity.BROKEN
    return known.name.lower()


def health(trace: Trace, *, doubtful: bool = False) -> str:
    """How far a recording can be trusted: ``complete``, ``warning``, ``incomplete`` or ``damaged``. It may be
    ``doubtful`` for reasons that are not in this trace."""
    status = trace.recovery.status
    if status == "damaged":
        return "damaged"
    if status in ("cut", "stopped"):
        return "incomplete"
    worst = max((notice.severity for notice in trace.notices), default=0)
    worst = max(worst, int(trace.recovery.severity))
    running = bool((trace.requests.end_reason == EndReason.RUNNING).any())
    return "warning" if worst >= Severity.WARNING or status == "ring" or running or doubtful else "complete"


def request_label(trace: Trace, request: int) -> str:
    """The id of a request; with its incarnation where the same id was submitted more than once."""
    if not 0 <= request < len(trace.requests.id):
        return ""
    again = int(trace.requests.incarnation[request])
    name = trace.requests.id[request] or f"#{request}"
    return f"{name} ({again + 1})" if again else name


def run_name(trace: Trace, summary: RunSummary) -> str:
    """What a run is called: its name, or the name of its file."""
    return summary.name.strip() or trace.path.stem
