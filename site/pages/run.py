"""The page of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.conditions import Fact, conditions, settings
from cbtrace.site.analysis.evidence import Evidence
from cbtrace.site.analysis.findings import RULES, findings
from cbtrace.site.analysis.goodput import service_times
from cbtrace.site.analysis.lifelines import STATES
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.analysis.window import measured_window
from cbtrace.site.pages.banners import Banner, banners
from cbtrace.site.pages.budget_section import LimitRow, MemorySection, limit_rows, memory_section
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.class_section import ClassSection, class_section
from cbtrace.site.pages.finding_section import FindingRow, finding_rows
from cbtrace.site.pages.gap_section import GapSection, gap_section
from cbtrace.site.pages.goodput_section import GoodputSection, goodput_section
from cbtrace.site.pages.headline import Card, LatencyRow, cards, latency_note, latency_rows
from cbtrace.site.pages.kv_section import KvSection, kv_section
from cbtrace.site.pages.labels import health, run_name
from cbtrace.site.pages.rank_section import RankSection
from cbtrace.site.pages.run_sections import (
    AdmissionSection,
    EventSection,
    NoticeRow,
    Pair,
    TimelineSection,
    admission_section,
    event_section,
    notice_rows,
    recording_pairs,
    timeline_section,
)
from cbtrace.site.pages.timeline_data import TimelineData
from cbtrace.site.pages.unfinished_section import UnfinishedSection, unfinished_section
from cbtrace.site.pages.where import WhereSection, where_section
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace

SECTIONS = (
    "headline",
    "findings",
    "timeline",
    "where",
    "gaps",
    "requests",
    "goodput",
    "classes",
    "admission",
    "kv",
    "memory",
    "ranks",
    "events",
    "settings",
    "recording",
)


@dataclass(frozen=True)
class SettingRow:
    """One setting; ``changed`` when the engine did not take what was asked for."""

    name: str
    requested: object
    resolved: object
    changed: bool


@dataclass(frozen=True)
class RunView:
    """Everything that the page of a run shows."""

    slug: str
    name: str
    tags: list[tuple[str, str]]
    predicted: bool
    health: str
    facts: list[Pair]
    banners: list[Banner]
    cards: list[Card]
    latency: list[LatencyRow]
    latency_note: str
    goodput: GoodputSection
    findings: list[FindingRow]
    rules: int
    """How many rules were looked at."""
    timeline: TimelineSection
    where: WhereSection
    gaps: GapSection
    requests: str
    """How many there were."""
    unfinished: UnfinishedSection | None
    """Those that did not complete."""
    classes: ClassSection
    admission: AdmissionSection
    limits: list[LimitRow]
    kv: KvSection
    memory: MemorySection
    ranks: RankSection | None
    """Of a run over several ranks."""
    events: EventSection
    settings: list[SettingRow]
    conditions: list[Fact]
    recording: list[Pair]
    notices: list[NoticeRow]


def time_origin(trace: Trace) -> int:
    """The zero of a page's times, ns of the trace's clock: the first submit, or the first step without one."""
    window = measured_window(trace.requests)
    if window.duration_ns or not len(trace.steps.index):
        return window.start_ns
    return int(trace.steps.start_ns[0])


def run_view(
    trace: Trace,
    summary: RunSummary,
    cuts: Cuts,
    slug: str,
    timeline: TimelineData,
    ranks: RankSection | None,
    words: Words,
) -> RunView:
    """Choose the analysis that the page shows."""
    origin = time_origin(trace)
    evidence = Evidence(trace, summary, cuts, origin, ranks.analysis if ranks else None)
    engine = trace.engines[-1] if trace.engines else None
    return RunView(
        slug=slug,
        name=run_name(trace, summary),
        tags=sorted(summary.tags.items()),
        predicted=summary.predicted,
        health=health(trace, doubtful=ranks is not None and ranks.doubtful),
        facts=_facts(trace, summary, words),
        banners=banners(trace, summary, ranks.findings if ranks else [], words),
        cards=cards(summary, words),
        latency=latency_rows(summary, words),
        latency_note=latency_note(summary, words),
        goodput=goodput_section(service_times(trace, cuts.longest_gap), words),
        findings=finding_rows(findings(evidence), words),
        rules=len(RULES),
        timeline=timeline_section(trace, summary, timeline, origin, words),
        where=where_section(trace, cuts, words),
        gaps=gap_section(trace, summary, cuts, origin, words),
        requests=formats.number(summary.requests.total),
        unfinished=unfinished_section(trace, origin, words),
        classes=class_section(trace, cuts, evidence.token_budget, words),
        admission=admission_section(trace, words),
        limits=limit_rows(evidence, words),
        kv=kv_section(trace, summary.kv, timeline.groups, words),
        memory=memory_section(trace, words),
        ranks=ranks,
        events=event_section(trace, origin, words),
        settings=[
            SettingRow(setting.name, setting.requested, setting.resolved, setting.overruled)
            for setting in (settings(engine) if engine else [])
        ],
        conditions=conditions(trace.header, engine),
        recording=recording_pairs(trace, summary, words),
        notices=notice_rows(trace, words),
    )


def _facts(trace: Trace, summary: RunSummary, words: Words) -> list[Pair]:
    values: dict[str, Any] = {
        "recorded": formats.instant(summary.recorded_ns),
        "model": model_label(trace),
        "device": device_label(trace),
        "transformers": formats.fact(trace.header.fingerprint.get("software.transformers")),
        "steps": formats.number(summary.steps),
        "window": f"{formats.seconds(summary.window_s)} s",
        "file": trace.path.name,
        "run_id": summary.run_id,
    }
    return [Pair(words(f"run.fact.{name}"), value) for name, value in values.items()]


def model_label(trace: Trace) -> str:
    """What to call the model: its name, or its architecture and size."""
    model = trace.engines[-1].model if trace.engines else {}
    name = model.get("name")
    parameters = model.get("parameters")
    size = f", {_count(parameters)} parameters" if isinstance(parameters, int) else ""
    return f"{name or model.get('architecture') or formats.UNKNOWN}{size}"


def _count(value: int) -> str:
    for unit, scale in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return str(value)


def device_label(trace: Trace) -> str:
    """The GPU, or the CPU where there is none."""
    facts = trace.header.fingerprint
    gpu = facts.get("hardware.gpu.name")
    return formats.fact(gpu if gpu not in (None, "none") else facts.get("hardware.cpu"))


def run_page(chrome: Chrome, view: RunView, data_script: str, data_key: str) -> str:
    """The page as HTML. ``data_script`` is the path of the timeline's data beside the page."""
    return chrome.page(
        "run.html",
        "run",
        root="../../",
        run=view,
        sections=[section for section in SECTIONS if section != "ranks" or view.ranks],
        pieces=PIECES,
        states=STATES,
        data_script=data_script,
        data_key=data_key,
    )
