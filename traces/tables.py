"""Makes the tables of :mod:`cbtrace.traces.columns` from what was taken in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from .attribution import Attribution, Ordinals
from .columns import Admissions, Bools, Events, Ints, Requests, Steps, Tokens
from .intake import Intake
from .schema import ChunkFlag, End, EndReason, Engine, Event, EventKind, GraphKey, Request, RequestFlag, Roster
from .stepstore import Chunks, StepColumns

Table = TypeVar("Table")
Row = TypeVar("Row")


def column(values: Iterable[int]) -> Ints:
    """Integers as a column."""
    return np.array(list(values), dtype=np.int64)


def joined(table: type[Table], parts: Sequence[Table]) -> Table:
    """One table of several; an empty one of none."""
    names = [field.name for field in dataclasses.fields(table)]  # type: ignore[arg-type]
    if not parts:
        return table(**{name: np.zeros(0, dtype=_dtype(table, name)) for name in names})
    return table(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _dtype(table: type[Any], name: str) -> type[np.generic]:
    return np.bool_ if table.__annotations__[name] == "Bools" else np.int64


def sampled(table: type[Table], frames: Sequence[Any]) -> Table:
    """A table of frames whose fields have the names of its columns (``t_ns`` becomes ``time_ns``)."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):  # type: ignore[arg-type]
        source = "t_ns" if field.name == "time_ns" else field.name
        values = [getattr(frame, source) for frame in frames]
        columns[field.name] = values if field.type == "list[str]" else column(values)
    return table(**columns)


def steps(packed: StepColumns, attribution: Attribution, engines: list[Engine], keys: dict[int, GraphKey]) -> Steps:
    """One row a step."""
    numbers, instants, totals = packed.numbers, packed.instants, attribution.totals
    count = len(packed)
    chunks = packed.chunks
    prefill, recompute = (_sums(chunks.row, values, count) for values in (chunks.prefill, chunks.recompute))
    decoding, ending = (_flagged(chunks, flag, count) for flag in (ChunkFlag.DECODE, ChunkFlag.NEW_TOKEN))
    unit, capacity = _unit_bytes(engines, instants[:, 0])
    wasted = np.bincount(packed.wasted.row, minlength=count)
    decode = attribution.decode_bits + decoding
    padded_queries, padded_kv = _padded(numbers["graph"], keys, prefill + recompute + decode, totals.kv_read)
    free, cached = (_in_bytes(numbers[name], unit) for name in ("kv_free", "kv_cached"))
    used = np.where((free < 0) | (cached < 0), -1, capacity * unit - free - cached)
    return Steps(
        index=numbers["index"],
        start_ns=instants[:, 0],
        scheduled_ns=instants[:, 1],
        prepared_ns=instants[:, 2],
        launched_ns=instants[:, 3],
        ready_ns=instants[:, 4],
        done_ns=instants[:, 5],
        gpu_ns=numbers["gpu_ns"],
        kv_free=free,
        kv_cached=cached,
        kv_used=used,
        waiting=numbers["waiting"],
        active=numbers["active"],
        members=attribution.members,
        prefill_tokens=prefill,
        decode_tokens=decode,
        recompute_tokens=recompute,
        new_tokens=attribution.decode_bits + ending - wasted,
        wasted_tokens=wasted,
        kv_read=totals.kv_read,
        padded_queries=padded_queries,
        padded_kv=padded_kv,
        starved=np.bincount(packed.starved.row, minlength=count),
        stop=numbers["stop"],
        flags=numbers["flags"],
        attempts=numbers["attempts"],
        members_known=totals.named == attribution.members,
    )


def _sums(row: Ints, values: Ints, count: int) -> Ints:
    return np.bincount(row, weights=values, minlength=count).astype(np.int64)


def _flagged(chunks: Chunks, flag: ChunkFlag, count: int) -> Ints:
    """By step: chunks with a flag."""
    return np.bincount(chunks.row[(chunks.flags & flag) > 0], minlength=count)


def _unit_bytes(engines: list[Engine], start: Ints) -> tuple[Ints, Ints]:
    """By step: bytes of a unit and capacity in units of the engine that ran; -1 when no engine is known."""
    if not engines:
        unknown = np.full(len(start), -1, dtype=np.int64)
        return unknown, unknown
    engines = sorted(engines, key=lambda engine: engine.t_ns)
    known_from = column(engine.t_ns for engine in engines)
    which = np.maximum(np.searchsorted(known_from, start, side="right") - 1, 0)
    unit = column(engine.kv.unit_bytes for engine in engines)[which]
    return unit, column(engine.kv.capacity_units for engine in engines)[which]


def _in_bytes(units: Ints, unit_bytes: Ints) -> Ints:
    return np.where((units < 0) | (unit_bytes < 0), -1, units * unit_bytes)


def _padded(graph: Ints, keys: dict[int, GraphKey], queries: Ints, kv: Ints) -> tuple[Ints, Ints]:
    """Query and KV length after padding; the real ones where the step names no (known) graph key."""
    queries, kv = queries.copy(), kv.copy()
    for key in keys.values():
        if key.id != 0:
            rows = graph == key.id
            queries[rows] = key.queries
            kv[rows] = -1 if key.decode_fast_path else key.kv
    return queries, kv


def requests(intake: Intake, attribution: Attribution, ordinals: Ordinals, sums: RequestSums) -> Requests:
    """One row a request."""
    known = [intake.requests.get(ordinal) for ordinal in ordinals.values.tolist()]
    ends = [intake.ends.get(ordinal) for ordinal in ordinals.values.tolist()]
    totals = attribution.totals
    hits, saved, admitted = _admission_sums(intake, ordinals)
    return Requests(
        id=[request.id if request else "" for request in known],
        incarnation=_from(known, lambda request: request.incarnation),
        parent=ordinals.rows(_from(known, lambda request: request.parent)),
        prompt_tokens=_from(known, lambda request: request.prompt_tokens),
        max_new_tokens=_from(known, lambda request: request.max_new_tokens),
        planned_ns=_from(known, lambda request: request.planned_ns),
        submit_ns=_from(known, lambda request: request.submit_ns),
        visible_ns=column(intake.visible.get(ordinal, -1) for ordinal in ordinals.values.tolist()),
        admitted_ns=admitted,
        first_token_ns=np.where(sums.first_seen, sums.first_ns, -1),
        last_token_ns=np.where(sums.last_seen, sums.last_ns, -1),
        end_ns=_from(ends, lambda end: end.t_ns),
        end_reason=column(EndReason.RUNNING if end is None else end.reason for end in ends),
        generated=np.where(sums.promised >= 0, sums.promised, totals.delivered),
        prefill_computed=totals.prefill,
        prefix_hit=hits,
        recomputed=totals.recompute,
        recompute_saved=saved,
        wasted=totals.wasted,
        soft_resets=_count(intake.events, EventKind.SOFT_RESET, ordinals),
        offloads=_count(intake.events, EventKind.OFFLOAD, ordinals),
        flags=_from(known, lambda request: request.flags, missing=0),
        prompt_hash=[request.prompt_hash if request else b"" for request in known],
        output_hash=[end.output_hash if end else b"" for end in ends],
        error=[end.error if end else "" for end in ends],
    )


def _promised(known: Sequence[Request | None], ends: Sequence[End | None]) -> Ints:
    """By request: tokens delivered to it, as its end counts them; -1 where that cannot be told.

    The end of a request counts those it had before it was seen, too, and the end of a forked one its parent's, which
    were not delivered a second time: without the frame that introduces the request, its end says nothing.
    """

    def promised(request: Request | None, end: End | None) -> int:
        if request is None or end is None or (request.flags & RequestFlag.FORKED and not request.generated_before):
            return -1
        return max(-1, end.generated - request.generated_before)

    return column(map(promised, known, ends))


def _from(rows: Sequence[Row | None], value: Callable[[Row], int], missing: int = -1) -> Ints:
    return column(missing if row is None else value(row) for row in rows)


def _at(values: Ints, rows: Ints) -> Ints:
    """Values at rows; -1 where the row is -1."""
    return np.where(rows < 0, -1, np.append(values, -1)[rows])


def _admission_sums(intake: Intake, ordinals: Ordinals) -> tuple[Ints, Ints, Ints]:
    """By request: prefix hit of the first admission, of all later ones, and when the first one was."""
    hits, saved = np.zeros(len(ordinals), dtype=np.int64), np.zeros(len(ordinals), dtype=np.int64)
    admitted = np.full(len(ordinals), -1, dtype=np.int64)
    admits = [intake.admits[serial] for serial in sorted(intake.admits)]
    rows = ordinals.rows(column(admit.request for admit in admits)).tolist()
    for row, admit in zip(rows, admits, strict=True):
        if admit.residency == 0:
            hits[row], admitted[row] = admit.prefix_hit, admit.t_ns
        else:
            saved[row] += admit.prefix_hit
    return hits, saved, admitted


def _count(events: Sequence[Event], kind: EventKind, ordinals: Ordinals) -> Ints:
    who = ordinals.rows(column(event.request for event in events if event.kind == kind))
    return np.bincount(who[who >= 0], minlength=len(ordinals))


@dataclasses.dataclass(frozen=True)
class Anchors:
    """What rosters say of requests: ``delivered[i]`` tokens of ``request[i]`` came before ``step[i]``."""

    request: Ints
    step: Ints
    delivered: Ints


def _anchors(intake: Intake, ordinals: Ordinals) -> Anchors:
    rows = [
        (request, roster.step, delivered)
        for roster in intake.membership
        if isinstance(roster, Roster)
        for request, delivered in zip(roster.slots[1::2], roster.delivered, strict=False)
        if delivered >= 0
    ]
    request, step, delivered = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Anchors(ordinals.rows(request), step, delivered)


@dataclasses.dataclass(frozen=True)
class RequestSums:
    """Counts by request, to check a trace against itself and to number tokens."""

    delivered: Ints
    """Tokens that steps gave it."""
    promised: Ints
    """Tokens delivered to it by its end's own account; -1 unknown."""
    before: Ints
    """Tokens it had before it was seen."""
    found: Ints
    """Prompt tokens that an admission found in the cache and that had never been computed."""
    first_step: Ints
    """Step of its first admission; -1 unknown."""
    end_step: Ints
    """The first step that can see its end; a huge number if it did not end."""
    anchors: Anchors
    first_ns: Ints
    """When the first token came that is there; -1 if there is none."""
    last_ns: Ints
    first_seen: Bools
    """The first token that is there is its first."""
    last_seen: Bools
    """The last token that is there is its last so far."""
    complete: Bools
    """No step between admission and end is missing or only partly known."""


def request_sums(intake: Intake, attribution: Attribution, ordinals: Ordinals, packed: StepColumns) -> RequestSums:
    """See :class:`RequestSums`."""
    named = ordinals.values.tolist()
    first = {admit.request: admit.step for admit in intake.admits.values() if admit.residency == 0}
    known = [intake.requests.get(ordinal) for ordinal in named]
    ends = [intake.ends.get(ordinal) for ordinal in named]
    first_step = column(first.get(ordinal, -1) for ordinal in named)
    end_step = column(np.iinfo(np.int64).max if end is None else end.step for end in ends)
    found = np.zeros(len(named), dtype=np.int64)
    admitted = column(admit.request for admit in intake.admits.values())
    for row, admit in zip(ordinals.rows(admitted).tolist(), intake.admits.values(), strict=True):
        request = known[row]
        found[row] += max(0, min(admit.start, request.prompt_tokens if request else 0) - admit.computed)
    totals, gaps, index = attribution.totals, attribution.token_gaps, packed.numbers["index"]
    promised = _promised(known, ends)
    whole = promised == totals.delivered
    # A request that did not end may have got tokens up to the last step that is known of.
    until = np.minimum(end_step, attribution.token_gaps.lost[-1])
    return RequestSums(
        delivered=attribution.totals.delivered,
        promised=promised,
        before=_from(known, lambda request: request.generated_before, missing=0),
        found=found,
        first_step=first_step,
        end_step=end_step,
        anchors=_anchors(intake, ordinals),
        first_ns=_at(packed.instants[:, 4], totals.first_row),
        last_ns=_at(packed.instants[:, 4], totals.last_row),
        first_seen=whole | ~gaps.since(first_step, _at(index, totals.first_row)),
        last_seen=whole | ~gaps.until(_at(index, totals.last_row), until),
        complete=(first_step >= 0) & ~attribution.token_gaps.until(first_step - 1, end_step),
    )


def token_parts(attribution: Attribution, packed: StepColumns, sums: RequestSums) -> Iterator[Tokens]:
    """One row a delivered token, by request, then position; some hundred thousand rows at a time."""
    for block in attribution.by_request():
        given = block.given
        request, rows = block.pairs.request[given], block.pairs.row[given]
        position = token_positions(request, rows, attribution, packed, sums)
        yield Tokens(request, position, packed.numbers["index"][rows], packed.instants[rows, 4])


def token_positions(
    request: Ints, rows: Ints, attribution: Attribution, packed: StepColumns, sums: RequestSums
) -> Ints:
    """Number of each token within its request; -1 where it is not known.

    ``request`` and ``rows`` (of steps) are those of all tokens of some requests, by request, then by step.
    """
    if not request.size:
        return request
    index = packed.numbers["index"]
    position = _counted_positions(request, index[rows], attribution, sums)
    if (position < 0).any():
        anchored = _anchored_positions(request, rows, index, attribution, sums.anchors)
        position = np.where(position < 0, anchored, position)
    return position


def _counted_positions(request: Ints, step: Ints, attribution: Attribution, sums: RequestSums) -> Ints:
    """Number of each token within its request.

    Counted forward as long as no step since the request's admission is missing, else back from its end as long as none
    up to there is; -1 in between.
    """
    delivered = attribution.totals.delivered
    begins = np.flatnonzero(np.diff(request, prepend=-1))
    length = np.diff(np.append(begins, len(request)))
    first = request[begins]
    position = np.arange(len(request)) + np.repeat(sums.before[first] + 1 - begins, length)
    gaps = attribution.token_gaps
    if not gaps.any_before(step):
        return position
    whole = (sums.promised == delivered)[request]
    forward = whole | ~gaps.since(sums.first_step[request], step)
    backward = (sums.promised[request] >= 0) & ~gaps.until(step, sums.end_step[request])
    missed = sums.promised[request] - delivered[request]
    return np.where(forward, position, np.where(backward, position + missed, -1))


def _anchored_positions(request: Ints, rows: Ints, index: Ints, attribution: Attribution, anchors: Anchors) -> Ints:
    """Number of each token, counted from the roster before it; -1 where there is none or a step since is missing."""
    if not anchors.request.size:
        return np.full(len(request), -1, dtype=np.int64)
    span = len(index) + 1
    key = anchors.request * span + np.searchsorted(index, anchors.step)
    order = np.argsort(key, kind="stable")
    token_key = request * span + rows
    at = np.searchsorted(key[order], token_key, side="right") - 1
    anchor = order[np.maximum(at, 0)]
    mine = (at >= 0) & (anchors.request[anchor] == request)
    mine &= ~attribution.token_gaps.since(anchors.step[anchor], index[rows])
    since = np.arange(len(request)) - np.searchsorted(token_key, key[anchor])
    return np.where(mine, anchors.delivered[anchor] + since + 1, -1)


def admissions(intake: Intake, ordinals: Ordinals) -> Admissions:
    """One row an admission."""
    admits = [intake.admits[serial] for serial in sorted(intake.admits)]
    table = sampled(Admissions, admits)
    return dataclasses.replace(table, request=ordinals.rows(table.request))


def events(frames: Sequence[Event], ordinals: Ordinals) -> Events:
    """One row an event. Ordinals in it, the parent of a fork among them, become rows of the table of requests."""
    table = sampled(Events, frames)
    forks = table.kind == EventKind.FORK
    return dataclasses.replace(
        table,
        request=ordinals.rows(table.request),
        blocks=np.where(forks, ordinals.rows(np.where(forks, table.blocks, -1)), table.blocks),
    )
