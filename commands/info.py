"""``cbtrace info``: the numbers of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.site.analysis.distribution import Distribution
    from cbtrace.site.analysis.summary import RunSummary


def info(
    trace: Annotated[Path, typer.Argument(metavar="RUN.cbt", help="Trace to read.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, with unrounded numbers.")] = False,
) -> None:
    """Print the numbers of a run: latencies, throughput, KV cache, and what its trace has lost.

    \b
    Examples:
      cbtrace info run.cbt
      cbtrace info run.cbt --json | jq .ttft_ms.p95
    """
    from cbtrace.commands.rank_findings import rank_lines
    from cbtrace.site.analysis.summary import summarize, summary_json
    from cbtrace.traces import open_trace

    summary = summarize(open_trace(trace))
    if as_json:
        typer.echo(json.dumps(summary_json(summary), indent=2, allow_nan=False))
    else:
        typer.echo("\n".join([*_lines(summary), *_ranks(rank_lines(trace))]))


def _lines(summary: RunSummary) -> Iterator[str]:
    yield from _what(summary)
    yield ""
    yield f"{'ms':<14}{'p50':>10}{'p95':>10}{'p99':>10}{'max':>10}{'n':>8}"
    for label, distribution in (
        ("TTFT", summary.ttft_ms),
        ("token gap", summary.token_gap_ms),
        ("TPOT", summary.tpot_ms),
        ("E2E", summary.e2e_ms),
        ("queue", summary.queue_ms),
        ("step", summary.step_ms),
    ):
        yield _row(label, distribution)
    yield ""
    yield from _counts(summary)
    yield ""
    yield from _recovery(summary)


def _what(summary: RunSummary) -> Iterator[str]:
    from cbtrace.site.formats import instant

    yield f"{'run':<14}{plain(summary.name) or '(no name)'}"
    if summary.tags:
        yield f"{'tags':<14}" + ", ".join(f"{plain(key)}={plain(value)}" for key, value in summary.tags.items())
    word = "predicted" if summary.predicted else "recorded"
    yield f"{word:<14}{instant(summary.recorded_ns)}{', not measured' if summary.predicted else ''}"


def _recovery(summary: RunSummary) -> Iterator[str]:
    """What was read of the trace, and what was not."""
    from cbtrace.site.formats import number

    report = summary.recovery
    yield (
        f"{'trace':<14}{report.status}: {number(report.frames_read)} frames read, {number(report.bytes_dropped)} of "
        f"{number(report.bytes_total)} bytes dropped"
    )
    if report.steps_missing or report.steps_overwritten or report.admissions_lost:
        yield (
            f"{'':<14}{number(report.steps_missing)} steps missing, {number(report.steps_overwritten)} overwritten, "
            f"{number(report.admissions_lost)} admissions lost"
        )
    for message in report.messages:
        yield f"{'':<14}{plain(message)}"


def _ranks(lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{'' if number else 'ranks':<14}{plain(line)}"


def _row(label: str, distribution: Distribution) -> str:
    from cbtrace.site.formats import milliseconds

    cells = (distribution.p50, distribution.p95, distribution.p99, distribution.max)
    kept_out = f"   {distribution.excluded} kept out" if distribution.excluded else ""
    return f"{label:<14}" + "".join(f"{milliseconds(cell):>10}" for cell in cells) + f"{distribution.n:>8}{kept_out}"


def _counts(summary: RunSummary) -> Iterator[str]:
    from cbtrace.site.formats import number, percent, seconds, size

    ended = summary.requests
    yield (
        f"{'requests':<14}{ended.finished} finished, {ended.failed} failed, {ended.cancelled} cancelled, "
        f"{ended.running} unfinished"
    )
    yield (
        f"{'':<14}{ended.empty} without a token, {ended.soft_reset} soft reset, {ended.forked} forked, "
        f"{ended.submit_unseen} submitted before the recording"
    )
    yield f"{'steps':<14}{number(summary.steps)} in {seconds(summary.window_s)} s"
    yield (
        f"{'GPU':<14}busy {percent(summary.gpu_busy)}, {number(summary.gpu_timed_steps)} steps timed, "
        f"{summary.graph_captures} graphs captured"
    )
    yield (
        f"{'tokens':<14}{number(summary.generated_tokens)} generated ({number(summary.throughput_generated_tps)} "
        f"tokens/s), {number(summary.prompt_tokens_computed)} prompt tokens computed "
        f"({number(summary.throughput_prompt_tps)} tokens/s)"
    )
    yield (
        f"{'':<14}{number(summary.prompt_tokens_submitted)} prompt tokens submitted, "
        f"{number(summary.prompt_tokens_prefix_hit)} found in the prefix cache, "
        f"{number(summary.prompt_tokens_recomputed)} recomputed, {number(summary.wasted_tokens)} wasted"
    )
    yield (
        f"{'pressure':<14}{summary.soft_resets} soft resets, {summary.offloads} offloads, {summary.restores} restores"
    )
    if summary.kv is not None:
        kv = summary.kv
        yield (
            f"{'KV cache':<14}{size(kv.capacity_bytes)} = {number(kv.capacity_units)} {plain(kv.unit_name)}s, "
            f"{number(kv.capacity_tokens)} tokens; {size(kv.reserved_bytes)} more reserved"
        )
        yield (
            f"{'':<14}used {size(kv.mean_used_bytes)} on average and {size(kv.peak_used_bytes)} at most, "
            f"cached {size(kv.peak_cached_bytes)} at most, free {size(kv.min_free_bytes)} at least, "
            f"safety margin {size(kv.margin_bytes)}"
        )
    if summary.peak_memory_bytes is not None:
        yield f"{'peak memory':<14}{size(summary.peak_memory_bytes)} ({summary.peak_memory_scope})"
