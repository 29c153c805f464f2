"""The sections of a run's page below its headline, as plain data for the template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.admission import admission_limits
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.analysis.timeline import timeline_rows
from cbtrace.site.messages import all_messages
from cbtrace.site.pages.labels import event_label, request_label, severity_name, stop_label
from cbtrace.site.pages.timeline_data import TimelineData
from cbtrace.site.pages.windows import window_around
from cbtrace.site.words import Words
from cbtrace.traces.columns import Ints
from cbtrace.traces.reader import Trace
from cbtrace.traces.recovery import Finding
from cbtrace.traces.schema import AdmissionStop, Notice

TABLE_ROWS = 40
EVENT_ROWS = 500
NOTICES = 100


@dataclass(frozen=True)
class TimelineRow:
    """One row of the timeline as a table."""

    steps: str
    start: str
    prefill: int
    decode: int
    recompute: int
    wasted: int
    used: str
    waiting: int
    active: int
    longest: str


@dataclass(frozen=True)
class TimelineSection:
    """Title, text and table of the timeline."""

    title: str
    text: str
    reduction: str
    table: list[TimelineRow]
    table_caption: str
    memory: list[str]
    """Series of the memory panel."""
    groups: list[str]
    """Groups of layers that the KV cache is told apart by."""


@dataclass(frozen=True)
class AdmissionRow:
    """One reason why admission stopped."""

    reason: str
    steps: int
    time: str
    share: float


@dataclass(frozen=True)
class AdmissionSection:
    """Why admission stopped."""

    title: str
    rows: list[AdmissionRow]


@dataclass(frozen=True)
class EventRow:
    """One event, as text."""

    time: str
    kind: str
    step: str
    link: int | None
    """Index of the step, where the trace has it."""
    window: str
    """The step, as the timeline's window; empty without it."""
    request: str
    ordinal: int | None
    tokens: str
    blocks: str
    bytes: str
    duration: str
    note: str


@dataclass(frozen=True)
class EventSection:
    """What happened, in order."""

    title: str
    text: str
    rows: list[EventRow]


@dataclass(frozen=True)
class Pair:
    """A labelled fact."""

    label: str
    value: str


@dataclass(frozen=True)
class NoticeRow:
    """Something that the recorder, or the reader of the trace, said."""

    severity: str
    severity_label: str
    slug: str
    text: str
    explained: bool
    """Whether the page of messages has it: a newer recorder may say what this version does not know."""


def timeline_section(
    trace: Trace, summary: RunSummary, data: TimelineData, origin_ns: int, words: Words
) -> TimelineSection:
    """Title, rule of reduction and table of the timeline."""
    steps = trace.steps
    count = len(steps.index)
    k = max(1, -(-count // TABLE_ROWS))
    rows = timeline_rows(steps, k)
    kv = summary.kv
    title = words("timeline.title_none")
    if count and kv and kv.capacity_bytes and kv.peak_used_bytes is not None:
        share = formats.percent(kv.peak_used_bytes / kv.capacity_bytes)
        title = words("timeline.title_kv", share=share, waiting=int(steps.waiting.max()))
    told = "timeline.reduction" if data.rows.bucket > 1 else "timeline.reduction_none"
    reduction = words(
        told,
        steps=formats.number(count),
        rows=formats.number(len(data.rows.steps)),
        bucket=formats.number(data.rows.bucket),
    )
    all_marks = len(data.marks.kind)
    if data.drawn < all_marks:
        reduction += " " + words(
            "timeline.marks_joined", drawn=formats.number(data.drawn), all=formats.number(all_marks)
        )
    table = [
        TimelineRow(
            steps=_span(int(rows.first_step[i]), int(rows.steps[i])),
            start=formats.seconds((int(rows.start_ns[i]) - origin_ns) / 1e9),
            prefill=int(rows.prefill[i]),
            decode=int(rows.decode[i]),
            recompute=int(rows.recompute[i]),
            wasted=int(rows.wasted[i]),
            used=formats.size(int(rows.used_peak[i])),
            waiting=int(rows.waiting_max[i]),
            active=int(rows.active_max[i]),
            longest=formats.from_ns(int(rows.duration_max[i])),
        )
        for i in range(len(rows.steps))
    ]
    caption = words("timeline.table_caption", rows=len(table), bucket=k)
    memory = [name for name in data.overview["memory"] if name != "time_us"]
    groups = [group.name for group in data.groups.groups] if data.groups else []
    return TimelineSection(title, words("timeline.text"), reduction, table, caption, memory, groups)


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}\N{EN DASH}{first + count - 1}"


def admission_section(trace: Trace, words: Words) -> AdmissionSection:
    """What ended admission, by step time."""
    limits = admission_limits(trace.steps)
    total = sum(limit.duration_ns for limit in limits) or 1
    rows = [
        AdmissionRow(
            stop_label(words, limit.reason), limit.steps, formats.from_ns(limit.duration_ns), limit.duration_ns / total
        )
        for limit in limits
    ]
    waiting = [limit for limit in limits if limit.reason != AdmissionStop.NOTHING_WAITING]
    if not waiting:
        return AdmissionSection(words("admission.title_none"), rows)
    share = formats.percent(sum(limit.duration_ns for limit in waiting) / total)
    return AdmissionSection(words("admission.title", share=share, reason=stop_label(words, waiting[0].reason)), rows)


def event_section(trace: Trace, origin_ns: int, words: Words) -> EventSection:
    """The events, or some of each kind, in order of time."""
    events = trace.events
    count = len(events.kind)
    if not count:
        return EventSection(words("events.title_none"), "", [])
    told_of = _some_of_each_kind(events.kind, EVENT_ROWS)
    order = told_of[np.argsort(events.time_ns[told_of], kind="stable")].tolist()
    rows = [_event_row(trace, at, origin_ns, words) for at in order]
    told = "events.text_all" if count <= EVENT_ROWS else "events.text_some"
    text = words(told, shown=len(rows), count=count) if count > EVENT_ROWS else words(told)
    return EventSection(words("events.title", count=formats.number(count)), text, rows)


def _event_row(trace: Trace, at: int, origin_ns: int, words: Words) -> EventRow:
    events, steps = trace.events, trace.steps
    step, request = int(events.step[at]), int(events.request[at])
    row = int(np.searchsorted(steps.index, step))
    there = row < len(steps.index) and int(steps.index[row]) == step
    return EventRow(
        time=formats.seconds((int(events.time_ns[at]) - origin_ns) / 1e9),
        kind=event_label(words, int(events.kind[at])),
        step=_known(events.step[at]),
        link=step if there else None,
        window=window_around(int(steps.start_ns[row]), int(steps.done_ns[row]), origin_ns) if there else "",
        request=request_label(trace, request),
        ordinal=request if 0 <= request < len(trace.requests.id) else None,
        tokens=_known(events.tokens[at]),
        blocks=_known(events.blocks[at]),
        bytes=formats.size(int(events.bytes[at])),
        duration=formats.from_ns(int(events.duration_ns[at])),
        note=events.text[at][:200],
    )


def _some_of_each_kind(kind: Ints, limit: int) -> Ints:
    """Rows of at most ``limit`` events: the rarest kinds have all of theirs, the others evenly chosen ones."""
    kinds, counts = np.unique(kind, return_counts=True)
    rows = [np.zeros(0, dtype=np.int64)]
    for left, place in zip(range(len(kinds), 0, -1), np.argsort(counts, kind="stable"), strict=True):
        room = (limit - sum(map(len, rows))) // left
        found = np.flatnonzero(kind == kinds[place])
        rows.append(found[np.linspace(0, len(found) - 1, min(room, len(found))).astype(np.int64)])
    return np.concatenate(rows)


def _known(value: np.int64) -> str:
    return formats.UNKNOWN if value < 0 else formats.number(int(value))


def recording_pairs(trace: Trace, summary: RunSummary, words: Words) -> list[Pair]:
    """What was recorded and at what cost."""
    header, footer, engine = trace.header, trace.footer, trace.engines[-1] if trace.engines else None
    cost = words("recording.cost_unknown")
    if footer is not None:
        window_ns = summary.window_s * 1e9
        cost = words(
            "recording.cost_value",
            total=formats.from_ns(footer.cost_ns),
            share=formats.percent(footer.cost_ns / window_ns if window_ns else None),
            p50=formats.number(footer.cost_p50_ns / 1000),
            p99=formats.number(footer.cost_p99_ns / 1000),
        )
    adapter = formats.UNKNOWN
    if engine is not None:
        verified = words("recording.verified" if engine.verified else "recording.unverified")
        adapter = words("recording.adapter_value", adapter=engine.adapter, verified=verified)
    ended = words("recording.ended_unknown")
    if footer is not None:
        ended = words.or_key(f"recording.ended_{footer.reason}", footer.reason)
        ended = f"{ended} ({footer.text})" if footer.text else ended
    values = {
        "complete": words(f"recovery.{trace.recovery.status}"),
        "ended": ended,
        "stored": ", ".join(header.stored) or words("recording.stored_none"),
        "cost": cost,
        "adapter": adapter,
        "tool": header.tool_version,
        "clock": words("recording.clock_value"),
        "rank": words("recording.rank_value", rank=header.rank, world=header.world_size),
    }
    return [Pair(words(f"recording.{name}"), value) for name, value in values.items()]


def notice_rows(trace: Trace, words: Words) -> list[NoticeRow]:
    """What the trace lost and what the recorder said, gravest first."""
    known = all_messages()
    said: list[Finding | Notice] = [
        *trace.recovery.findings,
        *sorted(trace.notices, key=lambda notice: notice.t_ns),
    ]
    rows = []
    for one in sorted(said, key=lambda one: -one.severity)[:NOTICES]:
        name = severity_name(one.severity)
        text = one.text if isinstance(one, Notice) else one.meaning
        rows.append(NoticeRow(name, words(f"severity.{name.upper()}"), one.slug, text, one.slug in known))
    return rows
