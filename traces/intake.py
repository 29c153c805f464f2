"""Takes frames one by one and packs them: those of which there are many become columns, chunk by chunk."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, get_args

import msgspec
import numpy as np

from .columns import Ints
from .frame_table import FrameTable, StoredFrames, first_rows
from .packed_steps import FORMS, PACKED_SIZE
from .residency import Admitted, Move, Moves
from .schema import (
    Admit,
    Clock,
    End,
    Engine,
    Event,
    EventKind,
    Footer,
    Frame,
    Gpu,
    GraphKey,
    Header,
    Memory,
    Notice,
    Overwritten,
    Request,
    Roster,
    Step,
    TokenIds,
    Visible,
)
from .stepstore import StepColumns, StepStore

MAX_SLOTS = 1 << 16
MAX_ORDINAL = (1 << 32) - 1
MAX_ENTRIES = 1 << 40
"""No request has more KV entries: sums over all members of a step stay exact."""
_LARGEST = (1 << 63) - 1
_MOST_BITS = MAX_SLOTS // 8
_DEPARTURES = (EventKind.SOFT_RESET, EventKind.OFFLOAD)
_ADMIT, _END, _EVENT, _ROSTER, _BREACH = range(5)
_MOVES = np.array([Move.ADMIT, Move.LEAVE, Move.LEAVE, Move.ROSTER, Move.BREACH], dtype=np.int64)
_IN_FLIGHT = 2  # steps that an asynchronous engine may have scheduled and not yet written


@dataclass
class Intake:
    """All frames of a trace, as they were taken in."""

    header: Header | None = None
    footer: Footer | None = None
    engines: list[Engine] = field(default_factory=list)
    requests: FrameTable[Request] = field(default_factory=lambda: FrameTable(Request))
    visible: FrameTable[Visible] = field(default_factory=lambda: FrameTable(Visible))
    ends: FrameTable[End] = field(default_factory=lambda: FrameTable(End))
    admits: FrameTable[Admit] = field(default_factory=lambda: FrameTable(Admit))
    events: FrameTable[Event] = field(default_factory=lambda: FrameTable(Event))
    memory: FrameTable[Memory] = field(default_factory=lambda: FrameTable(Memory))
    gpu: FrameTable[Gpu] = field(default_factory=lambda: FrameTable(Gpu))
    rosters: StoredFrames[Roster] = field(default_factory=lambda: StoredFrames(Roster))
    clocks: list[Clock] = field(default_factory=list)
    graph_keys: dict[int, GraphKey] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    token_ids: dict[int, bytes] = field(default_factory=dict)
    overwritten: Overwritten | None = None
    """What a ring gave up; the newest word on it."""
    frames: int = 0
    repeated: int = 0
    """Frames that are in the file twice, byte for byte."""
    reordered: int = 0
    """Frames before which the file has what was written after them; steps among themselves are not counted here."""
    impossible: int = 0
    """Frames whose values cannot be: beyond 64 bits, or negative where that has no meaning."""
    last_step: int = -1
    """Highest step index so far."""

    def __post_init__(self) -> None:
        self._steps = StepStore()
        self._seen: set[int] = set()
        self._now = 0
        self._move_kind, self._move_step, self._move_row = array("b"), array("q"), array("q")
        self._last_counted = -1
        self._takers: dict[type[msgspec.Struct], Callable[[Any], object]] = {
            Header: self._take_header,
            Engine: self.engines.append,
            Request: self.requests.add,
            Visible: self.visible.add,
            Admit: self._take_admit,
            Roster: self._take_roster,
            End: self._take_end,
            Event: self._take_event,
            Memory: self.memory.add,
            Gpu: self.gpu.add,
            Clock: self.clocks.append,
            GraphKey: lambda frame: self.graph_keys.setdefault(frame.id, frame),
            TokenIds: lambda frame: self.token_ids.setdefault(frame.request, frame.ids),
            Notice: self.notices.append,
            Footer: self._take_footer,
            Overwritten: self._take_overwritten,
        }

    def take(self, frame: Frame, payload: bytes) -> None:
        """Store one frame. ``payload`` is the frame as read: it tells repeats."""
        self.frames += 1
        if type(frame) is Step:
            self._take_step(frame)
            return
        mark = hash(payload)
        if mark in self._seen:
            self.repeated += 1
            return
        self._seen.add(mark)
        if not _possible(frame):
            self.impossible += 1
            return
        self._takers[type(frame)](frame)

    def breach(self) -> None:
        """Note that bytes were lost at this place of the file."""
        self._move(_BREACH, self._now, -1)

    def breach_somewhere(self) -> None:
        """Note that frames are missing and nothing shows where: in doubt is all since admissions were last counted."""
        self._move(_BREACH, max(0 if self.overwritten is None else self.overwritten.step, self._last_counted), -1)

    @property
    def breached(self) -> bool:
        """Whether frames may have been lost somewhere."""
        return _BREACH in self._move_kind

    def finish(self) -> StepColumns:
        """The steps, packed. Call it once, after the last frame."""
        self._seen.clear()  # with many requests it is large, and no longer needed
        return self._steps.finish()

    def _take_step(self, step: Step) -> None:
        largest = max(step.index, step.kv_free, step.kv_cached, step.waiting, step.active, step.flags, step.graph)
        attempts = 0 if step.detail is None else step.detail.attempts
        if max(largest, step.gpu_ns, step.stop, attempts) > _LARGEST or step.index < 0 or len(step.decode) > _MOST_BITS:
            self.impossible += 1
            return
        self._steps.add(step)
        self._reached(step.index)

    def take_packed(self, form: int, payload: bytes) -> None:
        """Store one packed step; see :data:`~cbtrace.traces.packed_steps.PACKED_SIZE`."""
        self.frames += 1
        layout = FORMS[form]
        if not layout.chunk and len(payload) > PACKED_SIZE[form] + _MOST_BITS:
            self.impossible += 1
            return
        self._steps.add_packed(form, payload)
        self._reached(int.from_bytes(payload[1 : 1 + layout.index], "little"))

    def _reached(self, index: int) -> None:
        if index > self.last_step:
            self.last_step = index
            self.reordered += index + _IN_FLIGHT < self._now
            if index >= self._now:
                self._now = index + 1

    def _take_header(self, frame: Header) -> None:
        self.header = self.header or frame
        self.reordered += self.frames > 1

    def _take_footer(self, frame: Footer) -> None:
        self.footer = frame

    def _take_admit(self, frame: Admit) -> None:
        self._member(_ADMIT, frame.step, self.admits.add(frame))

    def _take_roster(self, frame: Roster) -> None:
        if frame.step < self._now:
            self.reordered += 1
            return  # it would bring back those who have left meanwhile
        self.rosters.append(frame)
        self._member(_ROSTER, frame.step, len(self.rosters) - 1)

    def _take_end(self, frame: End) -> None:
        self._member(_END, frame.step, self.ends.add(frame))

    def _take_event(self, frame: Event) -> None:
        row = self.events.add(frame)
        if frame.kind in _DEPARTURES:
            self._member(_EVENT, frame.step, row)

    def _take_overwritten(self, frame: Overwritten) -> None:
        self.overwritten = frame
        # What came before says who was alive then, not who was in which slot when: the roster that follows does.
        for column in (self._move_kind, self._move_step, self._move_row):
            del column[:]
        self.rosters.clear()
        self._last_counted = -1
        # It has the order of requests, not of time, and no steps.
        self.reordered = int(self.last_step >= 0)
        self._now = 0

    def _member(self, kind: int, step: int, row: int) -> None:
        self.reordered += step < self._now
        self._move(kind, step, row)
        if kind in (_ADMIT, _ROSTER):
            self._last_counted = max(self._last_counted, step)
        self._now = max(self._now, step)

    def _move(self, kind: int, step: int, row: int) -> None:
        self._move_kind.append(kind)
        self._move_step.append(step)
        self._move_row.append(row)

    @property
    def requests_known(self) -> int:
        """How many requests have a frame that introduces them."""
        return len(first_rows(self.requests.numbers("request"))[0])

    def moves(self) -> Moves:
        """What moves requests in and out of slots, in the order of the file."""
        kind = np.array(self._move_kind, dtype=np.int64)
        row = np.array(self._move_row, dtype=np.int64)
        columns = {name: np.full(len(kind), -1, dtype=np.int64) for name in ("request", "serial", "slot", "start")}
        for code, table, names in (
            (_ADMIT, self.admits, tuple(columns)),
            (_END, self.ends, ("request",)),
            (_EVENT, self.events, ("request",)),
        ):
            at = np.flatnonzero(kind == code)
            for name in names:
                columns[name][at] = table.numbers(name)[row[at]]
        rosters = kind == _ROSTER
        columns["serial"][rosters] = row[rosters]
        return Moves(kind=_MOVES[kind], step=np.array(self._move_step, dtype=np.int64), rosters=self.rosters, **columns)

    def admitted(self) -> Admitted:
        """All admissions, one of each number."""
        _, rows = first_rows(self.admits.numbers("serial"))
        return Admitted(*(self.admits.numbers(name)[rows] for name in Admitted.__dataclass_fields__))

    def ordinals_seen(self, steps: StepColumns) -> Iterator[Ints]:
        """All request ordinals that any frame names; of a ring, those of requests that it kept."""
        yield np.array(list(self.token_ids), dtype=np.int64)
        for table in (self.requests, self.visible, self.ends, self.admits):
            yield table.numbers("request")
        if self.overwritten is None:
            named = [self.events.numbers("request"), self.requests.numbers("parent")]
            named.append(self.events.numbers("blocks")[self.events.numbers("kind") == EventKind.FORK])
            yield from (ordinals[ordinals >= 0] for ordinals in named)
        yield np.fromiter((request for roster in self.rosters for request in roster.slots[1::2]), dtype=np.int64)
        yield steps.chunks.request
        yield steps.wasted.request
        yield steps.starved.request


def _ordinals_of_event(event: Event) -> tuple[int, ...]:
    return (event.request, event.blocks) if event.kind == EventKind.FORK else (event.request,)


def _possible(frame: Frame) -> bool:
    """Whether all numbers of a frame fit the tables: 64 bits, ordinals below 2**32, slots below 65536."""
    numbers = _NUMBERS[type(frame)](frame)
    if max(numbers) > _LARGEST or min(numbers) < -_LARGEST:
        return False
    if isinstance(frame, Roster):
        return _possible_roster(frame)
    if isinstance(frame, Admit) and not _possible_admission(frame):
        return False
    if isinstance(frame, Event):
        return all(-1 <= ordinal <= MAX_ORDINAL for ordinal in _ordinals_of_event(frame))
    if isinstance(frame, Request) and not -1 <= frame.parent <= MAX_ORDINAL:
        return False
    ordinal = getattr(frame, "request", 0)
    return 0 <= ordinal <= MAX_ORDINAL


def _numbers(kind: type[msgspec.Struct]) -> Callable[[Any], tuple[int, ...]]:
    """Takes the integers of a frame; at least two, so that they come as a tuple."""
    names = [field.name for field in msgspec.structs.fields(kind) if field.type is int]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda frame: (0, *(getattr(frame, name) for name in names))


_NUMBERS = {kind: _numbers(kind) for kind in get_args(Frame)}


def _possible_admission(admit: Admit) -> bool:
    entries = (admit.start, admit.prefix_hit, admit.computed)
    return 0 <= admit.slot < MAX_SLOTS and admit.serial >= 0 and all(-1 <= count <= MAX_ENTRIES for count in entries)


def _possible_roster(roster: Roster) -> bool:
    slots, requests = roster.slots[::2], roster.slots[1::2]
    return (
        len(slots) == len(set(slots)) == len(requests) == len(set(requests)) == len(roster.serials)
        and len(roster.positions) in (0, len(slots))
        and len(roster.delivered) in (0, len(slots))
        and all(-1 <= value <= MAX_ENTRIES for value in (*roster.positions, *roster.delivered))
        and len(slots) <= MAX_SLOTS
        and all(0 <= slot < MAX_SLOTS for slot in slots)
        and all(0 <= request <= MAX_ORDINAL for request in requests)
        and all(0 <= serial <= _LARGEST for serial in roster.serials)
    )
