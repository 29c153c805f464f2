"""The table at the end of ``cbtrace run``: each variant in one row, and below it why a number is missing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cbtrace.site.analysis.experiment import PassTokens
    from cbtrace.site.analysis.summary import RunSummary
    from cbtrace.traces.experiment import Experiment, RunEntry

_WIDE = 96
"""Columns of a terminal from which on there is room for wider gaps."""


def _padding(_: RunSummary, tokens: PassTokens) -> float | None:
    return 100 * (tokens.computed - tokens.needed) / tokens.computed if tokens.computed else None


_COLUMNS: tuple[tuple[str, Callable[[RunSummary, PassTokens], float | None]], ...] = (
    ("tokens/s", lambda run, _: run.throughput_generated_tps),
    ("TTFT p95", lambda run, _: run.ttft_ms.p95),
    ("gap p95", lambda run, _: run.token_gap_ms.p95),
    ("resets", lambda run, _: float(run.soft_resets)),
    ("pad %", _padding),
)


def experiment_table(experiment: Experiment, folder: Path) -> None:
    """Print the table: medians over the finished runs of each variant, and how many requests were right.

    *Pad* is padding: the share of what the forward passes computed that no request needed. Static batches are padded to
    their longest prompt and go on until their last request has ended; a CUDA graph is captured for certain sizes.
    *Complete* are requests that ended as they should, *same* those whose tokens equal static batching's.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{experiment.name}: medians of the finished runs, times in ms"
    console = Console()
    gap = 1 if console.width >= _WIDE else 0
    table = Table(title=title, box=box.SIMPLE, pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column("variant", overflow="fold", min_width=12)
    for name in ("runs", *(name for name, _ in _COLUMNS), "complete", "same"):
        table.add_column(name, justify="right", no_wrap=True)
    notes: list[str] = []
    for stage in experiment.stages:
        for variant in experiment.variants:
            if variant.stage == stage.number:
                runs = [run for run in experiment.runs if run.variant == variant.name]
                table.add_row(_plain(variant.name), *_cells(runs, folder))
                notes += [f"{variant.name}: {note}" for note in _notes(runs)]
        table.add_section()
    console.print(table)
    for note in notes:
        console.print(_plain(note), highlight=False)


def _cells(runs: list[RunEntry], folder: Path) -> Iterator[str]:
    from cbtrace.site.analysis.experiment import pass_tokens
    from cbtrace.site.analysis.summary import summarize
    from cbtrace.site.formats import number
    from cbtrace.traces import open_trace

    done = [run for run in runs if run.status == "done" and run.trace]
    traces = (open_trace(folder / run.trace) for run in done)
    read = [(summarize(trace), pass_tokens(trace.steps)) for trace in traces]
    yield f"{len(done)}/{len(runs)}"
    for _, value in _COLUMNS:
        known = [found for found in (value(*run) for run in read) if found is not None]
        yield number(statistics.median(known)) if known else "-"
    checked = [run.correctness for run in runs if run.correctness is not None]
    compared = [correctness for correctness in checked if correctness.reference]
    yield f"{sum(c.complete for c in checked)}/{sum(c.requests for c in checked)}" if checked else "-"
    yield f"{sum(c.equal for c in compared)}/{sum(c.compared for c in compared)}" if compared else "-"


def _notes(runs: list[RunEntry]) -> list[str]:
    """Why runs are missing, or answers were not compared, or what may explain that they differ; each once."""
    notes = []
    for run in runs:
        if run.failure is not None:
            notes.append(f"{run.failure} in {run.phase or 'an unknown phase'}. {run.text}")
        elif run.status == "skipped":
            notes.append(f"skipped. {run.text}")
        elif run.correctness is not None and run.correctness.remark:
            notes.append(run.correctness.remark)
    return list(dict.fromkeys(notes))


def _plain(text: str) -> str:
    """Text from an experiment, without markup and without characters that would steer the terminal."""
    from rich.markup import escape

    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))
