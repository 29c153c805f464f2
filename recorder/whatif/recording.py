"""Recordings that a prediction rests on: each replayed exactly, all of one model on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.self_check import self_check
from cbtrace.recorder.whatif.shapes import Measured, measure
from cbtrace.recorder.whatif.workload import ReplayRequest
from cbtrace.traces import Trace
from cbtrace.traces.schema import Facts

_CONDITIONS = ("hardware.gpu.name", "hardware.cpu", "software.transformers", "software.torch")
_NOT_OF_THE_MODEL = ("name", "revision", "weights_sample", "device")


@dataclass(frozen=True)
class Recording:
    """A trace, the workload whose replay gives its schedule, and its times."""

    trace: Trace
    workload: list[ReplayRequest]
    measured: Measured


def recording(trace: Trace) -> Recording:
    """Check that the replay of a trace is exact.

    Raises:
        ReplayError: it is not, or the trace cannot be replayed.
    """
    return Recording(trace, self_check(trace), measure(trace))


def check_alike(recordings: Sequence[Recording]) -> None:
    """Refuse recordings for which no one model of time can hold.

    Raises:
        ReplayError: two differ in their model, machine or version.
    """
    first = recordings[0].trace
    for other in (recording.trace for recording in recordings[1:]):
        ours, theirs = _conditions(first), _conditions(other)
        unlike = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if unlike:
            raise ReplayError(
                f"{first.path.name} and {other.path.name} differ in {', '.join(unlike)}, so that no one model of time "
                "holds for both: name recordings of one model on one machine.",
                slug="whatif-unlike-runs",
            )


def _conditions(trace: Trace) -> Facts:
    model = {f"model.{key}": value for key, value in trace.engines[0].model.items() if key not in _NOT_OF_THE_MODEL}
    return model | {key: trace.header.fingerprint.get(key) for key in _CONDITIONS}
