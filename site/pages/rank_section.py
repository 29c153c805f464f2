"""Tensor-parallel ranks side by side, as plain data for the template."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.distribution import Distribution, describe
from cbtrace.site.analysis.ranks import RankAnalysis, RankStats, RankWaits
from cbtrace.site.pages.rank_data import RankChart, rank_chart
from cbtrace.site.run_ranks import RunRanks
from cbtrace.site.words import Words
from cbtrace.traces.recovery import Finding

MARKS = ("model_loaded", "cache_created", "inputs_created", "warmed_up", "before_first_request")


@dataclass(frozen=True)
class RankRow:
    """One rank."""

    rank: int
    file: str
    whole: bool
    steps: str
    step: tuple[str, str]
    """p50 and p99, ms; so are the next two."""
    gpu: tuple[str, str]
    host: tuple[str, str]
    slowest: str
    meeting: str
    launch: str
    gpu_beyond: str
    sm_clock: str


@dataclass(frozen=True)
class RankMemoryRow:
    """One amount of memory, of each rank."""

    label: str
    sizes: list[str]


@dataclass(frozen=True)
class RankSection:
    """The ranks of a run."""

    title: str
    text: str
    rows: list[RankRow]
    ranks: list[int]
    memory: list[RankMemoryRow]
    analysis: RankAnalysis
    """What the section is made from."""
    chart: RankChart
    chart_text: str
    findings: list[Finding]
    """Missing, truncated and unlike ranks."""
    doubtful: bool
    """Whether they are more than remarks."""


def rank_section(ranks: RunRanks, origin_ns: int, words: Words) -> RankSection:
    """The section of the page. The times of its chart count from ``origin_ns``."""
    found = ranks.analysis
    waits: list[RankWaits | None] = list(found.waits) if found.waits else [None] * len(found.ranks)
    chart = rank_chart(found, origin_ns, words)
    text = words("ranks.chart_each")
    if chart.bucket > 1:
        text = words("ranks.chart_text", bucket=formats.number(chart.bucket))
    if len(chart.drawn) < len(found.ranks):
        text += " " + words("ranks.chart_some", drawn=len(chart.drawn), count=len(found.ranks))
    return RankSection(
        title=_title(ranks, words),
        text=_text(found, words),
        rows=[_row(rank, wait, found.compared) for rank, wait in zip(found.ranks, waits, strict=True)],
        ranks=[rank.rank for rank in found.ranks],
        memory=_memory(found.ranks, words),
        analysis=found,
        chart=chart,
        chart_text=text,
        findings=ranks.findings,
        doubtful=ranks.doubtful,
    )


def _title(ranks: RunRanks, words: Words) -> str:
    found = ranks.analysis
    if not found.waits:
        return words("ranks.title_none", there=len(found.ranks), count=len(ranks.group.ranks))
    most = max(zip(found.waits, found.ranks, strict=True), key=lambda pair: pair[0].slowest)
    share = formats.percent(most[0].slowest / found.compared)
    return words("ranks.title", rank=most[1].rank, share=share)


def _text(found: RankAnalysis, words: Words) -> str:
    if not found.waits:
        return words("ranks.text_none")
    lags = found.lag_ns[found.lag_ns >= 0]
    met = found.meeting_ns[found.meeting_ns >= 0]
    lag = describe(lags)
    text = words(
        "ranks.text",
        p50=formats.milliseconds(lag.p50),
        p99=formats.milliseconds(lag.p99),
        total=formats.seconds(int(lags.sum()) / 1e9),
        meetings=formats.seconds(int(met.sum()) / 1e9),
        share=formats.percent(found.skew_share),
        steps=formats.number(found.compared),
    )
    if found.after_pause:
        paused, pauses = formats.number(found.after_pause), formats.seconds(found.after_pause_ns / 1e9)
        text += " " + words("ranks.text_paused", paused=paused, pauses=pauses)
    return text


def _row(rank: RankStats, wait: RankWaits | None, compared: int) -> RankRow:
    return RankRow(
        rank=rank.rank,
        file=rank.file,
        whole=rank.whole,
        steps=formats.number(rank.steps),
        step=_two(rank.step_ms),
        gpu=_two(rank.gpu_ms),
        host=_two(rank.host_ms),
        slowest=formats.percent(wait.slowest / compared) if wait else formats.UNKNOWN,
        meeting=_seconds(wait.meeting_ns if wait else None),
        launch=_seconds(wait.launch_ns if wait else None),
        gpu_beyond=_seconds(wait.gpu_beyond_ns if wait else None),
        sm_clock=formats.number(rank.sm_clock_mhz),
    )


def _two(found: Distribution) -> tuple[str, str]:
    return formats.milliseconds(found.p50), formats.milliseconds(found.p99)


def _seconds(ns: int | None) -> str:
    return formats.UNKNOWN if ns is None else formats.seconds(ns / 1e9)


def _memory(ranks: list[RankStats], words: Words) -> list[RankMemoryRow]:
    """Amounts that at least one rank knows."""
    memory = [rank.memory for rank in ranks]
    amounts: list[tuple[str, list[int | None]]] = [
        (words("ranks.memory.weights"), [each.weight_bytes for each in memory]),
        (words("ranks.memory.kv"), [each.kv_bytes for each in memory]),
        *((words(f"mark_name.{mark}"), [each.marks.get(mark) for each in memory]) for mark in MARKS),
        (words("ranks.memory.peak"), [each.peak.bytes if each.peak else None for each in memory]),
        (words("ranks.memory.device"), [each.device_used for each in memory]),
    ]
    return [
        RankMemoryRow(label, [formats.size(size) for size in sizes])
        for label, sizes in amounts
        if any(size is not None for size in sizes)
    ]
