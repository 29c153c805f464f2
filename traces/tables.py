"""Makes the tables of :mod:`cbtrace.traces.columns` from what was taken in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from .attribution import Attribution, Ordinals
from .columns import Admissions, Bools, Events, Ints, Requests, Steps, Tokens
from .frame_table import FrameTable, first_rows, rows_of
from .intake import Intake
from .pairs import sums_by
from .schema import ChunkFlag, EndReason, Engine, Event, EventKind, GraphKey, RequestFlag, Visible
from .stepstore import Chunks, StepColumns

Table = TypeVar("Table")
Text = TypeVar("Text", str, bytes)


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


def sampled(table: type[Table], frames: FrameTable[Any], rows: Ints | None = None) -> Table:
    """A table of frames, or of some of them, whose fields have the names of its columns (``t_ns`` is ``time_ns``)."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):  # type: ignore[arg-type]
        values = frames.column("t_ns" if field.name == "time_ns" else field.name)
        columns[field.name] = values if rows is None else values[rows]
    return table(**columns)


def steps(packed: StepColumns, attribution: Attribution, engines: list[Engine], keys: dict[int, GraphKey]) -> Steps:
    """One row a step."""
    numbers, instants, totals = packed.numbers, packed.instants, attribution.totals
    count = len(packed)
    chunks = packed.chunks
    prefill, recompute = (sums_by(chunks.row, values, count) for values in (chunks.prefill, chunks.recompute))
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
    known, ends = _Found(intake.requests, ordinals), _Found(intake.ends, ordinals)
    totals = attribution.totals
    hits, saved, admitted = _admission_sums(intake, ordinals)
    return Requests(
        id=known.texts("id", ""),
        incarnation=known.numbers("incarnation"),
        parent=ordinals.rows(known.numbers("parent")),
        prompt_tokens=known.numbers("prompt_tokens"),
        max_new_tokens=known.numbers("max_new_tokens"),
        planned_ns=known.numbers("planned_ns"),
        submit_ns=known.numbers("submit_ns"),
        visible_ns=_first_visible(intake.visible, ordinals),
        admitted_ns=admitted,
        first_token_ns=np.where(sums.first_seen, sums.first_ns, -1),
        last_token_ns=np.where(sums.last_seen, sums.last_ns, -1),
        end_ns=ends.numbers("t_ns"),
        end_reason=ends.numbers("reason", EndReason.RUNNING),
        generated=np.where(sums.promised >= 0, sums.promised, totals.delivered),
        prefill_computed=totals.prefill,
        prefix_hit=hits,
        recomputed=totals.recompute,
        recompute_saved=saved,
        wasted=totals.wasted,
        soft_resets=_count(intake.events, EventKind.SOFT_RESET, ordinals),
        offloads=_count(intake.events, EventKind.OFFLOAD, ordinals),
        flags=known.numbers("flags", 0),
        prompt_hash=known.texts("prompt_hash", b""),
        output_hash=ends.texts("output_hash", b""),
        error=ends.texts("error", ""),
    )


class _Found:
    """Of each request, the first frame of a kind that names it."""

    def __init__(self, frames: FrameTable[Any], ordinals: Ordinals) -> None:
        self._frames = frames
        self._rows = rows_of(frames.numbers("request"), ordinals.values)

    def numbers(self, name: str, missing: int = -1) -> Ints:
        """A column of it, ``missing`` where there is no such frame."""
        return np.where(self._rows < 0, missing, np.append(self._frames.numbers(name), missing)[self._rows])

    def texts(self, name: str, missing: Text) -> list[Text]:
        """Likewise for texts and bytes."""
        values = self._frames.others(name)
        return [missing if row < 0 else values[row] for row in self._rows.tolist()]

    @property
    def there(self) -> Bools:
        """Whether there is one."""
        return self._rows >= 0


def _first_visible(visible: FrameTable[Visible], ordinals: Ordinals) -> Ints:
    """By request: the earliest hand-over; -1 without one."""
    request, time = visible.numbers("request"), visible.numbers("t_ns")
    order = np.argsort(time, kind="stable")
    rows = rows_of(request[order], ordinals.values)
    return np.where(rows < 0, -1, np.append(time[order], -1)[rows])


def _promised(known: _Found, ends: _Found) -> Ints:
    """By request: tokens delivered to it, as its end counts them; -1 where that cannot be told.

    The end of a request counts those it had before it was seen, too, and the end of a forked one its parent's, which
    were not delivered a second time: without the frame that introduces the request, its end says nothing.
    """
    before = known.numbers("generated_before", 0)
    forked = (known.numbers("flags", 0) & RequestFlag.FORKED) > 0
    told = known.there & ends.there & ~(forked & (before == 0))
    return np.where(told, np.maximum(-1, ends.numbers("generated") - before), -1)


def _at(values: Ints, rows: Ints) -> Ints:
    """Values at rows; -1 where the row is -1."""
    return np.where(rows < 0, -1, np.append(values, -1)[rows])


def _admission_sums(intake: Intake, ordinals: Ordinals) -> tuple[Ints, Ints, Ints]:
    """By request: prefix hit of the first admission, of all later ones, and when the first one was."""
    hits, saved = np.zeros(len(ordinals), dtype=np.int64), np.zeros(len(ordinals), dtype=np.int64)
    admitted = np.full(len(ordinals), -1, dtype=np.int64)
    table = admissions(intake, ordinals)
    first = table.residency == 0
    hits[table.request[first]], admitted[table.request[first]] = table.prefix_hit[first], table.time_ns[first]
    np.add.at(saved, table.request[~first], table.prefix_hit[~first])
    return hits, saved, admitted


def _count(events: FrameTable[Event], kind: EventKind, ordinals: Ordinals) -> Ints:
    who = ordinals.rows(events.numbers("request")[events.numbers("kind") == kind])
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
        for roster in intake.rosters
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
    known, ends = _Found(intake.requests, ordinals), _Found(intake.ends, ordinals)
    table = admissions(intake, ordinals)
    first_step = np.full(len(ordinals), -1, dtype=np.int64)
    began = table.residency == 0
    first_step[table.request[began]] = table.step[began]
    end_step = ends.numbers("step", np.iinfo(np.int64).max)
    prompt = known.numbers("prompt_tokens", 0)[table.request]
    found = np.zeros(len(ordinals), dtype=np.int64)
    np.add.at(found, table.request, np.maximum(0, np.minimum(table.start, prompt) - table.computed))
    totals, gaps, index = attribution.totals, attribution.token_gaps, packed.numbers["index"]
    promised = _promised(known, ends)
    whole = promised == totals.delivered
    # A request that did not end may have got tokens up to the last step that is known of.
    until = np.minimum(end_step, attribution.token_gaps.lost[-1])
    return RequestSums(
        delivered=attribution.totals.delivered,
        promised=promised,
        before=known.numbers("generated_before", 0),
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
    """One row an admission; of several with one number, the first in the file."""
    _, rows = first_rows(intake.admits.numbers("serial"))
    table = sampled(Admissions, intake.admits, rows)
    return dataclasses.replace(table, request=ordinals.rows(table.request))


def events(frames: FrameTable[Event], ordinals: Ordinals) -> Events:
    """One row an event. Ordinals in it, the parent of a fork among them, become rows of the table of requests."""
    table = sampled(Events, frames)
    forks = table.kind == EventKind.FORK
    return dataclasses.replace(
        table,
        request=ordinals.rows(table.request),
        blocks=np.where(forks, ordinals.rows(np.where(forks, table.blocks, -1)), table.blocks),
    )
