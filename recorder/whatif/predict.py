"""One prediction: recorded requests on an engine with other settings, written as a trace that says it is predicted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import structs

from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.memory_model import predicted_memory
from cbtrace.recorder.options import Options
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.whatif.dry_engine import DryEngine, build_dry_engine
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.pace import Clock
from cbtrace.recorder.whatif.recording import Recording
from cbtrace.recorder.whatif.replay import DeadEndError, Replay
from cbtrace.recorder.whatif.settings import EngineSettings
from cbtrace.recorder.whatif.time_model import Beyond, ModelPace, TimeModel
from cbtrace.recorder.whatif.timed_parts import PredictedTimer, TimedParts
from cbtrace.traces import Trace, TraceExistsError, TraceWriter
from cbtrace.traces.aside import written_aside
from cbtrace.traces.schema import Header, Scalar

_NO_DEVICE_TIMES = "the recordings have no device times to predict from"


def predict(
    recording: Recording,
    changes: Mapping[str, Scalar],
    model: TimeModel,
    out: Path,
    *,
    overwrite: bool = False,
    slowness: Callable[[int], float] = lambda _now_ns: 1.0,
) -> list[Beyond]:
    """Write to ``out`` the trace of the recorded requests with changed settings; return what lies beyond what was seen.

    Requests arrive when they were submitted, and each generates as many tokens as it did. The model of time says how
    long each part of a step takes, on a host that is as slow as ``slowness`` says of an instant of the trace, in
    nanoseconds: as usual, if it is not given. The file is there as a whole or not at all.

    Raises:
        ReplayError: the effect cannot be told; or it can, and the engine would not start or would come to a dead end.
        TraceExistsError: ``out`` exists and is not to be replaced.
    """
    if out.exists() and not overwrite:
        raise TraceExistsError(f"{out} exists already: choose another name, or replace it with --overwrite.")
    trace = recording.trace
    settings = EngineSettings.of(trace.engines[0]).changed(trace, changes)
    engine = _build(trace, settings, changes)
    # The loop first looks for requests when it did: what had been submitted until then is taken at once.
    clock = Clock(int(trace.steps.start_ns[0]))
    pace = ModelPace(model, lambda: slowness(clock.now_ns))
    with written_aside(out) as aside:
        _simulate(recording, engine, settings, changes, pace, clock, aside)
    return [beyond for _, beyond in sorted(pace.beyond.items())]


def _build(trace: Trace, settings: EngineSettings, changes: Mapping[str, Scalar]) -> DryEngine:
    try:
        return build_dry_engine(trace.engines[0].model, settings)
    except MemoryError as error:
        raise ReplayError(
            f"With {told(changes)} the KV cache and its buffers would not fit on the device ({error}): choose fewer "
            "blocks or batch tokens.",
            slug="predicted-does-not-fit",
        ) from error
    except (ValueError, TypeError) as error:
        raise ReplayError(f"The engine refuses {told(changes)}: {error}", slug="whatif-setting") from error


def _simulate(
    recording: Recording,
    engine: DryEngine,
    settings: EngineSettings,
    changes: Mapping[str, Scalar],
    pace: ModelPace,
    clock: Clock,
    path: Path,
) -> None:
    trace = recording.trace
    timer = PredictedTimer(TimedParts(engine, pace, clock), "" if pace.model.has_device_times else _NO_DEVICE_TIMES)
    sink = Sink(TraceWriter(path), path, 0, clock=clock)
    watch = EngineWatch(sink, Options(nvml=False))
    sink.emit(_header(trace, changes))
    adapter = watch.replay_begins(engine.manager, engine.processor, timer)
    memory, _ = predicted_memory(
        engine.processor.cache, engine.manager.continuous_batching_config, engine.manager.model
    )
    resolved = settings.facts | engine.resolved
    sink.emit(
        structs.replace(trace.engines[0], resolved=resolved, kv=adapter.geometry, predicted_memory=memory, missing=[])
    )
    replay = Replay(
        engine,
        recording.workload,
        arrives=lambda request, _step: request.submit_ns <= clock.now_ns,
        is_cancelled=lambda request, _step: request.cancel_ns <= clock.now_ns,
        submit=lambda request: watch.submit_begins(request.submit_ns),
        idle=lambda request: clock.wait_until(request.submit_ns),
    )
    _run(replay, watch, changes)


def _run(replay: Replay, watch: EngineWatch, changes: Mapping[str, Scalar]) -> None:
    try:
        replay.run()
    except DeadEndError as error:
        raise ReplayError(
            f"With {told(changes)} the engine would come to a dead end after {replay.steps} steps and die: no request "
            "could be scheduled and none put off. Choose a larger KV cache, or shorter requests.",
            slug="predicted-dead-end",
        ) from error
    finally:
        watch.close()
    if watch.sink.stopped_by is not None:
        raise ReplayError(
            f"The prediction could not be written ({watch.sink.stopped_by[1]}): make room, and try again."
        )


def _header(trace: Trace, changes: Mapping[str, Scalar]) -> Header:
    source = trace.header
    return structs.replace(
        source,
        run_id=secrets.token_hex(8),
        name=f"{source.name}, predicted for {told(changes)}",
        tags={"predicted_from": source.run_id, "changes": told(changes)},
        wall_ns=time.time_ns(),
        stored=[],
        predicted=True,
    )


def told(changes: Mapping[str, Scalar]) -> str:
    """Changes in words."""
    return ", ".join(f"{key}={value}" for key, value in changes.items()) or "its own settings"
