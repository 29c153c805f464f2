"""A trace as Chrome JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A bare array, one event a line, in order of time: a file that was cut still loads. Tracks:

* process *engine*: thread *scheduler* has a slice a step with its phases inside, thread *results* the fetching and
  updating of asynchronous steps (which overlaps the next step), thread *events* an instant an event; counters for KV,
  tokens against their budget, requests and memory. An arrow leads from a soft reset to the step of re-admission.
* process *requests*: an async track a request, with its waiting and running inside and an instant a token.

Times are microseconds from the start of the recording, exact to the nanosecond.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..reader import Trace
from ..schema import AdmissionStop, EndReason, EventKind, StepFlag
from .new_file import new_file

Progress = Callable[[int, int], None]
"""Called now and then with the number of steps exported and of all."""
_Timed = tuple[int, str]

_ENGINE, _REQUESTS = 1, 2
_SCHEDULER, _RESULTS, _EVENTS = 1, 2, 3
_LONGEST_NAME = 120
_PIECE = 2000
_INSTANTS = ("start_ns", "scheduled_ns", "prepared_ns", "launched_ns", "ready_ns", "done_ns")
_PHASES = ("schedule", "prepare", "launch", "fetch", "update")
_STOPS = {int(stop): stop.name.lower() for stop in AdmissionStop}
_REASONS = {int(reason): reason.name.lower() for reason in EndReason}
_KINDS = {int(kind): kind.name.lower().replace("_", " ") for kind in EventKind}


def perfetto(trace: Trace, progress: Progress | None = None) -> Iterator[str]:
    """The file, piece by piece, in memory that does not grow with the number of tokens."""
    total = len(trace.steps.index)
    # Of equal times the earlier source comes first: a token before the end of its request.
    makers = (_steps, _results, _counters, _memory, _events, _tokens, _requests)
    yield "[\n" + ",\n".join(_names())
    lines: list[str] = []
    done = 0
    for _, line in heapq.merge(*(make(trace) for make in makers), key=lambda timed: timed[0]):
        lines.append(line)
        done += line.startswith('{"ph":"X","name":"step')
        if len(lines) == _PIECE:
            yield ",\n" + ",\n".join(lines)
            lines.clear()
            if progress is not None:
                progress(done, total)
    yield "".join(f",\n{line}" for line in lines) + "\n]\n"
    if progress is not None:
        progress(total, total)


def write_perfetto(trace: Trace, path: Path, *, overwrite: bool = False, progress: Progress | None = None) -> None:
    """Write the file; it appears whole or not at all.

    Raises:
        TraceExistsError: a file of that name exists and may not be overwritten.
        OSError: it cannot be written.
    """
    with new_file(path, overwrite=overwrite) as file:
        file.writelines(perfetto(trace, progress))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _text(name: str) -> str:
    """A string as JSON: printable, not endless."""
    return json.dumps("".join(char if char.isprintable() else "?" for char in name[:_LONGEST_NAME]))


def _names() -> Iterator[str]:
    for pid, name in ((_ENGINE, "engine"), (_REQUESTS, "requests")):
        yield f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":"{name}"}}}}'
    for tid, name in ((_SCHEDULER, "scheduler"), (_RESULTS, "results"), (_EVENTS, "events")):
        yield f'{{"ph":"M","name":"thread_name","pid":{_ENGINE},"tid":{tid},"args":{{"name":"{name}"}}}}'


def _slice(name: str, start: int, end: int, tid: int, args: str = "") -> _Timed:
    duration = _us(max(end - start, 0))
    return (
        start,
        f'{{"ph":"X","name":"{name}","pid":{_ENGINE},"tid":{tid},"ts":{_us(start)},"dur":{duration},"args":{{{args}}}}}',
    )


def _steps(trace: Trace) -> Iterator[_Timed]:
    """A slice a step and its phases. Slices of a track never overlap: one that would is cut short."""
    steps = trace.steps
    arrows = _arrows(trace)
    limit = np.append(steps.start_ns[1:], -1)
    latest = 0
    for row in np.flatnonzero(steps.start_ns >= 0).tolist():
        instants = [int(getattr(steps, name)[row]) for name in _INSTANTS]
        start = max(instants[0], latest)
        phases = _PHASES[:3] if steps.flags[row] & StepFlag.ASYNC else _PHASES
        end = instants[len(phases)]
        latest = max(start, min(end, int(limit[row])) if limit[row] >= 0 else end)
        yield _slice(f"step {steps.index[row]}", start, latest, _SCHEDULER, _step_args(trace, row))
        for arrow in arrows.get(int(steps.index[row]), ()):
            yield start, arrow.replace("TS", _us(start), 1)
        at = start
        for phase, until in zip(phases, instants[1:], strict=False):
            upto = min(max(until, at), latest)
            yield _slice(phase, at, upto, _SCHEDULER)
            at = upto


def _results(trace: Trace) -> Iterator[_Timed]:
    """The updating of asynchronous steps, while the next one is under way."""
    steps = trace.steps
    latest = 0
    for row in np.flatnonzero((steps.start_ns >= 0) & ((steps.flags & StepFlag.ASYNC) > 0)).tolist():
        start = max(int(steps.ready_ns[row]), latest)
        latest = max(start, int(steps.done_ns[row]))
        yield _slice(f"update {steps.index[row]}", start, latest, _RESULTS)


def _step_args(trace: Trace, row: int) -> str:
    steps = trace.steps
    stop = _STOPS.get(int(steps.stop[row]), "unknown")
    numbers = ("members", "prefill_tokens", "decode_tokens", "recompute_tokens", "wasted_tokens", "waiting", "starved")
    values = ",".join(f'"{name}":{getattr(steps, name)[row]}' for name in numbers)
    gpu = f',"gpu_us":{_us(int(steps.gpu_ns[row]))}' if steps.gpu_ns[row] >= 0 else ""
    return f'{values},"admission_stop":"{stop}"{gpu}'


def _arrows(trace: Trace) -> dict[int, list[str]]:
    """By step: ends of arrows from the step of a soft reset to the step that admits the request again."""
    events, admissions = trace.events, trace.admissions
    waiting: dict[int, int] = {}
    arrows: dict[int, list[str]] = {}
    moves = [
        (int(events.step[at]), 0, int(events.request[at]))
        for at in np.flatnonzero(events.kind == EventKind.SOFT_RESET).tolist()
    ]
    moves += [
        (int(step), 1, int(request))
        for step, request, residency in zip(admissions.step, admissions.request, admissions.residency, strict=True)
        if residency > 0
    ]
    known = set(trace.steps.index.tolist())
    for number, (step, back, request) in enumerate(sorted(moves)):
        if not back:
            waiting[request] = step
        elif request in waiting:
            reset = waiting.pop(request)
            if reset in known and step in known:
                common = f'"name":"soft reset","cat":"soft_reset","id":{number},"pid":{_ENGINE},"tid":{_SCHEDULER}'
                arrows.setdefault(reset, []).append(f'{{"ph":"s",{common},"ts":TS}}')
                arrows.setdefault(step, []).append(f'{{"ph":"f","bp":"e",{common},"ts":TS}}')
    return arrows


def _counter(name: str, at: int, values: dict[str, int]) -> _Timed:
    args = ",".join(f'"{key}":{value}' for key, value in values.items() if value >= 0)
    return at, f'{{"ph":"C","name":"{name}","pid":{_ENGINE},"tid":0,"ts":{_us(at)},"args":{{{args}}}}}'


def _counters(trace: Trace) -> Iterator[_Timed]:
    steps = trace.steps
    budget = trace.engines[-1].resolved.get("max_batch_tokens") if trace.engines else None
    latest = 0
    for row in np.flatnonzero(steps.start_ns >= 0).tolist():
        at = latest = max(int(steps.start_ns[row]), latest)
        kv = {"used": int(steps.kv_used[row]), "cached": int(steps.kv_cached[row]), "free": int(steps.kv_free[row])}
        yield _counter("KV bytes", at, kv)
        tokens = {name: int(getattr(steps, f"{name}_tokens")[row]) for name in ("prefill", "decode", "recompute")}
        yield _counter("batch tokens", at, tokens)
        if type(budget) is int:
            yield _counter("token budget", at, {"tokens": budget})
        yield _counter("requests", at, {"active": int(steps.active[row]), "waiting": int(steps.waiting[row])})


def _memory(trace: Trace) -> Iterator[_Timed]:
    memory = trace.memory
    for row in np.argsort(memory.time_ns, kind="stable").tolist():
        names = ("allocated", "reserved", "peak_allocated", "device_used", "host_rss")
        values = {name: int(getattr(memory, name)[row]) for name in names}
        if max(values.values()) >= 0:
            yield _counter("memory bytes", max(int(memory.time_ns[row]), 0), values)


def _events(trace: Trace) -> Iterator[_Timed]:
    events = trace.events
    for row in np.argsort(events.time_ns, kind="stable").tolist():
        at = max(int(events.time_ns[row]), 0)
        numbers = ("step", "request", "tokens", "blocks", "bytes", "duration_ns")
        args = ",".join(f'"{name}":{getattr(events, name)[row]}' for name in numbers if getattr(events, name)[row] >= 0)
        if events.text[row]:
            args += ("," if args else "") + f'"text":{_text(events.text[row])}'
        name = _KINDS.get(int(events.kind[row]), "event")
        place = f'"pid":{_ENGINE},"tid":{_EVENTS},"ts":{_us(at)},"s":"t"'
        yield at, f'{{"ph":"i","name":"{name}",{place},"args":{{{args}}}}}'


def _async(phase: str, request: int, name: str, at: int, args: str = "") -> _Timed:
    place = f'"cat":"request","id":{request},"pid":{_REQUESTS},"tid":0,"ts":{_us(at)}'
    return at, f'{{"ph":"{phase}","name":{name},{place},"args":{{{args}}}}}'


def _requests(trace: Trace) -> Iterator[_Timed]:
    """Begins and ends of requests, and of their waiting and running; sorted here, since there are few of them."""
    moves = _moves(trace)
    last = int(trace.steps.done_ns.max(initial=0))
    spans = [timed for row in range(len(trace.requests.id)) for timed in _life(trace, row, moves.get(row, []), last)]
    # The sort is stable: what begins and ends at one instant stays nested.
    yield from sorted(spans, key=lambda timed: timed[0])


def _moves(trace: Trace) -> dict[int, list[tuple[int, str]]]:
    """By request, in order of time: when it began to run, and when it had to wait again."""
    admissions, events = trace.admissions, trace.events
    put_off = {int(EventKind.SOFT_RESET): '"soft reset"', int(EventKind.OFFLOAD): '"offloaded"'}
    found = [(at, row, '"running"') for at, row in zip(admissions.time_ns, admissions.request, strict=True)]
    found += [
        (events.time_ns[at], events.request[at], put_off[kind])
        for at, kind in enumerate(events.kind.tolist())
        if kind in put_off and events.request[at] >= 0
    ]
    moves: dict[int, list[tuple[int, str]]] = {}
    for at, row, state in sorted(found, key=lambda move: move[0]):
        moves.setdefault(int(row), []).append((int(at), state))
    return moves


def _life(trace: Trace, row: int, moves: list[tuple[int, str]], last: int) -> Iterator[_Timed]:
    table, sums = trace.requests, trace.request_sums
    # A request whose beginning was lost begins just before its first token, so that this is inside.
    instants = (table.submit_ns, table.visible_ns, sums.first_ns - 1, sums.last_ns)
    seen = [int(times[row]) for times in instants if times[row] >= 0]
    seen += [at for at, _ in moves if at >= 0]
    if not seen:
        return
    begin, end = min(seen), int(table.end_ns[row])
    end = max(end if end >= 0 else last, *seen)
    name = _text(table.id[row] or f"request {trace.ordinals[row]}")
    reason = _REASONS.get(int(table.end_reason[row]), "unknown")
    args = f'"prompt_tokens":{table.prompt_tokens[row]},"generated":{table.generated[row]},"end":"{reason}"'
    yield _async("b", row, name, begin, args)
    at, state = begin, '"queued"'
    for when, following in [*moves, (end, "")]:
        if when > at:
            yield _async("b", row, state, at)
            yield _async("e", row, state, when)
        at, state = max(at, when), following
    yield _async("e", row, name, end)


def _tokens(trace: Trace) -> Iterator[_Timed]:
    """An instant a token, in its request's track."""
    index, ready = trace.steps.index, trace.steps.ready_ns
    latest = 0
    for part in trace.iter_step_requests():
        new = np.flatnonzero(part.new_token)
        times = ready[np.searchsorted(index, part.step[new])]
        for at, row, step in zip(times.tolist(), part.request[new].tolist(), part.step[new].tolist(), strict=True):
            latest = max(latest, at)
            yield _async("n", row, '"token"', latest, f'"step":{step}')
