"""Which request held which slot, from which step to which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .columns import Ints
from .intake import Breach
from .schema import Admit, End, Event, Roster

_FOREVER = np.iinfo(np.int64).max
_Move = Admit | End | Event | Roster | Breach


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


@dataclass
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

    admits: Mapping[int, Admit]
    """All admissions that were read, by serial."""
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

    def admit(self, frame: Admit) -> None:
        if self.next_serial is not None and frame.serial < self.next_serial:
            return  # out of order or repeated: the gap it would have filled has been dealt with
        self._count(frame.serial)
        self.next_serial = frame.serial + 1
        self._leave(self.by_slot.get(frame.slot), frame.step)
        self._leave(self.by_request.get(frame.request), frame.step)
        self._enter(_Stay(frame.serial, frame.slot, frame.request, frame.step, frame.start))
        self.counted = frame.step

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
        admit = self.admits.get(serial)
        if admit is not None and (admit.slot, admit.request) == (slot, request) and admit.step <= step:
            return _Stay(serial, slot, request, admit.step, admit.start)
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


def _in_order(membership: Iterable[_Move]) -> list[_Move]:
    """The frames by step, admissions of one step by number. Undoes a reordering; changes nothing in a sound trace."""
    ordered = sorted(membership, key=lambda frame: frame.step)
    places = [at for at, frame in enumerate(ordered) if isinstance(frame, Admit)]
    admits = [frame for frame in ordered if isinstance(frame, Admit)]
    admits.sort(key=lambda admit: (admit.step, admit.serial))
    for at, admit in zip(places, admits, strict=True):
        ordered[at] = admit
    return ordered


def residencies(
    membership: Iterable[_Move],
    admits: Mapping[int, Admit],
    *,
    steps_missing: bool,
    from_start: bool,
) -> Residencies:
    """Stays in slots, from the frames that move requests in and out, in the order of the file.

    Args:
        membership: the frames.
        admits: all admissions that were read, by serial.
        steps_missing: whether any step is missing, so that positions cannot be counted through.
        from_start: whether the frames go back to the first admission; a ring's do not.
    """
    ledger = _Ledger(admits, steps_missing, 0 if from_start else None)
    for frame in _in_order(membership):
        if isinstance(frame, Admit):
            ledger.admit(frame)
        elif isinstance(frame, Roster):
            ledger.roster(frame)
        elif isinstance(frame, Breach):
            if ledger.breach is None:
                ledger.breach = frame.step
        else:
            ledger.depart(frame.request, frame.step)
    ledger.finish()
    rows = [stay for stay in ledger.stays if stay.end > stay.begin]
    table = np.array([(s.slot, s.request, s.begin, s.end, s.start) for s in rows], dtype=np.int64).reshape(-1, 5)
    slot, request, begin, end, start = table.T
    return Residencies(slot, request, begin, end, start, ledger.lost)
