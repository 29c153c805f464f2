"""Writes consistent synthetic traces through the real writer, for tests that need a known truth.

It is a toy scheduler with slots and token-sized KV units, not a model of any engine: what matters is that every frame
it writes agrees with every other, as in a sound recording::

    build = TraceBuilder(tmp_path / "run.cbt")
    a = build.submit(prompt=20, limit=4)
    build.admit(a)
    build.step({a: 12})           # a chunk of the prompt
    build.step({a: 8})            # the rest: the first token comes out
    build.step([a])               # a plain decode
    build.soft_reset(a)
    build.finish(a, EndReason.CANCELLED)
    trace = build.close()         # closes and reads it

The ``truth`` lists hold what a reader must find.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cbtrace.traces import Trace, TraceWriter, open_trace
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
    Header,
    KvGeometry,
    KvGroup,
    Request,
    RequestFlag,
    Roster,
    Step,
    StepDetail,
    Visible,
)
from cbtrace.traces.stepcode import pack_chunks, pack_ordinals, pack_slots, pack_times

UNIT_BYTES = 1024
CAPACITY = 4096


@dataclass(eq=False)
class SimRequest:
    """A request as the builder knows it."""

    ordinal: int
    id: str
    prompt: int
    limit: int
    slot: int = -1
    position: int = 0
    """KV entries now."""
    generated: int = 0
    computed: int = 0
    """Highest position ever computed."""
    residency: int = 0
    held: int = 0
    """KV units held."""
    ended: bool = False

    @property
    def pending(self) -> int:
        """Tokens to process before the next one comes out, the newest generated one not counted."""
        return self.prompt + max(self.generated - 1, 0) - self.position


@dataclass(frozen=True)
class TrueMember:
    """What a step did for a request, as it was meant."""

    step: int
    request: int
    prefill: int
    decode: int
    recompute: int
    position: int
    new_token: bool
    wasted: bool


@dataclass
class TraceBuilder:
    """See the module. ``roster_every`` 0 writes none."""

    path: os.PathLike[str]
    name: str = "synthetic"
    roster_every: int = 0
    roster_positions: bool = True
    """Whether rosters tell how far requests are."""
    step_ns: int = 1_000_000
    tags: dict[str, str] = field(default_factory=dict)
    described_by: tuple[Header, Engine] | None = None
    """First two frames, instead of :func:`header` and :func:`engine`."""
    truth: list[TrueMember] = field(default_factory=list)
    token_times: dict[int, list[int]] = field(default_factory=dict)
    requests: list[SimRequest] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    steps: int = 0
    now: int = 0
    cached: int = 0
    """Units that hold reusable prefixes."""

    def __post_init__(self) -> None:
        self.writer = TraceWriter(self.path)
        self.serial = 0
        self.slots: dict[int, tuple[SimRequest, int]] = {}
        for frame in self.described_by or (header(self.name, self.tags), engine()):
            self.write(frame)

    def write(self, frame: Frame) -> None:
        """Write any frame, and remember it."""
        self.frames.append(frame)
        self.writer.write(frame)

    def submit(
        self, prompt: int, limit: int = 8, id: str | None = None, parent: int = -1, flags: int = 0, planned_ns: int = -1
    ) -> SimRequest:
        """A new request is submitted and handed to the scheduler."""
        ordinal = len(self.requests)
        request = SimRequest(ordinal, id if id is not None else f"req_{ordinal}", prompt, limit)
        incarnation = sum(1 for other in self.requests if other.id == request.id)
        self.requests.append(request)
        self.token_times[ordinal] = []
        digest = hashlib.blake2b(request.id.encode(), digest_size=8).digest()
        self.now += 100
        self.write(
            Request(ordinal, request.id, incarnation, parent, prompt, limit, self.now, flags, planned_ns, digest)
        )
        self.now += 100
        self.write(Visible(ordinal, self.now))
        return request

    def admit(self, request: SimRequest, prefix_hit: int = 0, restored: bool = False) -> None:
        """The request takes the lowest free slot; ``prefix_hit`` of its tokens are in the cache."""
        request.slot = next(slot for slot in range(len(self.slots) + 1) if slot not in self.slots)
        self.slots[request.slot] = (request, self.serial)
        start = request.position if restored else prefix_hit
        request.position = start
        request.held = max(start, request.held)
        self.write(
            Admit(
                self.serial,
                request.ordinal,
                request.slot,
                self.steps,
                self.now,
                request.residency,
                start,
                prefix_hit,
                request.computed,
            )
        )
        self.serial += 1
        request.residency += 1

    def step(
        self,
        work: Mapping[SimRequest, int] | Collection[SimRequest] = (),
        wasted: Collection[SimRequest] = (),
        starved: Iterable[SimRequest] = (),
        stop: AdmissionStop = AdmissionStop.NOTHING_WAITING,
        gpu_ns: int = -1,
        graph: int = 0,
    ) -> int:
        """One batch: a plain decode of each request, or as many tokens as a mapping says; returns its index.

        A request whose token is ``wasted`` has left by then in a real engine: end it, or put it off, right after.
        """
        tokens = dict(work) if isinstance(work, Mapping) else dict.fromkeys(work, 1)
        chunks, decode = [], []
        for request, count in tokens.items():
            chunk = self._advance(request, count, request in wasted)
            if chunk is None:
                decode.append(request.slot)
            else:
                chunks.append(chunk)
        quarter = self.step_ns // 6
        instants = [self.now + quarter * at for at in range(6)]
        self.now += self.step_ns
        for member in self.truth:
            if member.step == self.steps and member.new_token:
                self.token_times[member.request].append(instants[4])
        parts = StepDetail(
            chunks=pack_chunks(chunks),
            wasted=pack_ordinals(request.ordinal for request in wasted),
            starved=pack_ordinals(request.ordinal for request in starved),
        )
        plain = not (parts.chunks or parts.wasted or parts.starved)
        waiting = sum(1 for request in self.requests if request.slot < 0 and request.residency == 0)
        self.write(
            Step(
                self.steps,
                pack_times(*instants),
                gpu_ns,
                pack_slots(decode),
                CAPACITY - self.cached - sum(request.held for request, _ in self.slots.values()),
                self.cached,
                waiting,
                len(self.slots),
                stop,
                0,
                graph,
                None if plain else parts,
            )
        )
        self.steps += 1
        if self.roster_every and self.steps % self.roster_every == 0:
            self.roster()
        return self.steps - 1

    def _advance(self, request: SimRequest, count: int, wasted: bool) -> tuple[int, int, int, int] | None:
        """Book ``count`` tokens; returns the chunk, or None for a plain decode."""
        position, pending = request.position, request.pending
        catching_up = min(count, pending)
        recompute = min(catching_up, max(request.computed - position, 0))
        prefill = catching_up - recompute
        decode = count - catching_up
        # The newest token is decoded once all before it are there; a prompt that is whole gives its first token itself.
        done = catching_up == pending and (decode == 1 or request.generated == 0)
        request.position += count
        request.held = max(request.held, request.position)
        request.computed = max(request.computed, request.position)
        new = done and not wasted
        self.truth.append(
            TrueMember(self.steps, request.ordinal, prefill, decode, recompute, position, new, done and wasted)
        )
        if new:
            request.generated += 1
        if decode == 1 and catching_up == 0:
            return None
        flags = (ChunkFlag.NEW_TOKEN if done else 0) | (ChunkFlag.DECODE if decode else 0)
        return request.ordinal, prefill, recompute, int(flags)

    def roster(self) -> None:
        """Write down who is in which slot."""
        slots = [value for slot, (request, _) in self.slots.items() for value in (slot, request.ordinal)]
        roster = Roster(self.steps, self.serial, slots, [serial for _, serial in self.slots.values()])
        if self.roster_positions:
            roster.positions = [request.position for request, _ in self.slots.values()]
            roster.delivered = [len(self.token_times[request.ordinal]) for request, _ in self.slots.values()]
        self.write(roster)

    def soft_reset(self, request: SimRequest) -> None:
        """The request loses its KV and waits again."""
        self._event(EventKind.SOFT_RESET, request, tokens=request.position, blocks=request.held)
        self._release(request)
        request.position = 0

    def offload(self, request: SimRequest) -> None:
        """The request's KV moves to the CPU."""
        held = request.held
        self._release(request)
        self._event(EventKind.OFFLOAD, request, tokens=request.position, blocks=held, bytes=held * UNIT_BYTES)

    def restore(self, request: SimRequest) -> None:
        """The request's KV comes back, and the request with it."""
        self.admit(request, restored=True)
        self._event(EventKind.RESTORE, request, blocks=request.held, bytes=request.held * UNIT_BYTES)

    def fork(self, parent: SimRequest) -> SimRequest:
        """A child goes on where its parent is."""
        child = self.submit(parent.prompt, parent.limit, f"{parent.id}__child#0", parent.ordinal, RequestFlag.FORKED)
        child.position = child.computed = parent.position
        child.generated = parent.generated
        self.write(
            Event(EventKind.FORK, self.now, self.steps, child.ordinal, tokens=parent.position, blocks=parent.ordinal)
        )
        self.admit(child, restored=True)
        return child

    def finish(
        self, request: SimRequest, reason: EndReason = EndReason.LENGTH, error: str = "", output_hash: bytes = b""
    ) -> None:
        """The request ends."""
        held = request.held
        request.ended = True
        self._release(request)
        self.write(End(request.ordinal, self.now, self.steps, reason, request.generated, held, output_hash, error))

    def _release(self, request: SimRequest) -> None:
        self.slots.pop(request.slot, None)
        request.slot, request.held = -1, 0

    def _event(self, kind: EventKind, request: SimRequest, tokens: int = -1, blocks: int = -1, bytes: int = -1) -> None:
        self.write(Event(kind, self.now, self.steps, request.ordinal, tokens, blocks, bytes))

    def footer(self, reason: str = "closed") -> None:
        """The end mark."""
        self.write(Footer(self.now, reason, self.steps, len(self.requests), self.writer.frames + 1, 5000, 100, 300))

    def close(self, reason: str = "closed") -> Trace:
        """Write the end mark, close the file and read it."""
        self.footer(reason)
        self.writer.close()
        return open_trace(self.path)


def header(name: str = "synthetic", tags: dict[str, str] | None = None) -> Header:
    return Header(
        run_id="0123456789abcdef",
        name=name,
        tags=tags or {},
        tool_version="0.1.0",
        mono_ns=1_000_000,
        wall_ns=1_700_000_000_000_000_000,
        rank=0,
        world_size=1,
        stored=[],
        fingerprint={"software.torch": "2.13.0", "gpu.name": None},
    )


def engine() -> Engine:
    geometry = KvGeometry(
        unit_bytes=UNIT_BYTES,
        capacity_units=CAPACITY,
        reserved_bytes=UNIT_BYTES,
        capacity_tokens=CAPACITY,
        groups=[KvGroup("full_attention", 2, UNIT_BYTES, 1)],
    )
    return Engine(
        t_ns=0,
        adapter="blocks",
        verified=True,
        requested={"num_blocks": CAPACITY},
        resolved={"num_blocks": CAPACITY, "max_batch_tokens": 256},
        model={"layers": 2},
        generation={"do_sample": False},
        kv=geometry,
        missing=[],
        predicted_memory={},
    )


def eventful(path: os.PathLike[str], roster_every: int = 4) -> TraceBuilder:
    """A short run in which everything happens once: left open, so that a test may go on."""
    build = TraceBuilder(path, roster_every=roster_every)
    first, second, third = build.submit(20, 6), build.submit(7, 4), build.submit(30, 3)
    build.admit(first)
    build.admit(second)
    build.step({first: 12, second: 7}, stop=AdmissionStop.TOKEN_BUDGET)
    build.step({first: 8, second: 1})
    build.step([first, second], starved=[third])
    child = build.fork(second)
    build.step([first, second, child])
    build.soft_reset(first)
    build.finish(second)
    build.cached = 8
    build.admit(third, prefix_hit=8)
    build.step({third: 22, child: 1}, stop=AdmissionStop.KV_BLOCKS)
    build.step([third, child], wasted=[child])
    build.finish(child, EndReason.CANCELLED)
    build.cached = 4
    build.admit(first, prefix_hit=4)
    build.step({first: 10, third: 1})
    build.finish(third)
    build.step({first: 9})
    build.offload(first)
    late = build.submit(5, 2, id="req_1")
    build.admit(late)
    build.step({late: 5})
    build.restore(first)
    build.step([first, late])
    build.finish(late, EndReason.FAILED, error="RuntimeError")
    build.step([first])
    build.finish(first)
    return build
