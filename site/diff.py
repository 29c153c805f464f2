"""The comparison of two groups of traces, from files to verdict: what ``cbtrace diff`` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cbtrace.site.analysis.comparison import Comparison, MeasuredRun, compare, measured_run
from cbtrace.site.analysis.gate import Condition, GateResult, hold_against
from cbtrace.site.analysis.outputs import Correctness, RunOutputs, correctness, run_outputs
from cbtrace.site.analysis.summary import summarize
from cbtrace.traces import open_trace
from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class DiffRun:
    """One run of a side."""

    path: Path
    run_id: str
    name: str
    measured: MeasuredRun
    outputs: RunOutputs


@dataclass(frozen=True)
class Diff:
    """B (candidate) against A (baseline)."""

    a: list[DiffRun]
    b: list[DiffRun]
    comparison: Comparison
    correctness: Correctness
    gates: list[GateResult]
    """One for each condition."""


def diff_traces(
    a: Sequence[Path], b: Sequence[Path], conditions: Sequence[Condition] = (), progress: Progress | None = None
) -> Diff:
    """Read the traces of both sides, one or more each, and compare them.

    Raises:
        UsageError: a run is there twice, or a prediction among runs.
        TraceError: a file that is no trace; the message names it.
    """
    runs = [_read(path, done, len(a) + len(b), progress) for done, path in enumerate((*a, *b))]
    if progress is not None:
        progress(len(runs), len(runs), "")
    _check_once(runs)
    left, right = runs[: len(a)], runs[len(a) :]
    for side in (left, right):
        _check_measured(side)
    measured = [run.measured for run in left], [run.measured for run in right]
    comparison = compare(*measured)
    return Diff(
        left,
        right,
        comparison,
        correctness([run.outputs for run in left], [run.outputs for run in right]),
        hold_against(conditions, *measured, comparison.comparability),
    )


def _read(path: Path, done: int, total: int, progress: Progress | None) -> DiffRun:
    if progress is not None:
        progress(done, total, path.name)
    trace = open_trace(path)
    header = trace.header
    return DiffRun(path, header.run_id, header.name, measured_run(trace, summarize(trace)), run_outputs(trace))


def _check_once(runs: Sequence[DiffRun]) -> None:
    """A run that counts twice would make its numbers look certain. All ranks of a run have its id."""
    seen: dict[str, Path] = {}
    for run in runs:
        if run.run_id and run.run_id in seen:
            raise UsageError(
                f"{run.path} holds the same run as {seen[run.run_id]}, or another rank of it: name each run once, on "
                "one side.",
                slug="run-twice",
            )
        seen[run.run_id] = run.path


def _check_measured(side: Sequence[DiffRun]) -> None:
    """A prediction is no run: it would count in the means, and as a repeat."""
    predictions = [run.path for run in side if run.measured.conditions.predicted]
    if predictions and len(predictions) < len(side):
        raise UsageError(
            f"{predictions[0]} was predicted, and other runs on its side were measured: name predictions on a side of "
            "their own.",
            slug="prediction-among-runs",
        )


declare(
    "prediction-among-runs",
    Severity.BROKEN,
    "A side of a comparison holds runs that were measured and predictions, which count as no run.",
    "Name predictions on a side of their own, or leave them out.",
)
declare(
    "run-twice",
    Severity.BROKEN,
    "Two of the traces named hold the same run: one is a copy of the other, or a trace, or two ranks of one run, were "
    "named twice; in a comparison, on both sides.",
    "Name each run once, all its ranks on one side of a comparison. Repeats are runs that were recorded one by one.",
)
