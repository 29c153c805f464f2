"""How far predictions of ``cbtrace whatif`` are off: every setting of a study, predicted from a few of its runs.

``python benchmarks/whatif_accuracy.py FOLDER... --fit GLOB [--fit GLOB...]``

Takes all recordings below the folders (a study, or ``traces/samples``) that this version of Transformers can replay.
The model of time is fitted to those whose path matches a ``--fit``; every setting is then predicted from the requests
of the baseline of its workload, and compared with the runs that were made of it. Prints the tables of docs/whatif.md:

* predicted less measured, in per cent of the mean of the runs, and in brackets how far these runs are apart;
* the same on a host that is as slow in each tenth of a second as it was in the run that was measured, which no
  prediction can know: what is left is the error of the model and of the schedule;
* the median and the worst of the settings that were not fitted; and what ``cbtrace whatif`` says of its own error, by
  predicting each fitted run from the other fitted ones, with how many of the settings keep within it.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.recorder.whatif.fitting import fit
from cbtrace.recorder.whatif.predict import predict, told
from cbtrace.recorder.whatif.recording import Recording, check_alike, recording
from cbtrace.recorder.whatif.settings import CHANGEABLE
from cbtrace.recorder.whatif.shapes import measure
from cbtrace.recorder.whatif.time_model import BY_GRAPH, TimeModel, is_of_host
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.traces import CbtraceError, Trace, open_trace
from cbtrace.traces.schema import Scalar

Values = dict[str, float]
TIMES = ("tokens/s", "TTFT p50", "TTFT p95", "gap p50", "gap p99")
WINDOW_NS = 100_000_000
COUNTS = ("soft resets", "offloads", "captures")


@dataclass(frozen=True)
class Setting:
    """Runs of one setting of one workload, and what they change in its baseline."""

    changes: dict[str, Scalar]
    base: Recording
    runs: list[Recording]


@dataclass(frozen=True)
class Outcome:
    """``slowness`` is how slow the host was in each run, and ``given`` what is predicted for such a host."""

    setting: Setting
    is_fitted: bool
    measured: list[Values]
    slowness: list[float]
    predicted: Values
    given: list[Values]

    def error(self, name: str) -> float:
        return 100 * (self.predicted[name] / self._mean(name) - 1)

    def error_given(self, name: str) -> float:
        pairs = zip(self.given, self.measured, strict=True)
        return statistics.fmean(100 * (given[name] / measured[name] - 1) for given, measured in pairs)

    def apart(self, name: str) -> float | None:
        values = [values[name] for values in self.measured]
        return 100 * (max(values) - min(values)) / self._mean(name) if len(values) > 1 else None

    def _mean(self, name: str) -> float:
        return statistics.fmean(values[name] for values in self.measured)


def numbers(summary: RunSummary) -> Values:
    found = (
        summary.throughput_generated_tps,
        summary.ttft_ms.p50,
        summary.ttft_ms.p95,
        summary.token_gap_ms.p50,
        summary.token_gap_ms.p99,
        summary.soft_resets,
        summary.offloads,
        summary.graph_captures,
    )
    return {name: float(value or 0) for name, value in zip((*TIMES, *COUNTS), found, strict=True)}


def recordings(folders: list[Path]) -> Iterator[Recording]:
    for path in sorted(path for folder in folders for path in folder.rglob("*.cbt")):
        try:
            trace = open_trace(path)
            yield recording(trace)
        except CbtraceError as error:
            if error.slug == "replay-differs":
                print(f"only compared with: {error}", file=sys.stderr)
                yield Recording(trace, [], measure(trace))
            else:
                print(f"left out: {error}", file=sys.stderr)


def settings(found: list[Recording]) -> Iterator[Setting]:
    """Runs by workload and by what they change; workloads without a baseline are left out."""
    for workload in dict.fromkeys(digest(one.trace) for one in found):
        runs = [one for one in found if digest(one.trace) == workload]
        bases = [one for one in runs if one.workload and one.trace.header.tags.get("variant") == "baseline"]
        base = bases[0] if bases else None
        groups: dict[str, list[Recording]] = {}
        for one in runs if base is not None else ():
            assert base is not None
            groups.setdefault(told(changes(base.trace, one.trace)), []).append(one)
        for group in groups.values():
            assert base is not None
            yield Setting(changes(base.trace, group[0].trace), base, group)


def digest(trace: Trace) -> str:
    return str(trace.header.fingerprint.get("workload.digest"))


def study(trace: Trace) -> str:
    return str(trace.header.tags.get("experiment"))


def changes(base: Trace, other: Trace) -> dict[str, Scalar]:
    """Settings that were asked for and came out differently, and those of which the engine's choice depends on them."""
    ours, theirs = base.engines[0], other.engines[0]
    return {
        key: theirs.resolved[key] if key != "use_cuda_graph" else str(theirs.resolved[key]).startswith("True")
        for key in CHANGEABLE
        if ours.requested.get(key) != theirs.requested.get(key)
        and (ours.resolved.get(key) != theirs.resolved.get(key) or key == "safety_margin")
    }


def outcome(setting: Setting, model: TimeModel, patterns: list[str]) -> Outcome:
    hosts = [host_of(run, model) for run in setting.runs]
    # What a step takes longer than its price is in the slowness of the host already.
    even = replace(model, step_spread=(1.0,), capture_spread=(1.0,))
    return Outcome(
        setting,
        any(is_fitted(run, patterns) for run in setting.runs),
        [numbers(summarize(run.trace)) for run in setting.runs],
        [host.mean for host in hosts],
        predicted(setting, model),
        [predicted(setting, even, host) for host in hosts],
    )


def predicted(setting: Setting, model: TimeModel, host: Host | None = None) -> Values:
    begin = int(setting.base.trace.steps.start_ns[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predicted.cbt"
        slowness = (lambda _now: 1.0) if host is None else (lambda now: host.at(now - begin))
        predict(setting.base, setting.changes, model, path, slowness=slowness)
        return numbers(summarize(open_trace(path)))


@dataclass(frozen=True)
class Host:
    """How slow a host was over a run: a factor on the model's prices, on the whole and in each tenth of a second."""

    mean: float
    windows: list[float]

    def at(self, since_begin_ns: int) -> float:
        return self.windows[min(since_begin_ns // WINDOW_NS, len(self.windows) - 1)]


def host_of(run: Recording, model: TimeModel) -> Host:
    """Measured by what the host took for the recorded steps, against what the model says of these steps."""
    steps = run.trace.steps
    window = (steps.start_ns - steps.start_ns[0]) // WINDOW_NS
    took, expected = np.zeros((2, int(window[-1]) + 1))
    for part, measured in run.measured.parts.items():
        for row in np.flatnonzero(np.isfinite(measured)) if is_of_host(part, model.has_device_times) else ():
            shape = run.measured.shapes[row]
            if (part, part in BY_GRAPH and shape.uses_graph) in model.prices:
                took[window[row]] += measured[row]
                expected[window[row]] += model.priced(part, shape)[0]
    mean = float(took.sum() / expected.sum())
    windows = np.where(expected > 0, took / np.maximum(expected, 1), mean)
    return Host(mean, windows.tolist())


def is_fitted(run: Recording, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(str(run.trace.path), f"*{pattern}") for pattern in patterns)


def left_out(fitted: list[Recording]) -> list[Values]:
    """Errors of each fitted run when it is predicted from the others, per cent."""
    errors = []
    for one in fitted if len(fitted) > 1 else ():
        model = fit([other.measured for other in fitted if other is not one])
        found, measured = predicted(Setting({}, one, [one]), model), numbers(summarize(one.trace))
        errors.append({name: 100 * (found[name] / measured[name] - 1) for name in TIMES})
    return errors


def print_tables(outcomes: list[Outcome], own: list[Values]) -> None:
    print("| requests come | setting | " + " | ".join((*TIMES, *COUNTS)) + " | host slower by |")
    print("|" + "---|" * (3 + len(TIMES) + len(COUNTS)))
    for one in outcomes:
        print("| " + " | ".join(row(one)) + " |")
    print("\nOn a host as slow as the measured one\n\n| requests come | setting | " + " | ".join(TIMES) + " |")
    print("|" + "---|" * (2 + len(TIMES)))
    for one in outcomes:
        print("| " + " | ".join((*label(one), *(f"{one.error_given(name):+.0f}" for name in TIMES))) + " |")
    blind = [one for one in outcomes if not one.is_fitted]
    if not blind:
        sys.exit("There is no setting to compare with beside the fitted ones.")
    print(f"\nOf the {len(blind)} settings that were not fitted, per cent\n")
    print(
        "| number | median error | worst | median, host given | worst, host given | median between runs | worst "
        "| said of itself | kept by |"
    )
    print("|" + "---|" * 9)
    for name in TIMES:
        off, given = [abs(one.error(name)) for one in blind], [abs(one.error_given(name)) for one in blind]
        apart = [found for one in outcomes if (found := one.apart(name)) is not None]
        noise = f"{statistics.median(apart):.0f} | {max(apart):.0f}" if apart else "- | -"
        band = max((abs(errors[name]) for errors in own), default=None)
        said = "- | -" if band is None else f"{band:.0f} | {sum(error <= band for error in off)} of {len(off)}"
        print(
            f"| {name} | {statistics.median(off):.0f} | {max(off):.0f} "
            f"| {statistics.median(given):.0f} | {max(given):.0f} | {noise} | {said} |"
        )


def label(one: Outcome) -> tuple[str, str]:
    arrivals = str(one.setting.base.trace.header.fingerprint.get("workload.arrivals"))
    return (
        "all at once" if arrivals == "at_once" else "over time",
        (told(one.setting.changes) if one.setting.changes else "baseline") + (" (fitted)" if one.is_fitted else ""),
    )


def row(one: Outcome) -> Iterator[str]:
    yield from label(one)
    for name in TIMES:
        apart = one.apart(name)
        yield f"{one.error(name):+.0f}" + ("" if apart is None else f" [{apart:.0f}]")
    for name in COUNTS:
        yield f"{one.predicted[name]:.0f} / " + ", ".join(f"{values[name]:.0f}" for values in one.measured)
    yield ", ".join(f"{100 * (factor - 1):+.0f} %" for factor in one.slowness)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--fit", action="append", required=True, help="glob of the end of a path; repeatable")
    options = parser.parse_args()
    found = list(recordings(options.folders))
    fitted = [one for one in found if one.workload and is_fitted(one, options.fit)]
    if not fitted:
        sys.exit("No recording that can be replayed matches a --fit: see what was left out, and why.")
    check_alike(found)
    model = fit([one.measured for one in fitted])
    for run, slowness in zip(fitted, model.seen, strict=True):
        print(f"fitted to {run.trace.path.name} of {study(run.trace)}: host {100 * (slowness - 1):+.0f} %")
    for (part, graph), prices in model.prices.items():
        print(f"{part}{' of a graph' if graph else ''}: { ({k: round(v, 1) for k, v in prices.by_term.items()}) }")
    print()
    outcomes = []
    for setting in settings(found):
        try:
            outcomes.append(outcome(setting, model, options.fit))
        except ReplayError as error:
            print(f"not predicted: {told(setting.changes)}: {error}", file=sys.stderr)
    print_tables(outcomes, left_out(fitted))


if __name__ == "__main__":
    main()
