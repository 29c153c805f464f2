"""Takes frames one by one and packs them: steps into numpy columns chunk by chunk, everything else into lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from .codec import CHUNKS, PACKED_SIZE
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
_IN_FLIGHT = 2  # steps that an asynchronous engine may have scheduled and not yet written


@dataclass(frozen=True)
class Breach:
    """Frames may have been lost here in the file: nothing before ``step`` is in doubt through it."""

    step: int


@dataclass
class Intake:
    """All frames of a trace, as they were taken in."""

    header: Header | None = None
    footer: Footer | None = None
    engines: list[Engine] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    visible: dict[int, int] = field(default_factory=dict)
    """First ``t_ns`` by request."""
    ends: dict[int, End] = field(default_factory=dict)
    second_ends: list[End] = field(default_factory=list)
    admits: dict[int, Admit] = field(default_factory=dict)
    """By serial."""
    events: list[Event] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    gpu: list[Gpu] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    graph_keys: dict[int, GraphKey] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    token_ids: dict[int, bytes] = field(default_factory=dict)
    membership: list[Admit | End | Event | Roster | Breach] = field(default_factory=list)
    """What moves requests in and out of slots, in the order of the file."""
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
        self._take_other(frame)

    def breach(self) -> None:
        """Note that bytes were lost at this place of the file."""
        self.membership.append(Breach(self._now))

    def breach_somewhere(self) -> None:
        """Note that frames are missing and nothing shows where: in doubt is all since admissions were last counted."""
        counts = [0 if self.overwritten is None else self.overwritten.step]
        counts += [frame.step for frame in self.membership if isinstance(frame, Admit | Roster)]
        self.membership.append(Breach(max(counts)))

    def finish(self) -> StepColumns:
        """The steps, packed. Call it once, after the last frame."""
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
        """Store one packed step; see :data:`~cbtrace.traces.codec.PACKED_SIZE`."""
        self.frames += 1
        if form < CHUNKS and len(payload) > PACKED_SIZE[form] + _MOST_BITS:
            self.impossible += 1
            return
        self._steps.add_packed(form, payload)
        self._reached(int.from_bytes(payload[1:5], "little"))

    def _reached(self, index: int) -> None:
        if index > self.last_step:
            self.last_step = index
            self.reordered += index + _IN_FLIGHT < self._now
            if index >= self._now:
                self._now = index + 1

    def _take_other(self, frame: Frame) -> None:
        if isinstance(frame, Header):
            self.header = self.header or frame
            self.reordered += self.frames > 1
        elif isinstance(frame, Engine):
            self.engines.append(frame)
        elif isinstance(frame, Request):
            self.requests.setdefault(frame.request, frame)
        elif isinstance(frame, Visible):
            self.visible[frame.request] = min(frame.t_ns, self.visible.get(frame.request, frame.t_ns))
        elif isinstance(frame, Admit | Roster):
            if isinstance(frame, Admit):
                self.admits.setdefault(frame.serial, frame)
            self._member(frame)
        elif isinstance(frame, End):
            if frame.request in self.ends:
                self.second_ends.append(frame)
            else:
                self.ends[frame.request] = frame
            self._member(frame)
        elif isinstance(frame, Event):
            self.events.append(frame)
            if frame.kind in _DEPARTURES:
                self._member(frame)
        else:
            self._take_sample(frame)

    def _take_sample(self, frame: Frame) -> None:
        if isinstance(frame, Memory):
            self.memory.append(frame)
        elif isinstance(frame, Gpu):
            self.gpu.append(frame)
        elif isinstance(frame, Clock):
            self.clocks.append(frame)
        elif isinstance(frame, GraphKey):
            self.graph_keys.setdefault(frame.id, frame)
        elif isinstance(frame, TokenIds):
            self.token_ids.setdefault(frame.request, frame.ids)
        elif isinstance(frame, Notice):
            self.notices.append(frame)
        elif isinstance(frame, Footer):
            self.footer = frame
        elif isinstance(frame, Overwritten):
            self.overwritten = frame
            # What came before says who was alive then, not who was in which slot when: the roster that follows does.
            self.membership.clear()
            # It has the order of requests, not of time, and no steps.
            self.reordered = int(self.last_step >= 0)
            self._now = 0

    def _member(self, frame: Admit | End | Event | Roster) -> None:
        late = frame.step < self._now
        self.reordered += late
        if late and isinstance(frame, Roster):
            return  # it would bring back those who have left meanwhile
        self.membership.append(frame)
        self._now = max(self._now, frame.step)

    def ordinals_seen(self, steps: StepColumns) -> Iterator[NDArray[np.int64]]:
        """All request ordinals that any frame names; of a ring, those of requests that it kept."""
        named: set[int] = {*self.requests, *self.visible, *self.ends, *self.token_ids}
        named.update(admit.request for admit in self.admits.values())
        if self.overwritten is None:
            for event in self.events:
                named.update(ordinal for ordinal in _ordinals_of_event(event) if ordinal >= 0)
            named.update(request.parent for request in self.requests.values() if request.parent >= 0)
        for frame in self.membership:
            if isinstance(frame, Roster):
                named.update(frame.slots[1::2])
        yield np.array(sorted(named), dtype=np.int64)
        yield steps.chunks.request
        yield steps.wasted.request
        yield steps.starved.request


def _ordinals_of_event(event: Event) -> tuple[int, ...]:
    return (event.request, event.blocks) if event.kind == EventKind.FORK else (event.request,)


def _possible(frame: Frame) -> bool:
    """Whether all numbers of a frame fit the tables: 64 bits, ordinals below 2**32, slots below 65536."""
    for value in msgspec.structs.astuple(frame):
        if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
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
