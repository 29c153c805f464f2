"""The requests of one engine as the recorder knows them: ordinals, incarnations, slots.

The engine names requests by id and makes a new state object under the same id at a soft reset. Here a request is one
record from submit to end, whatever states it passes through.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict, deque
from typing import Any

IDS_KEPT = 1 << 15
"""An id that comes again after so many others counts as new: a server never runs out of new ones, memory does."""


class RequestRecord:
    """One request. ``computed`` is the number of positions that were computed at any time so far, as of its last chunk
    or the end of its last residency; while it decodes, the engine's own position is ahead of it."""

    __slots__ = (
        "admitted_step",
        "bit",
        "computed",
        "generated_before",
        "id",
        "inherited",
        "key",
        "ordinal",
        "prompt_tokens",
        "residency",
        "serial",
        "slot",
        "state",
        "submit_ns",
    )

    def __init__(self, ordinal: int, request_id: str, prompt_tokens: int, submit_ns: int) -> None:
        self.ordinal = ordinal
        self.id = request_id
        self.prompt_tokens = prompt_tokens
        self.submit_ns = submit_ns
        self.state: Any = None
        self.key = 0
        """``id(state)`` under which it is known to be decoding; 0 when it is not."""
        self.slot = -1
        self.bit = 0
        self.residency = -1
        self.serial = -1
        self.admitted_step = -1
        """The first step of its residency."""
        self.computed = 0
        self.inherited = False
        self.generated_before = 0


class RequestLedger:
    """Finds the record behind an id, gives out ordinals and slots, and knows who is decoding."""

    def __init__(self) -> None:
        self.current: dict[str, RequestRecord] = {}
        """The newest request under each id that the scheduler has seen and that has not ended."""
        self.decoding: dict[int, RequestRecord] = {}
        """By ``id(state)``: requests whose every further step is one decode. They hold their state, so that its id
        cannot be given to another object meanwhile."""
        self.decode_mask = 0
        """Bits of the slots of all of :attr:`decoding`."""
        self.admitted = 0
        self.admissions = 0
        self._submitted: dict[str, deque[RequestRecord]] = {}
        self._incarnations: OrderedDict[str, int] = OrderedDict()
        """How often each id was submitted, the newest last: of live requests, and of a limited number of others."""
        self._count = 0
        self._free_slots: list[int] = []
        self._slots = 0
        self._lock = threading.Lock()

    def submit(self, request_id: str, prompt_tokens: int, submit_ns: int) -> tuple[RequestRecord, int]:
        """Make the record of a new request; return it with its incarnation. Called on any thread."""
        with self._lock:
            record = RequestRecord(self._count, request_id, prompt_tokens, submit_ns)
            self._count += 1
            incarnation = self._incarnations.pop(request_id, 0)
            self._incarnations[request_id] = incarnation + 1
            self._submitted.setdefault(request_id, deque()).append(record)
            self._forget_ids()
        return record, incarnation

    def _forget_ids(self) -> None:
        """Give up the oldest ids beyond the limit; one that is alive gets another turn. Two looks for each that comes
        keep up with them, however many have died since."""
        for _ in range(2):
            if len(self._incarnations) <= IDS_KEPT:
                return
            oldest, count = self._incarnations.popitem(last=False)
            if oldest in self.current or oldest in self._submitted:
                self._incarnations[oldest] = count

    def arrive(self, request_id: str) -> RequestRecord | None:
        """Return the oldest submitted request under this id that the scheduler has not seen yet, and count it seen."""
        with self._lock:
            waiting = self._submitted.get(request_id)
            if not waiting:
                return None
            record = waiting.popleft()
            if not waiting:
                del self._submitted[request_id]
        self.current[request_id] = record
        return record

    def not_yet_visible(self) -> list[RequestRecord]:
        """Return the requests submitted but not seen by the scheduler."""
        with self._lock:
            return [record for records in self._submitted.values() for record in records]

    def take_slot(self, record: RequestRecord) -> None:
        """Give the request the lowest free slot and the next serial number of admissions."""
        if self._free_slots:
            record.slot = heapq.heappop(self._free_slots)
        else:
            record.slot = self._slots
            self._slots += 1
        record.bit = 1 << record.slot
        record.residency += 1
        self.admitted += 1
        record.serial = self.admissions
        self.admissions += 1

    def start_decoding(self, record: RequestRecord) -> None:
        """From the next step on, the request decodes one token whenever it is scheduled."""
        record.key = id(record.state)
        self.decoding[record.key] = record
        self.decode_mask |= record.bit

    def release(self, record: RequestRecord) -> None:
        """Take the slot back: the request ended, was soft reset or offloaded."""
        if record.slot < 0:
            return
        if record.key:
            self.decoding.pop(record.key, None)
            self.decode_mask &= ~record.bit
            record.key = 0
        heapq.heappush(self._free_slots, record.slot)
        record.slot, record.bit = -1, 0
        self.admitted -= 1

    def end(self, record: RequestRecord) -> None:
        """Release the request and forget it, unless its id already belongs to a newer one."""
        self.release(record)
        record.state = None
        if self.current.get(record.id) is record:
            del self.current[record.id]

    def active(self) -> list[RequestRecord]:
        """Return the requests that hold a slot, by slot."""
        return sorted((r for r in list(self.current.values()) if r.slot >= 0), key=lambda r: r.slot)
