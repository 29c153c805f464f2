"""Banners: what a reader must know before trusting a number of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.labels import severity_name
from cbtrace.site.words import Words
from cbtrace.traces.errors import explain
from cbtrace.traces.rank_groups import rank_of_trace
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import Finding
from cbtrace.traces.schema import EventKind


@dataclass(frozen=True)
class Banner:
    """One warning at the top of a page."""

    anchor: str
    severity: str
    title: str
    text: str
    remedy: str = ""
    slug: str = ""
    """Of the message that says more."""


def banners(trace: Trace, summary: RunSummary, of_ranks: Iterable[Finding], words: Words) -> list[Banner]:
    """All warnings that hold for ``trace`` and for its other ranks, gravest first."""
    found = [*_recovery(trace, words), *_ranks(of_ranks, words), *_circumstances(trace, summary, words)]
    rank = ("broken", "data_loss", "warning", "info")
    return sorted(found, key=lambda banner: rank.index(banner.severity))


def _recovery(trace: Trace, words: Words) -> list[Banner]:
    report = trace.recovery
    if report.whole:
        return []
    kind = "damaged" if report.status == "damaged" else "incomplete"
    return [
        Banner(
            f"recovery-{i}",
            severity_name(finding.severity),
            words(f"banner.{kind}.title") if i == 0 else finding.slug,
            finding.meaning,
            explain(finding.slug).remedy,
            finding.slug,
        )
        for i, finding in enumerate(report.findings)
    ]


def _ranks(findings: Iterable[Finding], words: Words) -> list[Banner]:
    title = words("banner.ranks.title")
    return [
        Banner(f"ranks-{i}", severity_name(it.severity), title, it.meaning, explain(it.slug).remedy, it.slug)
        for i, it in enumerate(findings)
    ]


def _circumstances(trace: Trace, summary: RunSummary, words: Words) -> list[Banner]:
    engine = trace.engines[-1] if trace.engines else None
    unnamed = int((~trace.steps.members_known).sum())
    processes = int(trace.gpu.processes.max(initial=-1))
    running, total = summary.requests.running, summary.requests.total
    warmed = bool((trace.events.kind == EventKind.WARMUP_END).any())
    rank, world = trace.header.rank, trace.header.world_size
    place = rank_of_trace(trace)
    apart = place is not None and place.split_over == 1
    missing = ", ".join(engine.missing) if engine else ""
    conditions: tuple[tuple[bool, str, str, dict[str, object]], ...] = (
        (summary.predicted, "predicted", "warning", {}),
        (engine is not None and not engine.verified, "unverified", "warning", {}),
        (unnamed > 0, "members", "data_loss", {"count": unnamed, "steps": summary.steps}),
        (running > 0, "running", "warning", {"count": running, "total": total}),
        (processes > 1, "other_processes", "warning", {"count": processes}),
        (len(trace.engines) > 1, "engines", "warning", {"count": len(trace.engines)}),
        (summary.steps == 0, "no_steps", "warning", {}),
        (summary.graph_captures > 0 and not warmed, "cold", "warning", {"count": summary.graph_captures}),
        (world > 1 and not apart, "rank", "info", {"rank": rank, "world": world}),
        (apart, "process", "info", {"rank": rank, "world": world}),
    )
    found = [
        Banner(
            f"about-{name}", severity, words(f"banner.{name}.title", **values), words(f"banner.{name}.text", **values)
        )
        for holds, name, severity, values in conditions
        if holds
    ]
    if missing:
        title, remedy = words("banner.missing.title"), words("banner.missing.remedy")
        found.append(Banner("about-missing", "warning", title, f"{missing}.", remedy))
    return found
