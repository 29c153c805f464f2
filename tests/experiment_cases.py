"""Experiments for tests of their page: runs with values that a test chooses, or with real traces in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cbtrace.site.analysis.experiment import ExperimentRuns, PassTokens, TracedRun, join
from cbtrace.site.analysis.experiment_verdict import Verdict, verdicts
from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.traces.experiment import (
    Correctness,
    Difference,
    Experiment,
    FailureKind,
    RunEntry,
    RunStatus,
    StageEntry,
    VariantEntry,
    write_experiment,
)
from site_runs import busy_run

STAGES = [
    StageEntry(1, "Correctness and automatic baseline"),
    StageEntry(2, "Input budget"),
    StageEntry(3, "KV cache and reserve"),
    StageEntry(4, "Advanced features"),
]
REQUESTS = 40
SETTINGS = {"max_batch_tokens": "512", "num_blocks": "1000", "safety_margin": "0.15", "scheduler_type": "fifo"}
"""What the baseline's engine resolves."""
NOISE = (-1.0, 0.0, 1.0, 0.5, -0.5, 0.2)
"""What the repeats of a variant differ by, in per mille, in order."""


@lru_cache(maxsize=1)
def plain_summary() -> RunSummary:
    """The summary of a real trace, to change single numbers of."""
    with tempfile.TemporaryDirectory() as folder:
        return summarize(busy_run(Path(folder) / "run.cbt"))


@dataclass(frozen=True)
class Values:
    """Run-level values of a variant. The repeats scatter around them by ``noise`` per mille."""

    throughput: float = 1000.0
    ttft_p95: float = 100.0
    gap_p99: float = 10.0
    e2e_p95: float = 500.0
    memory: float = float(1 << 30)
    resets: int = 0
    offloads: int = 0
    noise: float = 1.0
    predicted: bool = False

    def summary(self, repeat: int) -> RunSummary:
        """Of one repeat, counted from 1. Memory is the same in all."""
        plain, by = plain_summary(), 1 + NOISE[(repeat - 1) % len(NOISE)] * self.noise / 1000
        return replace(
            plain,
            throughput_generated_tps=self.throughput * by,
            ttft_ms=replace(plain.ttft_ms, p95=self.ttft_p95 * by),
            token_gap_ms=replace(plain.token_gap_ms, p99=self.gap_p99 * by),
            e2e_ms=replace(plain.e2e_ms, p95=self.e2e_p95 * by),
            peak_memory_bytes=int(self.memory),
            soft_resets=self.resets,
            offloads=self.offloads,
            predicted=self.predicted,
        )


@dataclass
class Lab:
    """An experiment in the making: the baseline is there from the start."""

    slos: dict[str, Any] = field(default_factory=lambda: {"ttft_p95_ms": 1000, "failures": 0})
    variants: list[VariantEntry] = field(default_factory=list)
    runs: list[RunEntry] = field(default_factory=list)
    traced: dict[str, TracedRun] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def baseline(self, values: Values | Sequence[Values] = Values(), **more: Any) -> Lab:
        """Add the baseline."""
        return self.add("baseline", values, based_on="", stage=1, **more)

    def add(
        self,
        name: str,
        values: Values | Sequence[Values] = Values(),
        *,
        changes: Mapping[str, Any] | None = None,
        resolved: Mapping[str, str] | None = None,
        requested: Mapping[str, str] | None = None,
        conditions: Mapping[str, str] | None = None,
        based_on: str = "baseline",
        kind: str = "continuous",
        workload: str = "default",
        stage: int = 2,
        repeats: int = 3,
        together: bool = False,
        equal: int | None = REQUESTS,
        complete: int = REQUESTS,
        remark: str = "",
    ) -> Lab:
        """Add a variant with its runs, all done. ``equal`` is ``None`` where no tokens were compared.

        ``values`` are those of the variant, or of each repeat. The settings that its runs resolved are those of the
        variant it changes, with its ``changes`` and ``resolved``.
        """
        wanted = {key: str(value) for key, value in (changes or {}).items()}
        worked = {**self.settings.get(based_on, SETTINGS), **wanted, **(resolved or {})}
        self.settings[name] = worked
        entry = VariantEntry(name, stage, kind, workload, based_on, dict(changes or {}), together)  # type: ignore[arg-type]
        self.variants.append(entry)
        facts = {"model.dtype": "float32", "hardware.gpu.name": "H200", "batching": kind, "workload.digest": workload}
        facts |= conditions or {}
        asked = {**dict.fromkeys(worked, "unset"), **wanted, **(requested or {})}
        for repeat in range(1, repeats + 1):
            run = self._run(name, stage, repeat, "done")
            run.correctness = _correctness(equal, complete, remark)
            own = values if isinstance(values, Values) else values[repeat - 1]
            self.traced[run.id] = TracedRun(
                f"slug-{run.id}",
                own.summary(repeat),
                RunConditions(asked, worked, facts, {"experiment": "trial"}, own.predicted, True),
                PassTokens(1000, 2500 if kind == "static" else 1000),
            )
        return self

    def fail(self, name: str, kind: FailureKind, phase: str, count: int = 1, text: str = "It failed.") -> Lab:
        """Add failed runs to a variant."""
        return self._more(name, "failed", count, kind, phase, text)

    def leave(self, name: str, status: RunStatus = "planned", count: int = 1, text: str = "") -> Lab:
        """Add runs that are to come, or were skipped."""
        return self._more(name, status, count, None, "", text)

    def _more(self, name: str, status: RunStatus, count: int, kind: FailureKind | None, phase: str, text: str) -> Lab:
        stage = next(variant.stage for variant in self.variants if variant.name == name)
        for _ in range(count):
            repeat = 1 + sum(run.variant == name for run in self.runs)
            run = self._run(name, stage, repeat, status)
            run.failure, run.phase, run.text = kind, phase, text
            run.seconds = 10.0 if status == "failed" else 0.0
        return self

    def _run(self, name: str, stage: int, repeat: int, status: RunStatus) -> RunEntry:
        run = RunEntry(f"s{stage}-{name}-r{repeat}", name, stage, repeat, status, seconds=10.0)
        self.runs.append(run)
        return run

    def experiment(self) -> Experiment:
        """As it would be read from its file."""
        return Experiment("trial", {}, "digest", list(STAGES), self.variants, self.runs, {}, slos=self.slos)

    def joined(self) -> ExperimentRuns:
        """With the traces."""
        return join(self.experiment(), self.traced)

    def verdict(self, name: str) -> Verdict:
        """The verdict on one variant."""
        return next(verdict for verdict in verdicts(self.joined()) if verdict.variant.name == name)


def _correctness(equal: int | None, complete: int, remark: str) -> Correctness:
    failures = {"error": REQUESTS - complete} if complete < REQUESTS else {}
    if equal is None:
        return Correctness(REQUESTS, complete, failures, remark=remark)
    unequal = complete - min(equal, complete)
    differences = [Difference(f"request-{number}", 3 + number, 1, 2) for number in range(unequal)]
    return Correctness(
        REQUESTS, complete, failures, "s1-static-r1", complete, complete - unequal, complete, differences, 0, remark
    )


def write_folder(folder: Path, lab: Lab, *, names: Sequence[str] = ()) -> None:
    """Write the experiment with real traces: one for each run that is done, and for failed ones of ``names``."""
    (folder / "runs").mkdir(parents=True)
    experiment = lab.experiment()
    for number, run in enumerate(experiment.runs):
        if run.status == "done" or (run.status == "failed" and run.variant in names):
            run.trace = f"runs/{number}.cbt"
            step_ns = 1_000_000 + 20_000 * run.repeat + 100_000 * lab.variants.index(_variant(lab, run.variant))
            tags = {"experiment": experiment.name, "variant": run.variant}
            busy_run(folder / run.trace, f"{run.variant} #{run.repeat}", step_ns=step_ns, tags=tags)
    write_experiment(experiment, folder)


def _variant(lab: Lab, name: str) -> VariantEntry:
    return next(variant for variant in lab.variants if variant.name == name)
