"""The slowest token gaps of a run and the steps behind them, as plain data for the template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.bands import pieces_of
from cbtrace.site.analysis.slow_gaps import SlowGap
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.analysis.window import step_durations
from cbtrace.site.pages.labels import request_label, stop_label
from cbtrace.site.pages.where import went
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace

LARGEST_MEMBERS = 3


@dataclass(frozen=True)
class GapRow:
    """One gap of the table."""

    duration: str
    duration_ns: int
    request: str
    ordinal: int
    token: int
    steps: str
    longest_step: int | None
    window: str
    """Start and end in seconds for the timeline's window."""
    prefill: int
    decode: int
    recompute: int
    went: str
    """The largest pieces of its cut."""
    what: str
    """Facts of the steps it spans."""


@dataclass(frozen=True)
class Member:
    """A request in a step."""

    request: str
    tokens: int


@dataclass(frozen=True)
class StepRow:
    """One step behind a gap."""

    index: int
    window: str
    start: str
    duration: str
    members: int
    prefill: int
    decode: int
    recompute: int
    largest: list[Member]
    stop: str


@dataclass(frozen=True)
class GapSection:
    """The slowest gaps and their longest steps."""

    title: str
    rows: list[GapRow]
    steps: list[StepRow]


def gap_section(trace: Trace, summary: RunSummary, cuts: Cuts, origin_ns: int, words: Words) -> GapSection:
    """The slowest gaps of completed requests, each with where it went and the longest step it spans."""
    gaps = cuts.slowest
    title = words("gaps.title_none")
    median = summary.token_gap_ms.p50
    if gaps and median:
        worst = gaps[0].duration_ns / 1e6
        title = words("gaps.title", duration=formats.number(worst), ratio=formats.number(worst / median))
    behind = sorted({gap.longest_step for gap in gaps if gap.longest_step >= 0})
    rows = [_gap_row(trace, gap, pieces_of(gap.pieces), origin_ns, words) for gap in gaps]
    return GapSection(title, rows, [_step_row(trace, step, origin_ns, words) for step in behind])


def _gap_row(trace: Trace, gap: SlowGap, pieces: dict[str, int], origin_ns: int, words: Words) -> GapRow:
    known = gap.longest_step >= 0
    steps = f"{gap.first_step}" if gap.steps == 1 else f"{gap.first_step}\N{EN DASH}{gap.last_step}"
    return GapRow(
        duration=formats.from_ns(gap.duration_ns),
        duration_ns=gap.duration_ns,
        request=request_label(trace, gap.request),
        ordinal=gap.request,
        token=gap.position,
        steps=steps,
        longest_step=gap.longest_step if known else None,
        window=window_around(gap.start_ns, gap.start_ns + gap.duration_ns, origin_ns),
        prefill=gap.prefill_tokens,
        decode=gap.decode_tokens,
        recompute=gap.recompute_tokens,
        went=went(pieces, gap.duration_ns, words),
        what=_what_happened(gap, words),
    )


def window_around(start_ns: int, end_ns: int, origin_ns: int) -> str:
    """A window of the timeline that shows the span in its middle third."""
    width = max(end_ns - start_ns, 1)
    return f"{(start_ns - width - origin_ns) / 1e9:.6f},{(end_ns + width - origin_ns) / 1e9:.6f}"


def _what_happened(gap: SlowGap, words: Words) -> str:
    """What is known of the steps of a gap, in words."""
    computed = gap.prefill_tokens + gap.decode_tokens + gap.recompute_tokens
    absent = gap.steps - gap.steps_with_request
    said: tuple[tuple[bool, str, dict[str, object]], ...] = (
        (gap.soft_reset, "soft_reset", {"tokens": formats.number(gap.own_recompute)}),
        (gap.offloaded, "offload", {}),
        (absent > 0, "absent", {"count": absent, "steps": gap.steps}),
        (gap.captures > 0, "capture", {"count": gap.captures}),
        (2 * gap.prefill_tokens > computed, "prefill", {"share": _share(gap.prefill_tokens, computed)}),
        (2 * gap.recompute_tokens > computed, "recompute", {"share": _share(gap.recompute_tokens, computed)}),
        (gap.steps > 1, "longest", {"step": gap.longest_step, "duration": formats.from_ns(gap.longest_step_ns)}),
    )
    parts = [words(f"gaps.what_{name}", **values) for holds, name, values in said if holds]
    return "; ".join(parts) if parts else formats.UNKNOWN


def _share(part: int, whole: int) -> str:
    return formats.percent(part / whole if whole else None)


def _step_row(trace: Trace, index: int, origin_ns: int, words: Words) -> StepRow:
    steps, members = trace.steps, trace.members_of(index)
    row = int(np.searchsorted(steps.index, index))
    tokens = members.prefill + members.decode + members.recompute
    largest = np.argsort(-tokens, kind="stable")[:LARGEST_MEMBERS]
    start = int(steps.start_ns[row])
    return StepRow(
        index=index,
        window=window_around(start, int(steps.done_ns[row]), origin_ns),
        start=formats.seconds((start - origin_ns) / 1e9),
        duration=formats.from_ns(int(step_durations(steps)[row])),
        members=int(steps.members[row]),
        prefill=int(steps.prefill_tokens[row]),
        decode=int(steps.decode_tokens[row]),
        recompute=int(steps.recompute_tokens[row]),
        largest=[Member(request_label(trace, int(members.request[i])), int(tokens[i])) for i in largest],
        stop=stop_label(words, int(steps.stop[row])),
    )
