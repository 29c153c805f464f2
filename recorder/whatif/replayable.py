"""Whether a recording holds all that its replay needs."""

from __future__ import annotations

from cbtrace.recorder.engine.classes import manager_class
from cbtrace.recorder.supported import is_verified
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.traces import Trace
from cbtrace.traces.schema import EndReason, EventKind, RequestFlag


def check_replayable(trace: Trace) -> None:
    """Refuse a trace that cannot be replayed here.

    Raises:
        ReplayError: the sentence says why, and what to do.
    """
    name = trace.path.name
    _check_kind(trace, name)
    if not trace.recovery.whole or not trace.steps.index.size:
        why = "it has no steps" if trace.recovery.whole else f"the trace is not whole ({trace.recovery.status})"
        raise ReplayError(
            f"{name} cannot be replayed, because {why}: record the whole run, without a ring.", slug="replay-incomplete"
        )
    if len(trace.engines) > 1 or trace.header.world_size > 1 or _sessions(trace) > 1:
        raise ReplayError(
            f"{name} cannot be replayed, because it is of several engines, sessions or ranks: record one engine, from "
            "its start to its end.",
            slug="replay-several",
        )
    if (trace.requests.flags & RequestFlag.SUBMIT_UNSEEN).any():
        raise ReplayError(
            f"{name} cannot be replayed, because some of its requests are older than the recording: start recording "
            "before the first request.",
            slug="replay-incomplete",
        )
    if ((trace.requests.parent >= 0) & (trace.requests.end_reason == EndReason.CANCELLED)).any():
        raise ReplayError(
            f"{name} cannot be replayed, because a forked request was cancelled: record a run without.",
            slug="replay-incomplete",
        )
    _check_version(trace, name)


def _check_kind(trace: Trace, name: str) -> None:
    if trace.header.predicted:
        why = "is a prediction itself"
    elif not trace.engines:
        why = "holds no engine"
    elif trace.engines[0].adapter not in ("blocks", "sectors"):
        why = "is of static batching"
    else:
        return
    raise ReplayError(
        f"{name} {why}, so there is no schedule to replay: name a recording of continuous batching.",
        slug="replay-not-continuous",
    )


def _check_version(trace: Trace, name: str) -> None:
    try:
        manager_class()
    except ImportError as error:
        raise ReplayError(
            "Transformers with continuous batching is not installed here: "
            'install the recorder\'s part with pip install "cbtrace[record]".',
            slug="no-transformers",
        ) from error
    recorded, installed = trace.header.fingerprint.get("software.transformers"), is_verified()[0]
    if recorded != installed:
        raise ReplayError(
            f"{name} was recorded with Transformers {recorded}, and {installed} is installed here, whose scheduler may "
            f"decide otherwise: replay it where transformers=={recorded} is installed.",
            slug="replay-other-version",
        )


def _sessions(trace: Trace) -> int:
    return int((trace.events.kind == EventKind.SESSION_START).sum())
