"""Whether the replay of a recording with its own settings gives the schedule that was recorded.

Requests are handed over at the step at which the recorded scheduler got them, whatever the time; everything else is the
engine's own decision, and must be the same.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.gpu_time import GpuStepTimer
from cbtrace.recorder.options import Options
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.whatif.dry_engine import build_dry_engine
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.replay import DeadEndError, Replay
from cbtrace.recorder.whatif.replayable import check_replayable
from cbtrace.recorder.whatif.schedule import Difference, first_difference
from cbtrace.recorder.whatif.settings import EngineSettings
from cbtrace.recorder.whatif.workload import ReplayRequest, recorded_workload
from cbtrace.traces import Trace, TraceWriter, open_trace
from cbtrace.traces.schema import EndReason, EventKind


def self_check(trace: Trace) -> list[ReplayRequest]:
    """Replay a recording with its own settings; return the workload whose replay gave the recorded schedule.

    Raises:
        ReplayError: it cannot be replayed, or a step differs; the sentence names the first that does.
    """
    check_replayable(trace)
    workload = recorded_workload(trace)
    difference = _difference(trace, workload)
    if difference is None:
        return workload
    text = f"{trace.path.name} cannot be replayed: with its own settings, the schedule differs from {difference}. "
    if not (trace.requests.prefix_hit > 0).any():
        raise ReplayError(f"{text}If the engine or its settings were changed while it ran, a replay cannot know.")
    workload = recorded_workload(trace, all_share=True)
    if _difference(trace, workload) is not None:
        raise ReplayError(
            f"{text}Prompts share prefixes, and a trace holds no tokens: which share which cannot be told. "
            "Record the workload without shared prefixes, or with one that all share.",
            slug="replay-prefix",
        )
    return workload


def _difference(trace: Trace, workload: list[ReplayRequest]) -> Difference | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replayed.cbt"
        is_dead = _replay(trace, workload, path)
        fatal = np.flatnonzero(trace.events.kind == EventKind.FATAL_ERROR)
        if fatal.size and not is_dead:
            raise ReplayError(
                f"{trace.path.name} cannot be replayed, because its engine died of {trace.events.text[fatal[0]]}: "
                "record a run that goes to its end.",
                slug="replay-engine-died",
            )
        return first_difference(trace, open_trace(path))


def _replay(trace: Trace, workload: list[ReplayRequest], path: Path) -> bool:
    """Write the replay to ``path``; return whether it came to a dead end."""
    engine = build_dry_engine(trace.engines[0].model, EngineSettings.of(trace.engines[0]))
    sink = Sink(TraceWriter(path), path, 0, clock=lambda: 0)
    watch = EngineWatch(sink, Options(nvml=False))
    sink.emit(trace.header)
    # A replay by steps knows no times: neither the host's nor a device's.
    adapter = watch.replay_begins(engine.manager, engine.processor, GpuStepTimer(lambda: None, "cpu"))
    sink.emit(structs.replace(trace.engines[0], kv=adapter.geometry))
    scheduled = trace.steps.scheduled_ns
    due = {request.ordinal: int(np.searchsorted(scheduled, request.visible_ns)) for request in workload}
    replay = Replay(
        engine,
        [_as_cancelled(trace, request) for request in workload],
        arrives=lambda request, step: due[request.ordinal] <= step,
        is_cancelled=lambda request, step: int(np.searchsorted(scheduled, request.cancel_ns)) <= step,
        submit=lambda _request: watch.submit_begins(0),
        # A batch that was scheduled and held nobody is no step: the next arrival comes when there is nothing else.
        idle=lambda request: due.update({request.ordinal: 0}),
    )
    try:
        replay.run()
    except DeadEndError:
        return True
    finally:
        watch.close()
    return False


def _as_cancelled(trace: Trace, request: ReplayRequest) -> ReplayRequest:
    """A cancellation counts from when the engine took the request out, and only if it came in time."""
    took_effect = trace.requests.end_reason[request.ordinal] == EndReason.CANCELLED
    return replace(request, cancel_ns=int(trace.requests.end_ns[request.ordinal]) if took_effect else -1)
