"""The table at the end of ``cbtrace run``: each variant in one row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cbtrace.site.analysis.summary import RunSummary
    from cbtrace.traces.experiment import Experiment, RunEntry

_COLUMNS: tuple[tuple[str, Callable[[RunSummary], float | None]], ...] = (
    ("tokens/s", lambda run: run.throughput_generated_tps),
    ("TTFT p95 ms", lambda run: run.ttft_ms.p95),
    ("gap p99 ms", lambda run: run.token_gap_ms.p99),
    ("soft resets", lambda run: float(run.soft_resets)),
)


def experiment_table(experiment: Experiment, folder: Path) -> None:
    """Print the table: medians over the finished runs of each variant, and how many requests were right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{experiment.name}: medians of the finished runs")
    table.add_column("stage", justify="right")
    table.add_column("variant", overflow="fold")
    table.add_column("runs", justify="right")
    for name, _ in _COLUMNS:
        table.add_column(name, justify="right")
    table.add_column("complete", justify="right")
    table.add_column("same tokens as reference", overflow="fold")
    for variant in experiment.variants:
        runs = [run for run in experiment.runs if run.variant == variant.name]
        table.add_row(str(variant.stage), _plain(variant.name), *_cells(runs, folder))
    Console().print(table)


def _cells(runs: list[RunEntry], folder: Path) -> Iterable[str]:
    from cbtrace.site.analysis.summary import summarize
    from cbtrace.traces import open_trace

    done = [run for run in runs if run.status == "done"]
    summaries = [summarize(open_trace(folder / run.trace)) for run in done]
    yield f"{len(done)}/{len(runs)}"
    for _, value in _COLUMNS:
        known = [number for number in map(value, summaries) if number is not None]
        yield f"{statistics.median(known):,.4g}" if known else "-"
    yield _complete(runs)
    yield _same(runs)


def _complete(runs: list[RunEntry]) -> str:
    checked = [run.correctness for run in runs if run.correctness is not None]
    return f"{sum(c.complete for c in checked)}/{sum(c.requests for c in checked)}" if checked else "-"


def _same(runs: list[RunEntry]) -> str:
    """How many answers equal the reference's; or why none was compared, or no run was done."""
    compared = [run.correctness for run in runs if run.correctness is not None and run.correctness.reference]
    reasons = {f"{run.failure}: {run.phase}" for run in runs if run.failure is not None}
    reasons |= {run.text for run in runs if run.status == "skipped"}
    cells = [f"{sum(c.equal for c in compared)}/{sum(c.compared for c in compared)}"] if compared else []
    if not compared:
        reasons |= {run.correctness.remark for run in runs if run.correctness is not None and run.correctness.remark}
    return _plain("; ".join([*cells, *sorted(reasons)]) or "-")


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
