"""A simulated schedule of continuous batching, as long as one likes: what a trace of a night holds, frame by frame.

It is no model of any engine. What matters is that each frame agrees with every other, as in a sound recording, and that
a long run has what long runs have: load that swells and ebbs (three times, however long the run is), prompts in chunks,
shared prefixes, requests put off to the host or recomputed when the KV cache is full, cancelled ones, and samples of
memory and GPU as often as the recorder takes them. Between two changes of the batch nothing is done for a request, so
that a million steps take well under a minute.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from long_workload import BLOCK, BUDGET, FAMILIES, PREFIX, PREFIX_BLOCKS, Active, Plan, arrivals

from cbtrace.traces.schema import (
    AdmissionStop,
    Admit,
    ChunkFlag,
    End,
    EndReason,
    Engine,
    Event,
    EventKind,
    Footer,
    Frame,
    Gpu,
    GraphKey,
    KvGeometry,
    KvGroup,
    Memory,
    Request,
    Roster,
    Step,
    StepDetail,
    StepFlag,
    Visible,
)
from cbtrace.traces.stepcode import pack_chunks, pack_times
from trace_builder import header

ROSTER_EVERY = 512
SAMPLE_NS = 100_000_000
PATIENCE = 400
"""While so many requests wait, nobody submits another."""
STALL_NS = 500_000_000


@dataclass
class Schedule:
    """See the module; :meth:`frames` gives the whole trace."""

    plan: Plan
    step: int = 0
    now: int = 1_000_000
    submitted: int = 0
    tokens: int = 0
    """Delivered so far."""
    waiting: deque[Active] = field(default_factory=deque)
    offloaded: deque[Active] = field(default_factory=deque)
    slots: dict[int, Active] = field(default_factory=dict)
    prefilling: list[Active] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.plan.seed)
        self.free_slots = list(range(self.plan.slots))
        self.due: dict[int, list[tuple[Active, int]]] = {}
        """By step: who gets the last token in it, and the admission for which that was said."""
        self.crossing = [0] * BLOCK
        """How many plain decodes need a block in the steps that leave this remainder by :data:`BLOCK`."""
        self.decode_bits = 0
        self.held = 0
        """Blocks held, those of shared prefixes left out."""
        self.users = [0] * FAMILIES
        self.computed_prefixes = [False] * FAMILIES
        self.serial = self.frame_count = 0
        self.kv_entries = 0
        self.next_sample = 0
        self.out: list[Frame] = []

    # The whole trace --------------------------------------------------------------------------------------------------

    def frames(self) -> Iterator[Frame]:
        """All frames, in the order in which a recorder would write them."""
        self.out += [header("a long run"), self._engine()]
        self.out += [GraphKey(at, True, 8 * at, 0) for at in range(1, self.plan.slots // 8 + 1)]
        for _ in range(self.plan.steps):
            self._one_step()
            self.frame_count += len(self.out)
            yield from self.out
            self.out.clear()
        self.frame_count += 1
        yield Footer(self.now, "closed", self.step, self.submitted, self.frame_count, 10**9, 70_000, 600_000)

    def _one_step(self) -> None:
        self._samples()
        self._arrivals()
        self._planted()
        stop = self._admit()
        detail, prefill, firsts = self._chunks()
        crossing = self.crossing[self.step % BLOCK]
        while self._free() < crossing:
            self._make_room()
            crossing = self.crossing[self.step % BLOCK]
        if detail is None and not self.decode_bits:
            self._arrivals(atleast=1)  # an idle engine makes no step: it waits for the next request
            stop = self._admit()
            detail, prefill, firsts = self._chunks()
        self.held += crossing
        self._write_step(detail, prefill, stop)
        self._after_step(firsts)

    # Requests come and are admitted ----------------------------------------------------------------------------------

    def _arrivals(self, atleast: int = 0) -> None:
        count = max(atleast, arrivals(self.plan, self.step, self.chance))
        if len(self.waiting) + count <= PATIENCE:
            for _ in range(count):
                self._submit()

    def _submit(self) -> None:
        request = Active.drawn(self.plan, self.submitted, self.chance)
        ordinal, prompt, limit = request.ordinal, request.prompt, request.limit
        digest = hashlib.blake2b(b"%d/%d" % (self.plan.seed, ordinal), digest_size=8).digest()
        submit = self.now - self.chance.randrange(1, 400_000)
        self.out.append(Request(ordinal, request.id, 0, -1, prompt, limit, submit, prompt_hash=digest))
        self.out.append(Visible(ordinal, self.now))
        self.submitted += 1
        self.waiting.append(request)

    def _admit(self) -> AdmissionStop:
        """Fill free slots, those first that were put off; says why nobody more was admitted."""
        pending = sum(request.pending for request in self.prefilling)
        while self.waiting or self.offloaded:
            if not self.free_slots:
                return AdmissionStop.REQUEST_CAP
            if pending >= BUDGET - len(self.slots):
                return AdmissionStop.TOKEN_BUDGET
            request = (self.offloaded or self.waiting)[0]
            if self._free() < request.needed_blocks:
                return AdmissionStop.KV_BLOCKS
            (self.offloaded or self.waiting).popleft()
            self._enter(request)
            pending += request.pending
        return AdmissionStop.NOTHING_WAITING

    def _enter(self, request: Active) -> None:
        restored = request.position > 0
        hit = 0
        if request.family >= 0:
            if not restored and self.computed_prefixes[request.family]:
                hit = PREFIX
            self.users[request.family] += 1
        request.slot = heapq.heappop(self.free_slots)
        request.position = start = request.position if restored else hit
        self.slots[request.slot] = request
        request.serial = self.serial
        self.out.append(
            Admit(
                self.serial,
                request.ordinal,
                request.slot,
                self.step,
                self.now,
                request.residency,
                start,
                hit,
                request.computed,
            )
        )
        self.serial += 1
        request.residency += 1
        request.held = request.own_blocks
        self.held += request.held
        if restored:
            self._event(EventKind.RESTORE, request)
        if restored and request.generated and not request.pending:
            self._start_decoding(request, self.step)
        else:
            self.prefilling.append(request)

    # One batch --------------------------------------------------------------------------------------------------------

    def _chunks(self) -> tuple[StepDetail | None, int, list[Active]]:
        """Advance prompts and recomputations; returns the chunks, their tokens, and who got a token of them."""
        room = BUDGET - len(self.slots)
        rows, firsts, total = [], [], 0
        for request in self.prefilling:
            if room <= 0:
                break
            row, count, done = self._advance(request, room)
            room -= count
            total += count
            rows.append(row)
            if done:
                firsts.append(request)
        chunks = pack_chunks(rows)
        return (StepDetail(chunks) if chunks else None), total, firsts

    def _advance(self, request: Active, room: int) -> tuple[tuple[int, int, int, int], int, bool]:
        position, pending = request.position, request.pending
        catching_up = min(room, pending)
        recompute = min(catching_up, max(request.computed - position, 0))
        decode = int(request.generated > 0 and catching_up == pending and room > pending)
        done = catching_up == pending and (decode == 1 or request.generated == 0)
        request.position += catching_up + decode
        request.computed = max(request.computed, request.position)
        before, request.held = request.held, request.own_blocks
        self.held += request.held - before
        if request.family >= 0 and request.position >= PREFIX:
            self.computed_prefixes[request.family] = True
        flags = (ChunkFlag.NEW_TOKEN if done else 0) | (ChunkFlag.DECODE if decode else 0)
        row = (request.ordinal, catching_up - recompute, recompute, int(flags))
        return row, catching_up + decode, done

    def _write_step(self, detail: StepDetail | None, prefill: int, stop: AdmissionStop) -> None:
        decoding = self.decode_bits.bit_count()
        chance = self.chance
        jitter = chance.randrange(200_000)
        gpu = 4_200_000 + 18_000 * decoding + 7_000 * prefill + 60 * self.held + jitter
        scheduled = 220_000 + 900 * len(self.slots) + chance.randrange(40_000)
        if self.step == self.plan.stall_step:
            gpu += STALL_NS
        start = self.now
        launched = start + scheduled + 760_000 + jitter
        instants = (start, start + scheduled, start + scheduled + 410_000, launched, launched + gpu)
        done = instants[4] + 180_000 + 1_500 * len(self.slots)
        graph, flags = 0, 0
        if not prefill:
            graph, flags = -(-decoding // 8), StepFlag.GRAPH_HIT | StepFlag.DECODE_FAST_PATH
        bits = self.decode_bits.to_bytes((self.decode_bits.bit_length() + 7) // 8, "little")
        cached = self._cached()
        free = self.plan.blocks - self.held - PREFIX_BLOCKS * sum(map(bool, self.users)) - cached
        times = pack_times(*instants, done)
        waiting = len(self.waiting) + len(self.offloaded)
        active = len(self.slots)
        self.out.append(
            Step(self.step, times, gpu + 90_000, bits, free, cached, waiting, active, stop, flags, graph, detail)
        )
        self.tokens += decoding
        self.now = done + chance.randrange(30_000)

    def _after_step(self, firsts: list[Active]) -> None:
        self.step += 1
        for request in firsts:
            request.generated += 1
            self.tokens += 1
            self.prefilling.remove(request)
            if request.generated >= request.target:
                self._end(request)
            else:
                self._start_decoding(request, self.step)
        for request, serial in self.due.pop(self.step, ()):
            if request.serial == serial and request.slot >= 0:
                self._end(request)
        if not self.plan.calm and self.chance.random() < 0.002:
            self._cancel()
        if self.step % ROSTER_EVERY == 0:
            self._roster()

    def _start_decoding(self, request: Active, step: int) -> None:
        request.decoding_from = step
        self.decode_bits |= 1 << request.slot
        self.crossing[(step - request.position) % BLOCK] += 1
        last = step + request.target - request.generated
        self.due.setdefault(last, []).append((request, request.serial))

    # Requests leave ---------------------------------------------------------------------------------------------------

    def _leave(self, request: Active) -> int:
        """Take a request out of its slot; returns the blocks that it held, shared ones included."""
        if request.decoding_from >= 0:
            self.crossing[(request.decoding_from - request.position) % BLOCK] -= 1
            self.decode_bits &= ~(1 << request.slot)
            request.settle(self.step)
            request.decoding_from = -1
        elif request in self.prefilling:
            self.prefilling.remove(request)
        self.held -= request.own_blocks
        if request.family >= 0:
            self.users[request.family] -= 1
        del self.slots[request.slot]
        heapq.heappush(self.free_slots, request.slot)
        request.slot = -1
        return -(-request.position // BLOCK)

    def _end(self, request: Active, reason: EndReason | None = None) -> None:
        blocks = self._leave(request)
        if reason is None:
            reason = EndReason.LENGTH if request.target == request.limit else EndReason.EOS
        digest = hashlib.blake2b(b"%d" % request.ordinal, digest_size=8).digest()
        self.out.append(End(request.ordinal, self.now, self.step, reason, request.generated, blocks, digest))

    def _cancel(self) -> None:
        request = self._victim()
        if request is not None:
            self.out.append(Event(EventKind.CANCEL_REQUESTED, self.now - 20_000, self.step, request.ordinal))
            self._end(request, EndReason.CANCELLED)

    def _make_room(self) -> None:
        """The cache is full: give up prefixes that nobody uses, else put somebody off."""
        for family in range(FAMILIES):
            if self.computed_prefixes[family] and not self.users[family]:
                self.computed_prefixes[family] = False
                self.out.append(Event(EventKind.CACHE_EVICTION, self.now, self.step, blocks=PREFIX_BLOCKS))
                return
        request = self._victim()
        assert request is not None
        if self.chance.random() < 0.5 and len(self.offloaded) < 4:
            self._put_off(request)
        else:
            self._reset(request)

    def _victim(self) -> Active | None:
        """The youngest of those that only decode."""
        decoding = [request for request in self.slots.values() if request.decoding_from >= 0]
        return max(decoding, key=lambda request: request.serial, default=None)

    def _put_off(self, request: Active) -> None:
        blocks = self._leave(request)
        self._event(EventKind.OFFLOAD, request, tokens=request.position, blocks=blocks)
        self.offloaded.append(request)

    def _reset(self, request: Active) -> None:
        blocks = self._leave(request)
        self.out.append(Event(EventKind.SOFT_RESET, self.now, self.step, request.ordinal, request.position, blocks))
        request.position = 0
        self.waiting.appendleft(request)

    def _planted(self) -> None:
        if self.step == self.plan.cancel_step:
            self._cancel()
        victim = self._victim() if self.step == self.plan.reset_step else None
        if victim is not None:
            self._reset(victim)

    def _event(self, kind: EventKind, request: Active, tokens: int = -1, blocks: int = -1) -> None:
        blocks = -(-request.position // BLOCK) if blocks < 0 else blocks
        took = 60_000 * blocks
        self.out.append(
            Event(kind, self.now, self.step, request.ordinal, tokens, blocks, blocks * BLOCK * 131_072, took)
        )
        self.now += took

    # What is known beside steps ---------------------------------------------------------------------------------------

    def _cached(self) -> int:
        return PREFIX_BLOCKS * sum(
            there and not used for there, used in zip(self.computed_prefixes, self.users, strict=True)
        )

    def _free(self) -> int:
        return self.plan.blocks - self.held - PREFIX_BLOCKS * sum(map(bool, self.users)) - self._cached()

    def _roster(self) -> None:
        for request in self.slots.values():
            if request.decoding_from >= 0:
                self.crossing[(request.decoding_from - request.position) % BLOCK] -= 1
                request.settle(self.step)
                self.crossing[(request.decoding_from - request.position) % BLOCK] += 1
        rows = self.slots.values()
        slots = [value for request in rows for value in (request.slot, request.ordinal)]
        serials = [request.serial for request in rows]
        positions = [request.position for request in rows]
        self.out.append(
            Roster(self.step, self.serial, slots, serials, positions, [request.generated for request in rows])
        )

    def _samples(self) -> None:
        """Memory, when it has changed, and the GPU, as often as the recorder takes them by default."""
        while self.next_sample <= self.now:
            at, chance = self.next_sample, self.chance
            busy, load = chance.randrange(88, 100), len(self.slots)
            power, used = 380_000 + 4_000 * load + chance.randrange(20_000), 96_000_000_000
            self.out.append(Gpu(at, busy, used, power, 1_980, 3_201, 48 + load // 8, 0, 1))
            if chance.random() < 0.1:
                allocated, reserved = 81_000_000_000 + chance.randrange(10**8), 90_000_000_000
                peak = allocated + chance.randrange(10**8)
                self.out.append(
                    Memory(at, "", allocated, reserved, peak, reserved, used, 150_000_000_000, 4_000_000_000)
                )
            self.next_sample += SAMPLE_NS

    def _engine(self) -> Engine:
        unit = BLOCK * 131_072
        geometry = KvGeometry(
            unit, self.plan.blocks, unit, self.plan.blocks * BLOCK, [KvGroup("full_attention", 32, unit, BLOCK)]
        )
        settings = {"num_blocks": self.plan.blocks, "max_batch_tokens": BUDGET}
        return Engine(0, "blocks", True, settings, settings, {"layers": 32}, {"do_sample": False}, geometry, [], {})
