"""The worst token gaps of a run and the steps behind them, as plain data for the template."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.bands import pieces_of
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.slow_gaps import SlowGap, slow_gaps
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.analysis.window import step_durations
from cbtrace.site.pages.labels import request_label, stop_label
from cbtrace.site.pages.where import went
from cbtrace.site.pages.windows import window_around
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace

LARGEST_MEMBERS = 3


@dataclass(frozen=True)
class GapRow:
    """Gaps that are alike: one row of the table. Request and token are those of the first of them."""

    duration: str
    duration_ns: int
    request: str
    ordinal: int
    token: int
    count: int
    more: str
    """How many others the row stands for, in words; empty without any."""
    steps: str
    last_step: int
    """The step in which all of them got their token."""
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
class MostRow:
    """The gap that spent most on a piece."""

    piece: str
    label: str
    most: str
    """How much it spent on it, ms."""
    gap: GapRow


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
    """The slowest gaps, the one that spent most on each piece, and the longest steps of all of them."""

    title: str
    most: list[MostRow]
    rows: list[GapRow]
    reduction: str
    """How many gaps the rows stand for."""
    steps: list[StepRow]


def gap_section(trace: Trace, summary: RunSummary, cuts: Cuts, origin_ns: int, words: Words) -> GapSection:
    """The worst gaps of completed requests, each with where it went and the longest step it spans."""
    found = slow_gaps(trace, cuts.gaps)
    gaps = found.slowest
    title = words("gaps.title_none")
    median = summary.token_gap_ms.p50
    if gaps and median:
        worst = gaps[0].duration_ns / 1e6
        title = words("gaps.title", duration=formats.number(worst), ratio=formats.number(worst / median))
    told_of, all_gaps = sum(gap.count for gap in gaps), int(cuts.gaps.count.sum())
    reduction = words("gaps.reduction", rows=len(gaps), gaps=formats.number(told_of), all=formats.number(all_gaps))
    behind = sorted({gap.longest_step for gap in (*gaps, *found.most.values()) if gap.longest_step >= 0})
    return GapSection(
        title,
        [_most_row(trace, piece, gap, origin_ns, words) for piece, gap in found.most.items()],
        [_gap_row(trace, gap, origin_ns, words) for gap in gaps],
        reduction,
        [_step_row(trace, step, origin_ns, words) for step in behind],
    )


def _most_row(trace: Trace, piece: str, gap: SlowGap, origin_ns: int, words: Words) -> MostRow:
    most = formats.from_ns(int(gap.pieces[COLUMN[piece]]))
    return MostRow(piece, words(f"piece.{piece}"), most, _gap_row(trace, gap, origin_ns, words))


def _gap_row(trace: Trace, gap: SlowGap, origin_ns: int, words: Words) -> GapRow:
    steps = f"{gap.first_step}" if gap.steps == 1 else f"{gap.first_step}\N{EN DASH}{gap.last_step}"
    more = words("gaps.more", count=formats.number(gap.count - 1)) if gap.count > 1 else ""
    return GapRow(
        duration=formats.from_ns(gap.duration_ns),
        duration_ns=gap.duration_ns,
        request=request_label(trace, gap.request),
        ordinal=gap.request,
        token=gap.position,
        count=gap.count,
        more=more,
        steps=steps,
        last_step=gap.last_step,
        longest_step=gap.longest_step if gap.longest_step >= 0 else None,
        window=window_around(gap.start_ns, gap.start_ns + gap.duration_ns, origin_ns),
        prefill=gap.prefill_tokens,
        decode=gap.decode_tokens,
        recompute=gap.recompute_tokens,
        went=went(pieces_of(gap.pieces), gap.duration_ns, words),
        what=_what_happened(gap, words),
    )


def _what_happened(gap: SlowGap, words: Words) -> str:
    """What is known of the steps of a gap, in words."""
    computed = gap.prefill_tokens + gap.decode_tokens + gap.recompute_tokens
    reset = "soft_reset" if gap.count == 1 else "soft_resets"
    said: tuple[tuple[bool, str, dict[str, object]], ...] = (
        (gap.soft_reset, reset, {"tokens": formats.number(gap.own_recompute)}),
        (gap.offloaded, "offload", {}),
        (gap.absent_steps > 0, "absent", {"count": gap.absent_steps, "steps": gap.steps}),
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
