"""Synthetic runs for tests of the site: consistent traces of any length, with trouble where a test wants it."""

from __future__ import annotations

import random
from pathlib import Path

from cbtrace.traces import Trace
from cbtrace.traces.schema import AdmissionStop, EndReason, Event, EventKind, Memory
from trace_builder import SimRequest, TraceBuilder

HOSTILE = "</script><script>alert(1)</script>\"'&<b>../../x\u202egnp.exe\u202c\N{GRINNING FACE}"


def busy_run(
    path: Path,
    name: str = "busy",
    *,
    requests: int = 12,
    limit: int = 20,
    step_ns: int = 1_000_000,
    resets: int = 2,
    stall_step: int = -1,
    tags: dict[str, str] | None = None,
    request_id: str = "req",
    seed: int = 0,
) -> Trace:
    """A closed run: chunked prompts, decodes, ``resets`` soft resets, and one step 50 times as long if asked."""
    build = TraceBuilder(path, name=name, step_ns=step_ns, tags=tags or {}, roster_every=16)
    source = random.Random(seed)
    waiting = [build.submit(source.randrange(5, 60), limit, id=f"{request_id}_{i}") for i in range(requests)]
    active: list[SimRequest] = []
    while waiting or active:
        if waiting and len(active) < 4:
            build.admit(waiting[0])
            active.append(waiting.pop(0))
        if resets and len(active) == 4 and build.steps % 9 == 8:
            victim = active.pop()
            build.soft_reset(victim)
            waiting.append(victim)
            resets -= 1
        work = {request: min(16, request.pending) if request.pending else 1 for request in active}
        build.step_ns = step_ns * 50 if build.steps == stall_step else step_ns
        stop = AdmissionStop.KV_BLOCKS if waiting else AdmissionStop.NOTHING_WAITING
        build.step(work, stop=stop)
        if build.steps % 50 == 1:
            build.write(Memory(build.now, "", 10 << 20, 20 << 20, 11 << 20, (21 << 20) + build.steps))
        for request in [request for request in active if request.generated >= request.limit]:
            active.remove(request)
            build.finish(request)
    return build.close()


def troubled_run(path: Path, name: str = "troubled") -> Trace:
    """A run with a failed, a cancelled, an empty and a running request beside three good ones."""
    build = TraceBuilder(path, name=name)
    good = [build.submit(8, 6) for _ in range(3)]
    failed, cancelled, empty, running = (build.submit(4, 5) for _ in range(4))
    for request in [*good, failed, cancelled, running]:
        build.admit(request)
    build.step({request: request.pending for request in [*good, failed, cancelled, running]})
    build.step([*good, failed, running])
    build.finish(failed, EndReason.FAILED, error="ValueError")
    build.finish(cancelled, EndReason.CANCELLED)
    build.finish(empty, EndReason.LENGTH)
    while any(request.generated < request.limit for request in good):
        build.step([request for request in good if request.generated < request.limit])
    for request in good:
        build.finish(request)
    return build.close()


def crowded_run(path: Path, *, steps: int = 5000, requests: int = 500, active: int = 10) -> Trace:
    """A run of many requests at once: prompts in chunks, some of them long, and now and then a soft reset."""
    build = TraceBuilder(path, name="crowded", roster_every=64)
    source = random.Random(7)
    limit = steps * active // requests
    waiting = [build.submit(source.choice((8, 30, 100, 250)), limit, id=f"request-{i}") for i in range(requests)]
    running: list[SimRequest] = []
    while build.steps < steps:
        while waiting and len(running) < active:
            build.admit(waiting[0])
            running.append(waiting.pop(0))
        if build.steps % 200 == 199 and len(running) > 2:
            victim = running.pop(source.randrange(len(running)))
            build.soft_reset(victim)
            waiting.append(victim)
        if not running:
            break
        work = {request: min(64, request.pending) if request.pending else 1 for request in running}
        build.step_ns = 1_000_000 + 20_000 * sum(work.values())
        build.step(work, stop=AdmissionStop.REQUEST_CAP if waiting else AdmissionStop.NOTHING_WAITING)
        for request in [request for request in running if request.generated >= request.limit]:
            running.remove(request)
            build.finish(request)
    return build.close()


def mixed_run(path: Path, seed: int, requests: int = 30) -> Trace:
    """A run in which requests of every kind meet: chunks, starved ones, soft resets, offloads; some steps are equal."""
    chance = random.Random(seed)
    build = TraceBuilder(path, roster_every=8)
    waiting = [build.submit(chance.randrange(1, 40), chance.randrange(1, 25)) for _ in range(requests)]
    active: list[SimRequest] = []
    away: list[SimRequest] = []
    while waiting or active or away:
        while (waiting or away) and len(active) < 6:
            request = (away or waiting).pop(0)
            build.restore(request) if request.position else build.admit(request)
            active.append(request)
        if len(active) > 2 and chance.random() < 0.1:
            victim = active.pop(chance.randrange(len(active)))
            if victim.generated and chance.random() < 0.5:
                build.offload(victim)
                away.append(victim)
            else:
                build.soft_reset(victim)
                victim.position = 0
                waiting.append(victim)
        chosen = [request for request in active if len(active) == 1 or chance.random() < 0.85] or active[:1]
        build.step_ns = chance.choice((1, 1, 1, 2, chance.randrange(1, 50))) * 1_000_000
        build.step(
            {request: min(8, request.pending) if request.pending else 1 for request in chosen},
            stop=AdmissionStop.REQUEST_CAP if waiting else AdmissionStop.NOTHING_WAITING,
        )
        for request in [request for request in active if request.generated >= request.limit]:
            active.remove(request)
            build.finish(request)
    return build.close()


STALL_MS = 500


def night_run(path: Path, *, steps: int = 2400, active: int = 8, lasts: int = 40) -> Trace:
    """A calm run with one stalled step at 3/10 of it, one soft reset at 6/10 and one cancelled request at 8/10."""
    build = TraceBuilder(path, name="night", roster_every=64)
    running: list[SimRequest] = []
    while build.steps < steps:
        while len(running) < active:
            running.append(build.submit(6, lasts + len(build.requests) % 7))
            build.admit(running[-1])
        if build.steps == steps * 6 // 10:
            victim = next(request for request in running if request.generated > 1)
            build.soft_reset(victim)
            build.admit(victim)
        if build.steps == steps * 8 // 10:
            victim = next(request for request in running if request.generated > 1)
            build.write(Event(EventKind.CANCEL_REQUESTED, build.now, build.steps, victim.ordinal))
            running.remove(victim)
            build.finish(victim, EndReason.CANCELLED)
        # Five sixths of what the builder counts for a step lie between its first and its last instant.
        build.step_ns = STALL_MS * 1_200_000 if build.steps == steps * 3 // 10 else 5_000_000
        build.step({request: min(8, request.pending) if request.pending else 1 for request in running})
        for request in [request for request in running if request.generated >= request.limit]:
            running.remove(request)
            build.finish(request)
    for request in running:
        build.finish(request)
    return build.close()
