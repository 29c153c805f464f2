"""Damages a small trace in every way and checks what the reader makes of it.

``python benchmarks/damage_campaign.py [TRACE] [--kinds KIND ...] [--random N] [--seed S]``; without TRACE the recording
of a real engine that the tests keep. Every damaged file must be read, or refused in one sentence if no frame of it is
whole. Never another exception, more than 2 s of processor time, or memory beyond 10 times the file plus 64 MB. What
every untouched frame tells must be there, with the same values; the bytes reported as lost must be those of the frames
that were touched, no more and no fewer; no damage may go unreported; what the tables say of who was in a step, and how
far it was, must be true, and all must agree with itself.
Prints a line a kind of damage; exits with 1 if any file failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.traces import Trace, TraceError, open_trace
from cbtrace.traces.frames import MARKER, PREAMBLE_BYTES, Damage, FrameScanner, preamble, seal
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import Severity

SAMPLE = Path(__file__).parent.parent / "tests" / "fixtures" / "version-3-real.cbt"
SECONDS = 2.0
TABLES = ("steps", "step_requests", "requests", "tokens", "admissions", "events", "memory", "gpu")
OF_A_STEP = (
    *("index", "start_ns", "scheduled_ns", "prepared_ns", "launched_ns", "ready_ns", "done_ns", "gpu_ns"),
    *("waiting", "active", "members", "prefill_tokens", "decode_tokens", "recompute_tokens", "new_tokens"),
    *("wasted_tokens", "starved", "stop", "flags", "attempts"),
)
"""Columns of a step that its own frame tells."""

Fact = tuple[Any, ...]


def facts(trace: Trace) -> set[Fact]:
    """What single frames tell, one tuple each."""
    requests, ordinals = trace.requests, trace.ordinals.tolist()
    named = [*ordinals, -1]
    admissions, events = trace.admissions, trace.events
    found = rows("step", trace.steps, OF_A_STEP)
    found |= rows("admit", admissions, ("serial", "slot", "step", "time_ns", "residency", "start", "computed"))
    found |= rows("event", events, ("kind", "time_ns", "step", "tokens", "bytes", "duration_ns", "text"))
    found |= {("whose event", at, named[row]) for at, row in zip(events.time_ns.tolist(), events.request, strict=True)}
    found |= rows("memory", trace.memory, ("time_ns", "mark", "host_rss", "reserved"))
    found |= rows("gpu", trace.gpu, ("time_ns", "utilization", "power_mw"))
    for at, ordinal in enumerate(ordinals):
        found.add(("request", ordinal, requests.id[at], requests.prompt_tokens[at], requests.submit_ns[at]))
        found.add(("visible", ordinal, requests.visible_ns[at]))
        found.add(("end", ordinal, requests.end_ns[at], requests.end_reason[at], requests.output_hash[at]))
    found |= {("ids", ordinals[row], ids.tobytes()) for row, ids in trace.token_ids.items()}
    found |= {("clock", clock.t_ns, clock.wall_ns) for clock in trace.clocks}
    found |= {("graph", key.id, key.queries, key.kv) for key in trace.graph_keys.values()}
    found |= {("notice", notice.t_ns, notice.text) for notice in trace.notices}
    found |= {("engine", engine.t_ns, engine.adapter) for engine in trace.engines}
    found.add(("header", trace.header.run_id, trace.header.wall_ns))
    found.add(("footer", trace.footer and trace.footer.t_ns))
    return found


def claims_of(trace: Trace) -> set[Fact]:
    """What steps did for requests, and where these were: must be true, or be left out."""
    ordinals = trace.ordinals
    pairs, tokens = trace.step_requests, trace.tokens
    who, whose = ordinals[pairs.request], ordinals[tokens.request]
    did = (pairs.step, who, pairs.prefill, pairs.decode, pairs.recompute, pairs.new_token, pairs.wasted)
    known, numbered = pairs.position >= 0, tokens.position >= 0
    said = {
        "did": did,
        "at": (pairs.step[known], who[known], pairs.position[known]),
        "came": (tokens.step, whose, tokens.time_ns),
        "token": (tokens.step[numbered], whose[numbered], tokens.position[numbered]),
    }
    return {
        (name, *row)
        for name, columns in said.items()
        for row in zip(*(column.tolist() for column in columns), strict=True)
    }


def rows(name: str, table: Any, columns: Iterable[str]) -> set[Fact]:
    values = [getattr(table, column) for column in columns]
    return {(name, *row) for row in zip(*(v if isinstance(v, list) else v.tolist() for v in values), strict=True)}


def tables(trace: Trace) -> dict[str, set[Fact]]:
    """All rows of all tables."""
    read = ((name, getattr(trace, name)) for name in TABLES)
    return {name: rows(name, table, (field.name for field in dataclasses.fields(table))) for name, table in read}


@dataclass(frozen=True)
class Case:
    """A damaged file."""

    data: bytes
    kept: frozenset[int]
    """Numbers of the frames that are whole in it."""
    lost: list[tuple[int, int]] | None = None
    """Stretches of bytes that must be reported as lost, exactly; None where that is not known. Where there are none,
    frames have changed places: if that is not reported, all tables must be as they were."""
    foreign: bool = False
    """It holds a frame that the sample never had, so not all that is read can be true."""


class Sample:
    """The sound trace: its bytes, where its frames begin, and what each of them tells."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        starts = []
        with path.open("rb") as file:
            file.seek(PREAMBLE_BYTES)
            for found in FrameScanner(file.read, PREAMBLE_BYTES):
                assert not isinstance(found, Damage), "the sample is damaged"
                starts.append(found[0])
        self.starts = [*starts, len(self.data)]
        self.frames = [self.data[start:end] for start, end in pairwise(self.starts)]
        self.all = frozenset(range(len(self.frames)))
        self.tells: list[set[Fact]] = []
        self.tables: dict[str, set[Fact]] = {}
        self.true: set[Fact] = set()

    def learn(self, folder: Path) -> None:
        """Find out what each frame tells: what is not there without it."""
        path = folder / "without.cbt"
        path.write_bytes(self.data)
        whole = facts(open_trace(path))
        self.tables = tables(open_trace(path))
        self.true = claims_of(open_trace(path))
        for number in range(len(self.frames)):
            path.write_bytes(self.of([frame for at, frame in enumerate(self.frames) if at != number]))
            self.tells.append(whole - facts(open_trace(path)))

    def of(self, frames: list[bytes]) -> bytes:
        return self.data[:PREAMBLE_BYTES] + b"".join(frames)

    def touched(self, first: int, last: int) -> list[tuple[int, int]]:
        """The stretch of the frames, and of the preamble, that bytes ``first`` to ``last`` touch."""
        bounds = [0, *self.starts]
        hit = [(start, end) for start, end in pairwise(bounds) if start < last and end > first]
        return [(hit[0][0], hit[-1][1])] if hit else []

    def untouched(self, first: int, last: int) -> frozenset[int]:
        """Numbers of the frames that bytes ``first`` to ``last`` do not touch."""
        spans = enumerate(pairwise(self.starts))
        return frozenset(number for number, (start, end) in spans if end <= first or start >= last)

    def changed(self, first: int, filler: bytes) -> Case:
        last = first + len(filler)
        data = self.data[:first] + filler + self.data[last:]
        return Case(data, self.untouched(first, last), self.touched(first, last))


def cuts(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Before every byte."""
    for at in range(len(sample.data)):
        lost = [(start, at) for start, end in pairwise(sample.starts) if start < at < end]
        yield Case(sample.data[:at], sample.untouched(at, len(sample.data)), lost)


def changed_bytes(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Every byte, once in one bit and once in any way."""
    for at, byte in enumerate(sample.data):
        for change in (1 << chance.randrange(8), chance.randrange(1, 256)):
            yield sample.changed(at, bytes([byte ^ change]))


def ranges(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Stretches zeroed, randomized, and filled with markers."""
    size = len(sample.data)
    for _ in range(count):
        first = chance.randrange(size - 1)
        last = min(size, first + chance.choice((1, 8, 64, 512, 4096)))
        filler = chance.choice((bytes, chance.randbytes, lambda length: (MARKER * length)[:length]))(last - first)
        # A filler may begin or end as what it replaces does: only what differs is damage.
        differs = [at for at in range(first, last) if filler[at - first] != sample.data[at]]
        if differs:
            yield sample.changed(differs[0], filler[differs[0] - first : differs[-1] + 1 - first])


def insertions(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Garbage within frames and between them."""
    for _ in range(count):
        at = chance.choice((chance.randrange(PREAMBLE_BYTES, len(sample.data)), chance.choice(sample.starts[:-1])))
        garbage = chance.choice((bytes, chance.randbytes, lambda length: MARKER * length))(chance.randrange(1, 300))
        data = sample.data[:at] + garbage + sample.data[at:]
        # Garbage in a frame may be the same file as garbage beside it.
        edges = sample.touched(at, at + 1)
        beside = [(edge, edge) for edge in edges[0] if data[:edge] + data[edge + len(garbage) :] == sample.data]
        first, last = (beside or edges)[0]
        yield Case(data, sample.untouched(first, last), [(first, last + len(garbage))])


def deletions(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Bytes taken out, and whole frames."""
    for _ in range(count):
        if chance.random() < 0.5:
            first, last = sorted(chance.sample(sample.starts, 2))
            last = min(last, first + 2000)
        else:
            first = chance.randrange(PREAMBLE_BYTES, len(sample.data) - 1)
            last = min(len(sample.data), first + chance.choice((1, 8, 64, 512)))
        yield Case(sample.data[:first] + sample.data[last:], sample.untouched(first, last))


def shuffles(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Frames repeated elsewhere, exchanged, and stretches of them turned round or moved."""
    for _ in range(count):
        frames = list(sample.frames)
        for _ in range(chance.randrange(1, 5)):
            first, last = sorted(chance.sample(range(len(frames)), 2))
            match chance.randrange(4):
                case 0:
                    frames.insert(first, frames[last])
                case 1:
                    frames[first], frames[last] = frames[last], frames[first]
                case 2:
                    frames[first:last] = frames[first:last][::-1]
                case 3:
                    moved = frames[first:last]
                    del frames[first:last]
                    place = chance.randrange(len(frames) + 1)
                    frames[place:place] = moved
        if frames != sample.frames:
            yield Case(sample.of(frames), sample.all, [])


def claims(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Lengths that are not true, up to those near 2**32, and payloads that claim or nest more than they hold."""
    for length in (b"\x7f", b"\xff\x7f", b"\xff\xff\xff\x07", b"\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f"):
        for place in chance.sample(sample.starts, 20):
            broken = MARKER + length + bytes(4)
            data = sample.data[:place] + broken + sample.data[place:]
            yield Case(data, sample.all, [(place, place + len(broken))])
    for payload in (
        b"\xdd\xff\xff\xff\xff",
        b"\x95\x06\x00\x00\xdd\xff\xff\xff\xf0",
        b"\x97\x06\x00\x00\xdd\x0f\xff\xff\xff",
        b"\x92\x0e\xc6\xff\xff\xff\xff",
        b"\x98\x0c\x00\x00" + b"\x91" * 1_000_000,
        b"\x98\x0c\x00\x00" + b"\x81\xa0" * 1_000_000,
        b"\x92\x03" + b"\xcf" + b"\xff" * 8,
        b"\x01",
        b"\x7f" + b"\xff" * 200,
        b"\x20" + b"\xff" * 44,
    ):
        yield Case(sample.data + seal(payload), sample.all, [], foreign=True)


def hostile(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Files made to waste time: full of starts of frames that do not hold."""
    for claim in (b"", b"\x00", b"\x01", b"\x40", b"\xff\x7f", b"\xff\xff\x03", b"\xff\xff\xff\x07"):
        data = sample.data + (MARKER + claim) * (3_000_000 // (2 + len(claim)))
        yield Case(data, sample.all, [(len(sample.data), len(data))])


def random_files(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Random bytes behind nothing, a first part, or the start of the sample."""
    for _ in range(count):
        start = chance.choice((b"", preamble(1), preamble(), MARKER, sample.data[: chance.randrange(3000)]))
        kept = sample.untouched(len(start), len(sample.data)) if sample.data.startswith(start) else frozenset()
        yield Case(start + chance.randbytes(chance.randrange(2000)), kept)


KINDS = {
    kind.__name__: kind
    for kind in (cuts, changed_bytes, ranges, insertions, deletions, shuffles, claims, hostile, random_files)
}


def fault(path: Path, case: Case, sample: Sample) -> str:
    """What is wrong with how a file is read; empty if nothing is."""
    path.write_bytes(case.data)
    began = time.process_time()
    try:
        trace = open_trace(path)
        for table in TABLES:
            getattr(trace, table)
        disagreements = [*check(trace)[len(trace.recovery.findings) :], *check_cuts(trace)]
    except TraceError as error:
        return "" if not case.kept and "\n" not in str(error) else f"refused: {error}"
    except Exception:
        return traceback.format_exc(limit=-1)
    if (took := time.process_time() - began) > SECONDS:
        return f"took {took:.1f} s"
    broken = [found.meaning for found in disagreements if found.severity is Severity.BROKEN and not case.foreign]
    return wrong(trace, case, sample) or "; ".join(broken)


def wrong(trace: Trace, case: Case, sample: Sample) -> str:
    """What is wrong with what was read; empty if nothing is."""
    told = facts(trace)
    for number in case.kept:
        if missing := sample.tells[number] - told:
            return f"frame {number} is whole, and this is not there: {next(iter(missing))}"
    if not case.foreign and (false := claims_of(trace) - sample.true):
        return f"this is not true: {next(iter(false))}"
    if trace.recovery.frames_read < len(case.kept):
        return f"{trace.recovery.frames_read} frames read of {len(case.kept)} that are whole"
    lost = [(lost.start, lost.end) for lost in trace.recovery.ranges]
    if case.lost is not None and lost != case.lost:
        return f"lost are {case.lost}, reported are {lost}"
    if trace.recovery.whole and (case.lost != [] or tables(trace) != sample.tables):
        return "the damage is not reported"
    return ""


def memory_of(path: Path) -> int:
    """Highest memory while reading, in bytes."""
    tracemalloc.start()
    try:
        trace = open_trace(path)
        for table in TABLES:
            getattr(trace, table)
    except TraceError:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def campaign(kind: str, sample: Sample, chance: random.Random, count: int, path: Path) -> int:
    """Try one kind of damage and print what came of it; returns how many files failed."""
    began, files, failed, slowest, most = time.process_time(), 0, 0, 0.0, 0.0
    for case in KINDS[kind](sample, chance, count):
        start = time.process_time()
        said = fault(path, case, sample)
        slowest = max(slowest, time.process_time() - start)
        files += 1
        if files % 50 == 1:
            most = max(most, (memory_of(path) - (64 << 20)) / max(len(case.data), 1))
        if said:
            failed += 1
            print(f"{kind}, file {files}: {said}")
    failed += most > 10
    memory = "BEYOND" if most > 10 else "within"
    counts = f"{files} files, {failed} failed, slowest {slowest:.2f} s, memory {memory} bounds"
    print(f"{kind}: {counts}, {time.process_time() - began:.0f} s", flush=True)
    return failed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("trace", nargs="?", type=Path, default=SAMPLE)
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="only these")
    options.add_argument("--random", type=int, default=10_000, help="files of each random kind")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    sample = Sample(given.trace)
    with tempfile.TemporaryDirectory() as name:
        sample.learn(Path(name))
        path = Path(name) / "damaged.cbt"
        failed = [campaign(kind, sample, random.Random(given.seed), given.random, path) for kind in given.kinds]
    return 1 if sum(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
