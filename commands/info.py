"""``cbtrace info``: the numbers of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    from cbtrace.site.analysis.summary import summarize, summary_json
    from cbtrace.traces import open_trace

    summary = summarize(open_trace(trace))
    if as_json:
        typer.echo(json.dumps(summary_json(summary), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n".join(_lines(summary)))


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
    yield f"{'trace':<14}{summary.recovery.status}"
    for message in summary.recovery.messages:
        yield f"{'':<14}{message}"


def _what(summary: RunSummary) -> Iterator[str]:
    from cbtrace.site.formats import instant

    yield f"{'run':<14}{_plain(summary.name) or '(no name)'}"
    if summary.tags:
        yield f"{'tags':<14}" + ", ".join(f"{_plain(key)}={_plain(value)}" for key, value in summary.tags.items())
    yield f"{'recorded':<14}{instant(summary.recorded_ns)}"


def _row(label: str, distribution: Distribution) -> str:
    from cbtrace.site.formats import milliseconds

    cells = (distribution.p50, distribution.p95, distribution.p99, distribution.max)
    kept_out = f"   {distribution.excluded} kept out" if distribution.excluded else ""
    return f"{label:<14}" + "".join(f"{milliseconds(cell):>10}" for cell in cells) + f"{distribution.n:>8}{kept_out}"


def _counts(summary: RunSummary) -> Iterator[str]:
    from cbtrace.site.formats import number, seconds, size

    ended = summary.requests
    yield (
        f"{'requests':<14}{ended.finished} finished, {ended.failed} failed, {ended.cancelled} cancelled, "
        f"{ended.running} unfinished"
    )
    yield f"{'steps':<14}{number(summary.steps)} in {seconds(summary.window_s)} s"
    yield (
        f"{'tokens':<14}{number(summary.generated_tokens)} generated ({number(summary.throughput_generated_tps)} "
        f"tokens/s), {number(summary.prompt_tokens_computed)} prompt tokens computed "
        f"({number(summary.throughput_prompt_tps)} tokens/s)"
    )
    yield (
        f"{'':<14}{number(summary.prompt_tokens_prefix_hit)} found in the prefix cache, "
        f"{number(summary.prompt_tokens_recomputed)} recomputed, {number(summary.wasted_tokens)} wasted"
    )
    yield (
        f"{'pressure':<14}{summary.soft_resets} soft resets, {summary.offloads} offloads, {summary.restores} restores"
    )
    if summary.kv is not None:
        kv = summary.kv
        yield (
            f"{'KV cache':<14}{size(kv.capacity_bytes)} = {number(kv.capacity_units)} {kv.unit_name}s, "
            f"{number(kv.capacity_tokens)} tokens; peak use {size(kv.peak_used_bytes)}"
        )
    if summary.peak_memory_bytes is not None:
        yield f"{'peak memory':<14}{size(summary.peak_memory_bytes)} ({summary.peak_memory_scope})"


def _plain(text: str) -> str:
    """Text from a trace, without characters that would steer the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
