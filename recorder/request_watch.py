"""Follows requests: submitted, visible, admitted, put off, forked, ended."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from cbtrace.recorder.engine import KvAdapter
from cbtrace.recorder.requests import RequestLedger, RequestRecord
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.steps import OpenSteps
from cbtrace.traces.schema import (
    Admit,
    End,
    EndReason,
    Event,
    EventKind,
    Frame,
    Request,
    RequestFlag,
    Roster,
    TokenIds,
    Visible,
)

_CHILD = "__child#"
"""What the engine puts between a parent's id and a fork's number."""


class RequestWatch:
    """Writes every frame that is about one request. All but :meth:`submitted` run on the generation thread."""

    def __init__(
        self,
        sink: Sink,
        ledger: RequestLedger,
        steps: OpenSteps,
        *,
        keep_token_ids: bool,
        planned: Mapping[str, int] | None = None,
    ) -> None:
        self._sink = sink
        self._ledger = ledger
        self._steps = steps
        self._keep_token_ids = keep_token_ids
        self._planned = planned if planned is not None else {}
        """By id: when requests were planned to be submitted, on the monotonic clock."""
        self.adapter: KvAdapter | None = None
        self.on_first_visible: Callable[[], None] = lambda: None
        self._offloading: dict[str, tuple[int, int, int]] | None = None
        """While the engine puts requests off: their (position, blocks, bytes) before it began."""
        self._put_off_events: list[Event] = []
        self.ready_ns = -1
        """While results are applied, when they were ready: what ends meanwhile ended then. Else -1."""
        self.ends: list[Frame] = []
        """What ended meanwhile: it is written behind its step, so that a cut trace never lacks that."""

    # Submitted -------------------------------------------------------------------------------------------------------

    def submitted(self, state: Any, submit_ns: int) -> None:
        """A new request is about to be queued. Runs on the caller's thread."""
        record = self._write_request(state, submit_ns, -1, 0)
        record.state = state
        if self.adapter is not None:
            self._flag_oversize(record, state)

    def _write_request(self, state: Any, submit_ns: int, parent: int, flags: int) -> RequestRecord:
        prompt_tokens = int(state._true_initial_tokens or len(state.initial_tokens))
        record, incarnation = self._ledger.submit(state.request_id, prompt_tokens, submit_ns)
        if state.streaming:
            flags |= RequestFlag.STREAMING
        limit = state.max_new_tokens
        planned = self._planned.get(state.request_id)
        if flags & RequestFlag.SUBMIT_UNSEEN:
            record.generated_before = len(_output_tokens(state))
        self._sink.requests += 1
        self._sink.emit(
            Request(
                request=record.ordinal,
                id=str(state.request_id),
                incarnation=incarnation,
                parent=parent,
                prompt_tokens=prompt_tokens,
                max_new_tokens=-1 if limit is None else int(limit),
                submit_ns=submit_ns,
                flags=flags,
                planned_ns=-1 if planned is None else max(0, planned - self._sink.epoch_ns),
                prompt_hash=_hash(state.initial_tokens[:prompt_tokens]),
                generated_before=record.generated_before,
            )
        )
        return record

    def _flag_oversize(self, record: RequestRecord, state: Any) -> None:
        tokens = record.prompt_tokens + max(int(state.max_new_tokens or 0) - 1, 0)
        adapter = self.adapter
        if adapter is None or adapter.can_ever_hold(tokens):
            return
        capacity = adapter.geometry.capacity_tokens
        step = self._steps.next_index
        self._sink.emit(Event(EventKind.OVERSIZE, self._sink.now(), step, record.ordinal, tokens, bytes=capacity))

    def engine_ready(self, adapter: KvAdapter) -> None:
        """The cache exists: check the requests that were queued before it did."""
        self.adapter = adapter
        for record in self._ledger.not_yet_visible():
            if record.state is not None:
                self._flag_oversize(record, record.state)

    # Visible ---------------------------------------------------------------------------------------------------------

    def visible(self, t_ns: int, state: Any) -> None:
        """The scheduler gets a request: a new one, one that was put off, or a fork that found no room."""
        request_id = state.request_id
        if self._offloading is not None and request_id in self._offloading:
            self._put_off(t_ns, state)
            return
        record = self._ledger.arrive(request_id) or self._adopt(t_ns, state)
        record.state = state
        self._sink.hold(Visible(record.ordinal, t_ns))
        self.on_first_visible()

    def _adopt(self, t_ns: int, state: Any) -> RequestRecord:
        """Make a record for a request whose submission was not seen: a fork, or one older than the recording."""
        parent_id, _, _ = str(state.request_id).rpartition(_CHILD)
        parent = self._ledger.current.get(parent_id) if parent_id else None
        if parent is not None:
            record = self._write_request(state, parent.submit_ns, parent.ordinal, RequestFlag.FORKED)
        else:
            record = self._write_request(state, t_ns, -1, RequestFlag.SUBMIT_UNSEEN)
        self._ledger.arrive(state.request_id)
        record.state = state
        return record

    # Admitted --------------------------------------------------------------------------------------------------------

    def record_of(self, t_ns: int, state: Any) -> RequestRecord:
        """Return the record of an active request, admitting it if it has just become active."""
        record = self._ledger.current.get(state.request_id)
        if record is None:
            record = self._adopt(t_ns, state)
            record.computed = int(state.position_offset)
            record.inherited = True
        if record.slot < 0:
            record.state = state
            self._admit(t_ns, record, int(state.position_offset))
        return record

    def _admit(self, t_ns: int, record: RequestRecord, start: int) -> None:
        # Positions that were there before the first chunk came from the prefix cache, unless the request brought them
        # along: from the CPU (the same state, put off and restored) or from its parent.
        kept = record.inherited
        record.inherited = False
        self._ledger.take_slot(record)
        record.admitted_step = self._steps.next_index
        self._sink.hold(
            Admit(
                serial=record.serial,
                request=record.ordinal,
                slot=record.slot,
                step=self._steps.next_index,
                t_ns=t_ns,
                residency=record.residency,
                start=start,
                prefix_hit=0 if kept else start,
                computed=record.computed,
            )
        )

    def admit_unscheduled(self, t_ns: int, active: dict[str, Any]) -> None:
        """Admit requests that are active without being scheduled: a prefix matched, but no KV was left for the rest."""
        for state in list(active.values()):
            known = self._ledger.current.get(state.request_id)
            if known is None or known.slot < 0:
                record = self.record_of(t_ns, state)
                self._event(EventKind.PREFIX_MATCH, t_ns, record.ordinal, tokens=int(state.position_offset))

    def roster(self) -> None:
        """Write who holds which slot, for readers that lost an admission to damage. To be called now and then, when a
        batch has been scheduled and its inputs are not yet written, which is when positions move."""
        roster, records = self._roster()
        roster.positions = [int(record.state.position_offset) for record in records]
        roster.delivered = [self._delivered(record) for record in records]
        self._sink.hold(roster)

    def last_roster(self) -> None:
        """Write who holds which slot at the end, so that damage near it leaves no doubt about those before. Positions
        stay unknown: the engine may be running on."""
        self._sink.hold(self._roster()[0])

    def _roster(self) -> tuple[Roster, list[RequestRecord]]:
        records = self._ledger.active()
        slots = [value for record in records for value in (record.slot, record.ordinal)]
        serials = [record.serial for record in records]
        return Roster(self._steps.next_index, self._ledger.admissions, slots, serials), records

    def _delivered(self, record: RequestRecord) -> int:
        under_way = self._steps.tokens_under_way(record)
        return len(_output_tokens(record.state)) + under_way - record.generated_before

    # Put off ---------------------------------------------------------------------------------------------------------

    def offload_begins(self, starved: list[tuple[Any, Any]]) -> None:
        """Note what the candidates for offloading hold: their blocks are gone once the engine has put them off."""
        adapter = self.adapter
        self._offloading = {
            state.request_id: (int(state.position_offset), *(adapter.held(state.request_id) if adapter else (-1, -1)))
            for state, _ in starved
        }

    def offload_ends(self, duration_ns: int) -> None:
        """The engine has put off whom it wanted, all in one round."""
        self._offloading = None
        events, self._put_off_events = self._put_off_events, []
        for event in events:
            event.duration_ns = duration_ns
            self._sink.hold(event)

    def _put_off(self, t_ns: int, state: Any) -> None:
        """A request lost its KV: to the CPU when its state lives on, else it was soft reset and starts over."""
        record = self._ledger.current.get(state.request_id) or self._adopt(t_ns, state)
        position, blocks, held_bytes = (self._offloading or {})[state.request_id]
        on_cpu = state is record.state
        record.computed = max(record.computed, position)
        record.inherited = on_cpu
        self._steps.left(record)
        self._ledger.release(record)
        record.state = state
        kind = EventKind.OFFLOAD if on_cpu else EventKind.SOFT_RESET
        tokens = int(state.position_offset) if on_cpu else record.computed
        step = self._steps.next_index
        self._put_off_events.append(
            Event(kind, t_ns, step, record.ordinal, tokens, blocks, held_bytes if on_cpu else -1)
        )
        self._sink.hold(Visible(record.ordinal, t_ns))

    def restored(self, t_ns: int, members: list[Any], duration_ns: int) -> None:
        """The KV of these members came back from the CPU."""
        for member in members:
            record = self._ledger.current.get(member.state.request_id)
            if record is None or self.adapter is None:
                continue
            blocks, held_bytes = self.adapter.held(record.id)
            tokens = int(member.state.position_offset)
            self._event(
                EventKind.RESTORE,
                t_ns,
                record.ordinal,
                tokens=tokens,
                blocks=blocks,
                bytes=held_bytes,
                duration_ns=duration_ns,
            )

    # Forked ----------------------------------------------------------------------------------------------------------

    def forked(self, t_ns: int, active: dict[str, Any]) -> None:
        """Children have joined the active requests: they inherit the parent's KV and its submit time."""
        for request_id, state in list(active.items()):
            if request_id in self._ledger.current:
                continue
            record = self._adopt(t_ns, state)
            parent = self._ledger.current.get(str(request_id).rpartition(_CHILD)[0])
            record.inherited = True
            start = int(state.position_offset)
            self._admit(t_ns, record, start)
            blocks = parent.ordinal if parent is not None else -1
            self._event(EventKind.FORK, t_ns, record.ordinal, tokens=start, blocks=blocks)

    # Ended -----------------------------------------------------------------------------------------------------------

    def finished(self, t_ns: int, request_id: str) -> None:
        """The engine is done with a request, for whatever reason; those it only puts off are not meant here."""
        if self._offloading is not None and request_id in self._offloading:
            return
        record = self._ledger.current.get(request_id)
        if record is None or record.state is None:
            return
        tokens = record.state.generated_tokens
        by_eos = bool(tokens) and tokens[-1] in record.state._eos_token_ids
        ended_ns = self.ready_ns if self.ready_ns >= 0 else t_ns
        self._end(ended_ns, record, EndReason.EOS if by_eos else EndReason.LENGTH)

    def cancelled(self, states: list[Any]) -> None:
        """These requests were taken out of the queues on their caller's wish; the engine delivers nothing for them."""
        t_ns = self._sink.now()
        for state in states:
            record = self._ledger.current.get(state.request_id)
            if record is not None:
                record.state = state
                self._end(t_ns, record, EndReason.CANCELLED)

    def failed(self, t_ns: int, error: BaseException, state: Any) -> None:
        """The engine gives up on a request."""
        record = self._ledger.current.get(state.request_id) or self._ledger.arrive(state.request_id)
        if record is not None:
            record.state = state
            self._end(t_ns, record, EndReason.FAILED, type(error).__name__)

    def dropped(self, t_ns: int) -> None:
        """A new session begins: what the last one left behind will never be served."""
        for record in list(self._ledger.current.values()):
            self._end(t_ns, record, EndReason.FAILED, "SessionReset")

    def cancel_requested(self, t_ns: int, request_id: Any) -> None:
        """Somebody asked for a request to be cancelled. Runs on the caller's thread."""
        record = self._ledger.current.get(request_id)
        ordinal = record.ordinal if record is not None else -1
        self._sink.emit(Event(EventKind.CANCEL_REQUESTED, t_ns, self._steps.next_index, ordinal))

    def _end(self, t_ns: int, record: RequestRecord, reason: EndReason, error: str = "") -> None:
        state = record.state
        output = _output_tokens(state) if state is not None else []
        end = End(
            request=record.ordinal,
            t_ns=t_ns,
            step=self._steps.next_index,
            reason=reason,
            generated=len(output),
            blocks=self.adapter.held(record.id)[0] if self.adapter is not None else -1,
            output_hash=_hash(output),
            error=error,
        )
        self._steps.left(record)
        self._ledger.end(record)
        frames: list[Frame] = [TokenIds(record.ordinal, _int32(output))] if self._keep_token_ids and output else []
        frames.append(end)
        if self.ready_ns >= 0:
            self.ends += frames
            return
        for frame in frames:
            self._sink.hold(frame)

    def _event(
        self,
        kind: EventKind,
        t_ns: int,
        request: int,
        *,
        tokens: int,
        blocks: int = -1,
        bytes: int = -1,
        duration_ns: int = -1,
    ) -> None:
        step = self._steps.next_index
        self._sink.hold(Event(kind, t_ns, step, request, tokens, blocks, bytes, duration_ns))


def _output_tokens(state: Any) -> list[int]:
    """All tokens a request has generated: after a soft reset the earlier ones are at the end of its prompt."""
    before = state.initial_tokens[state._true_initial_tokens :] if state._true_initial_tokens else []
    return [*before, *state.generated_tokens]


def _int32(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def _hash(tokens: list[int]) -> bytes:
    return blake2b(array("q", tokens).tobytes(), digest_size=8).digest()
