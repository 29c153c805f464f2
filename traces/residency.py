"""Which request held which slot, from which step to which."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .columns import Ints
from .frame_table import StoredFrames, rows_of
from .schema import Roster

_FOREVER = np.iinfo(np.int64).max
_AT_ONCE = 1 << 16


class Move(enum.IntEnum):
    """What changes who is in which slot, or what is known of it."""

    ADMIT = 0
    LEAVE = 1
    ROSTER = 2
    BREACH = 3  # frames may have been lost here in the file: nothing before the step is in doubt through it


@dataclass(frozen=True)
class Moves:
    """The moves of a trace as columns, in the order of the file; -1 where a kind has no such number."""

    kind: Ints
    step: Ints
    request: Ints
    serial: Ints
    """Of an admission; of a roster, its place among :attr:`rosters`."""
    slot: Ints
    start: Ints
    rosters: StoredFrames[Roster]

    def in_order(self) -> Ints:
        """The moves by step, admissions of one step by number: changes nothing in a sound trace."""
        order = np.argsort(self.step, kind="stable")
        places = np.flatnonzero(self.kind[order] == Move.ADMIT)
        admits = order[places]
        order[places] = admits[np.lexsort((self.serial[admits], self.step[admits]))]
        return order

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Kind, step, request, serial, slot and start of each move, in order."""
        order = self.in_order()
        columns = (self.kind, self.step, self.request, self.serial, self.slot, self.start)
        for first in range(0, len(order), _AT_ONCE):
            rows = order[first : first + _AT_ONCE]
            yield from zip(*(column[rows].tolist() for column in columns), strict=True)


@dataclass(frozen=True)
class Admitted:
    """All admissions that were read, as columns."""

    serial: Ints
    slot: Ints
    request: Ints
    step: Ints
    start: Ints

    def find(self, serial: int) -> tuple[int, int, int, int] | None:
        """Slot, request, step and start of an admission."""
        row = int(rows_of(self.serial, np.array([serial]))[0])
        if row < 0:
            return None
        return int(self.slot[row]), int(self.request[row]), int(self.step[row]), int(self.start[row])


@dataclass(frozen=True)
class Residencies:
    """One row a stay of a request in a slot, from step ``begin`` up to and without step ``end``."""

    slot: Ints
    request: Ints
    begin: Ints
    end: Ints
    start: Ints
    """KV entries at ``begin``; -1 when the admission itself was lost."""
    admissions_lost: int


@dataclass(slots=True)
class _Stay:
    serial: int
    slot: int
    request: int
    begin: int
    start: int
    end: int = _FOREVER
    doubtful_from: int = _FOREVER
    """From here on another request may have been in the slot: an admission was lost, and nothing has since confirmed
    that this request is still there."""

    def close(self, step: int) -> None:
        self.end = max(self.begin, min(step, self.doubtful_from))


@dataclass
class _Ledger:
    """Follows the slots through a trace. Says only what is certain.

    Admissions are numbered, so a lost one is noticed at the next admission or roster. Whoever was in a slot when it was
    lost stays believed there only up to the loss, unless a later roster confirms the same stay.
    """

    admitted: Admitted
    steps_missing: bool
    """Whether positions have to be taken from rosters, since they cannot be counted through all steps."""
    next_serial: int | None
    """None: whatever comes first tells."""
    stays: list[_Stay] = field(default_factory=list)
    by_slot: dict[int, _Stay] = field(default_factory=dict)
    by_request: dict[int, _Stay] = field(default_factory=dict)
    breach: int | None = None
    """Bytes were lost from this step on, and no admission since has told whether one was among them."""
    unsettled: list[tuple[_Stay, int]] = field(default_factory=list)
    """Stays that ended since admissions were last counted, and when: in doubt when the next count misses some."""
    counted: int = 0
    """The step at which admissions were last counted: those that are missing came later."""
    lost: int = 0

    def admit(self, step: int, request: int, serial: int, slot: int, start: int) -> None:
        if self.next_serial is not None and serial < self.next_serial:
            return  # out of order or repeated: the gap it would have filled has been dealt with
        self._count(serial)
        self.next_serial = serial + 1
        self._leave(self.by_slot.get(slot), step)
        self._leave(self.by_request.get(request), step)
        self._enter(_Stay(serial, slot, request, step, start))
        self.counted = step

    def depart(self, request: int, step: int) -> None:
        stay = self.by_request.get(request)
        self._leave(stay, step)
        if stay is not None:
            self.unsettled.append((stay, step))

    def roster(self, frame: Roster) -> None:
        if self.next_serial is not None and frame.next_serial < self.next_serial:
            return  # out of order: it knows less than we do
        self._count(frame.next_serial)
        listed = set()
        positions = frame.positions or [-1] * len(frame.serials)
        for slot, request, serial, position in zip(
            frame.slots[::2], frame.slots[1::2], frame.serials, positions, strict=True
        ):
            listed.add(slot)
            stay = self.by_slot.get(slot)
            if stay is not None and stay.serial == serial and stay.request == request:
                stay.doubtful_from = _FOREVER
            else:
                self._leave(stay, frame.step)
                self._leave(self.by_request.get(request), frame.step)
                self._enter(self._recovered(serial, slot, request, frame.step))
            if self.steps_missing and position >= 0:
                self._leave(self.by_slot[slot], frame.step)
                self._enter(_Stay(serial, slot, request, frame.step, position))
        for slot in [slot for slot in self.by_slot if slot not in listed]:
            self._leave(self.by_slot[slot], frame.step)
        self.counted = frame.step

    def finish(self) -> None:
        if self.breach is not None:
            self._doubt(0)
        for stay in list(self.by_slot.values()):
            self._leave(stay, _FOREVER)

    def _doubt(self, lost: int) -> None:
        self.lost += lost
        since = self.counted if self.breach is None else self.breach
        for stay in self.by_slot.values():
            stay.doubtful_from = min(stay.doubtful_from, since)
        for stay, step in self.unsettled:
            stay.doubtful_from = min(stay.doubtful_from, since)
            stay.close(step)

    def _count(self, serial: int) -> None:
        """Compare the number of admissions so far with what a frame says; settles what was in doubt since a breach."""
        if self.next_serial is not None and serial > self.next_serial:
            self._doubt(serial - self.next_serial)
        self.next_serial = max(serial, self.next_serial or 0)
        self.breach = None
        self.unsettled.clear()

    def _recovered(self, serial: int, slot: int, request: int, step: int) -> _Stay:
        """A stay that a roster tells of, from its admission on if that was read after all."""
        admit = self.admitted.find(serial)
        if admit is not None and admit[:2] == (slot, request) and admit[2] <= step:
            return _Stay(serial, slot, request, admit[2], admit[3])
        return _Stay(serial, slot, request, step, -1)

    def _enter(self, stay: _Stay) -> None:
        self.stays.append(stay)
        self.by_slot[stay.slot] = stay
        self.by_request[stay.request] = stay

    def _leave(self, stay: _Stay | None, step: int) -> None:
        if stay is not None and self.by_slot.get(stay.slot) is stay:
            stay.close(step)
            del self.by_slot[stay.slot]
            self.by_request.pop(stay.request, None)


def residencies(moves: Moves, admitted: Admitted, *, steps_missing: bool, from_start: bool) -> Residencies:
    """Stays in slots, from the moves of a trace.

    Args:
        moves: what changes who is in which slot.
        admitted: all admissions that were read.
        steps_missing: whether any step is missing, so that positions cannot be counted through.
        from_start: whether the moves go back to the first admission; a ring's do not.
    """
    ledger = _Ledger(admitted, steps_missing, 0 if from_start else None)
    for kind, step, request, serial, slot, start in moves.rows():
        if kind == Move.ADMIT:
            ledger.admit(step, request, serial, slot, start)
        elif kind == Move.LEAVE:
            ledger.depart(request, step)
        elif kind == Move.ROSTER:
            ledger.roster(moves.rosters[serial])
        elif ledger.breach is None:
            ledger.breach = step
    ledger.finish()
    rows = [stay for stay in ledger.stays if stay.end > stay.begin]

    def column(name: str) -> Ints:
        return np.fromiter((getattr(stay, name) for stay in rows), np.int64, len(rows))

    return Residencies(column("slot"), column("request"), column("begin"), column("end"), column("start"), ledger.lost)
