"""What ``cbtrace whatif`` finds out: what was measured, what is predicted, and by how much predictions are off."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbtrace.commands.progress import Advance
from cbtrace.traces.errors import UsageError

if TYPE_CHECKING:
    from cbtrace.recorder.whatif.errors import ReplayError
    from cbtrace.recorder.whatif.recording import Recording
    from cbtrace.recorder.whatif.time_model import Beyond, TimeModel
    from cbtrace.traces import Trace
    from cbtrace.traces.schema import Scalar

COUNTS = ("soft_resets", "offloads", "graph_captures")
"""Numbers whose error is told as a count; that of all others as a share."""

_KEPT = 0.9

Values = dict[str, float | None]
"""By the keys of the JSON summary."""


@dataclass(frozen=True)
class Prediction:
    """One setting: its numbers, or why there are none."""

    changes: dict[str, Scalar]
    values: Values | None = None
    doubts: tuple[Beyond, ...] = ()
    """What lies beyond what was seen."""
    refused: ReplayError | None = None
    trace: Path | None = None
    memory_bytes: int | None = None
    """Of the device, as the engine's own memory model reckons; None where no device was recorded."""


@dataclass(frozen=True)
class LeftOut:
    """One recording predicted from the others: its numbers less those measured, as shares; counts as they are."""

    name: str
    errors: Values


@dataclass(frozen=True)
class Study:
    """All of it. ``left_out`` is empty when only one recording was given: nobody knows then how far predictions are
    off."""

    name: str
    paths: list[Path]
    """Of the recordings, the one that was changed first."""
    run_ids: dict[Path, str]
    """The id in the trace of each recording that was given, learned from or not."""
    left_aside: list[str]
    """Why recordings of an experiment were not learned from, a sentence each."""
    seen: tuple[float, ...]
    """How slow the host was in each recording, as a factor on its usual pace."""
    measured: Values
    own: Prediction
    predictions: list[Prediction]
    left_out: list[LeftOut]

    def error(self, key: str) -> float | None:
        """What nine in ten left-out recordings keep within, so of fewer than ten the largest; None is unknown."""
        known = sorted(abs(error) for left in self.left_out if (error := left.errors[key]) is not None)
        return known[math.ceil(_KEPT * len(known)) - 1] if known else None

    def gain(self, prediction: Prediction, key: str) -> float | None:
        """By what share it is more than what is predicted for the recording's own settings; None is unknown."""
        before, after = (self.own.values or {}).get(key), (prediction.values or {}).get(key)
        return after / before - 1 if before and after is not None else None

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "run": self.name,
            "recordings": len(self.paths),
            "left_aside": self.left_aside,
            "host_slowness": list(self.seen),
            "measured": self.measured,
            "own_settings": self.own.values,
            "own_memory_bytes": self.own.memory_bytes,
            "predictions": [_plain(prediction) for prediction in self.predictions],
            "left_out": [{"run": left.name, "errors": left.errors} for left in self.left_out],
        }


def _plain(prediction: Prediction) -> dict[str, Any]:
    refused = prediction.refused
    return {
        "changes": prediction.changes,
        "values": prediction.values,
        "memory_bytes": prediction.memory_bytes,
        "doubts": doubts_told([prediction]),
        "refused": None if refused is None else {"slug": refused.slug, "text": str(refused)},
        "trace": None if prediction.trace is None else str(prediction.trace),
    }


def doubts_told(predictions: Iterable[Prediction]) -> list[str]:
    """What lies beyond what was seen, the largest of each kind, whichever part of a step asked for it."""
    doubts = [doubt for prediction in predictions for doubt in prediction.doubts]
    largest = {doubt.term: doubt for doubt in sorted(doubts, key=lambda doubt: doubt.asked)}
    return [str(doubt) for _, doubt in sorted(largest.items())]


def study(
    paths: list[Path],
    changes: list[dict[str, Scalar]],
    outputs: list[Path | None],
    overwrite: bool,
    advance: Advance | None,
    *,
    leave_aside: bool = False,
) -> Study:
    """Predict the first recording with each of the changes.

    With ``leave_aside``, of the others those that cannot be replayed, or are copies, are not learned from, instead of
    refused.

    Raises:
        UsageError: two recordings hold the same run.
        ReplayError: a recording cannot be replayed, or they are not alike.
        TraceExistsError: an output exists and is not to be replaced.
    """
    from cbtrace.recorder.whatif.errors import ReplayError
    from cbtrace.recorder.whatif.fitting import fit
    from cbtrace.recorder.whatif.predict import told
    from cbtrace.recorder.whatif.recording import check_alike, recording
    from cbtrace.traces import open_trace

    _check_outputs(paths, [output for output in outputs if output is not None], overwrite)
    traces = [open_trace(path) for path in paths]
    run_ids = {trace.path: trace.header.run_id for trace in traces}
    left_aside = _take_out_copies(traces, leave_aside)
    total, done = 2 * len(traces) + 1 + len(changes), 0

    def step(name: str) -> None:
        nonlocal done
        if advance is not None:
            advance(done, total, name)
        done += 1

    recordings: list[Recording] = []
    for trace in traces:
        step(f"replaying {trace.path.name}")
        try:
            recordings.append(recording(trace))
        except ReplayError as error:
            if not leave_aside or not recordings:
                raise
            left_aside.append(str(error))
    check_alike(recordings)
    left_out = []
    for one in recordings if len(recordings) > 1 else ():
        step(f"leaving out {one.trace.path.name}")
        left_out.append(_left_out(one, [other for other in recordings if other is not one]))
    model = fit([one.measured for one in recordings])
    step("its own settings")
    own = _predicted(recordings[0], {}, model, None, overwrite)
    predictions = []
    for change, output in zip(changes, outputs, strict=True):
        step(told(change))
        predictions.append(_predicted(recordings[0], change, model, output, overwrite))
    first = recordings[0].trace
    return Study(
        name=first.header.name,
        paths=[one.trace.path for one in recordings],
        run_ids=run_ids,
        left_aside=left_aside,
        seen=model.seen,
        measured=_values(first.path),
        own=own,
        predictions=predictions,
        left_out=left_out,
    )


def _take_out_copies(traces: list[Trace], leave_aside: bool) -> list[str]:
    """Take out those that hold the same run as an earlier one, and return why, a sentence each: predicted from its own
    copy, a run would make predictions look certain."""
    first: dict[str, Path] = {}
    whys = []
    for trace in list(traces):
        run_id, path = trace.header.run_id, trace.path
        if not run_id or run_id not in first:
            first[run_id] = path
            continue
        why = f"{path} holds the same run as {first[run_id]}, or another rank of it"
        if not leave_aside:
            raise UsageError(f"{why}: name each run once.", slug="run-twice")
        traces.remove(trace)
        whys.append(f"{why}.")
    return whys


def _check_outputs(paths: list[Path], outputs: list[Path], overwrite: bool) -> None:
    """Refuse before anything is read."""
    from cbtrace.commands.output_file import check_not_input
    from cbtrace.traces import TraceExistsError

    for output in outputs:
        for path in paths:
            check_not_input(path, output)
        if output.exists() and not overwrite:
            raise TraceExistsError(f"{output} exists already: choose another name, or replace it with --overwrite.")


def _left_out(one: Recording, others: list[Recording]) -> LeftOut:
    from cbtrace.recorder.whatif.fitting import fit

    found = _predicted(one, {}, fit([other.measured for other in others]), None, overwrite=False)
    measured, values = _values(one.trace.path), found.values or {}
    return LeftOut(one.trace.header.name, {key: _error(key, values.get(key), measured[key]) for key in measured})


def _error(key: str, predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    if key in COUNTS:
        return predicted - measured
    return predicted / measured - 1 if measured else None


def _predicted(
    recording: Recording, changes: dict[str, Scalar], model: TimeModel, output: Path | None, overwrite: bool
) -> Prediction:
    from cbtrace.commands.output_file import writing
    from cbtrace.recorder.whatif.errors import ReplayError
    from cbtrace.recorder.whatif.predict import predict

    with tempfile.TemporaryDirectory() as folder:
        path = output or Path(folder) / "predicted.cbt"
        try:
            with writing(path):
                doubts = predict(recording, changes, model, path, overwrite=overwrite)
        except ReplayError as error:
            return Prediction(changes, refused=error)
        return Prediction(changes, _values(path), tuple(doubts), None, output, _memory_bytes(path, recording))


def _memory_bytes(predicted: Path, recording: Recording) -> int | None:
    """What was allocated before the cache was made, and the terms of the engine's memory model."""
    from cbtrace.recorder.whatif.settings import device_before_cache
    from cbtrace.traces import open_trace

    device = device_before_cache(recording.trace)
    terms = open_trace(predicted).engines[0].predicted_memory
    return device[2] + sum(terms.values()) if device is not None and terms else None


def _values(path: Path) -> Values:
    from cbtrace.site.analysis.run_values import RUN_VALUES
    from cbtrace.site.analysis.summary import summarize
    from cbtrace.traces import open_trace

    summary = summarize(open_trace(path))
    return {key: value.of(summary) for key, value in RUN_VALUES.items()}
