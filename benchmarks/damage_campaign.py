"""Damages a small trace in every way and checks what the reader makes of it.

``python benchmarks/damage_campaign.py [TRACE] [--random N] [--seed S]``; without TRACE the recording of a real engine
that the tests keep. Every damaged file must be read or refused in one sentence: no other exception, at most 2 s of
processor time each, at most 10 times the file plus 64 MB of memory, every frame that is untouched read, and no damage
that goes unreported. What was read must agree with itself, and time must add up.
Prints a line a kind of damage; exits with 1 if any file failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.traces import TraceError, open_trace
from cbtrace.traces.frames import MARKER, PREAMBLE_BYTES, Damage, FrameScanner, preamble, seal
from cbtrace.traces.invariants import check

SAMPLE = Path(__file__).parent.parent / "tests" / "fixtures" / "version-1-soft-resets.cbt"
SECONDS = 2.0
TABLES = ("steps", "step_requests", "requests", "tokens", "admissions", "events", "memory", "gpu")


class Sample:
    """The sound trace: its bytes, and where its frames begin."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.starts = [PREAMBLE_BYTES]
        with path.open("rb") as file:
            file.seek(PREAMBLE_BYTES)
            for found in FrameScanner(file.read, PREAMBLE_BYTES):
                assert not isinstance(found, Damage), "the sample is damaged"
                self.starts.append(found[0])
        self.starts = [*self.starts[1:], len(self.data)]

    def untouched(self, first: int, last: int) -> int:
        """Frames that bytes ``first`` to ``last`` do not touch."""
        return sum(end <= first or start >= last for start, end in pairwise(self.starts))

    def frames(self) -> list[bytes]:
        return [self.data[start:end] for start, end in pairwise(self.starts)]


Case = tuple[bytes, int]
"""A damaged file, and how many frames must be read from it at least; -1: the file may also be refused."""


def cuts(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for at in range(len(sample.data)):
        whole = sum(end <= at for end in sample.starts[1:])
        yield sample.data[:at], whole or -1


def changed_bytes(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for at in range(len(sample.data)):
        damaged = bytearray(sample.data)
        damaged[at] ^= chance.randrange(1, 256)
        yield bytes(damaged), sample.untouched(at, at + 1)


def ranges(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    size = len(sample.data)
    for _ in range(count):
        first = chance.randrange(size - 1)
        last = min(size, first + chance.choice((1, 8, 64, 512, 4096)))
        filler = chance.choice((bytes, chance.randbytes, lambda length: (MARKER * length)[:length]))(last - first)
        if filler != sample.data[first:last]:
            yield sample.data[:first] + filler + sample.data[last:], sample.untouched(first, last) or -1


def insertions(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        at = chance.randrange(PREAMBLE_BYTES, len(sample.data))
        garbage = chance.choice((bytes, chance.randbytes, lambda length: MARKER * length))(chance.randrange(1, 300))
        inside = not any(start == at for start in sample.starts)
        yield sample.data[:at] + garbage + sample.data[at:], len(sample.frames()) - inside


def deletions(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        first = chance.randrange(PREAMBLE_BYTES, len(sample.data) - 1)
        last = min(len(sample.data), first + chance.choice((1, 8, 64, 512)))
        yield sample.data[:first] + sample.data[last:], sample.untouched(first, last) or -1


def shuffles(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count // 10):
        frames = sample.frames()
        for _ in range(chance.randrange(1, 5)):
            place = chance.randrange(len(frames))
            frames.insert(place, frames[chance.randrange(len(frames))])
        yield sample.data[:PREAMBLE_BYTES] + b"".join(frames), len(frames)


def claims(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Lengths that are not true, up to those near 2**32, and payloads that claim or nest more than they hold."""
    for length in (b"\x7f", b"\xff\x7f", b"\xff\xff\xff\x07", b"\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f"):
        for place in chance.sample(sample.starts, 20):
            broken = MARKER + length + bytes(4)
            yield sample.data[:place] + broken + sample.data[place:], len(sample.frames())
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
        yield sample.data + seal(payload), len(sample.frames())


def hostile(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    """Files made to waste time: full of starts of frames that do not hold."""
    for claim in (b"", b"\x00", b"\x01", b"\x40", b"\xff\x7f", b"\xff\xff\x03", b"\xff\xff\xff\x07"):
        yield sample.data + (MARKER + claim) * (3_000_000 // (2 + len(claim))), len(sample.frames())


def random_files(sample: Sample, chance: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        start = chance.choice((b"", preamble(1), preamble(), MARKER, sample.data[: chance.randrange(3000)]))
        yield start + chance.randbytes(chance.randrange(2000)), -1


KINDS = (cuts, changed_bytes, ranges, insertions, deletions, shuffles, claims, hostile, random_files)


def fault(path: Path, case: Case, sound: bytes) -> str:
    """What is wrong with how a file is read; empty if nothing is."""
    data, least = case
    path.write_bytes(data)
    began = time.process_time()
    try:
        trace = open_trace(path)
        for table in TABLES:
            getattr(trace, table)
        check(trace)
        if found := check_cuts(trace):
            return f"time does not add up: {found[0].meaning}"
    except TraceError as error:
        return "" if least < 0 and "\n" not in str(error) else f"refused: {error}"
    except Exception:
        return traceback.format_exc(limit=-1)
    if (took := time.process_time() - began) > SECONDS:
        return f"took {took:.1f} s"
    if trace.recovery.frames_read < least:
        return f"{trace.recovery.frames_read} frames read of {least} that are whole"
    if trace.recovery.whole and data != sound:
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


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("trace", nargs="?", type=Path, default=SAMPLE)
    options.add_argument("--random", type=int, default=10_000, help="files of each random kind")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    sample, chance = Sample(given.trace), random.Random(given.seed)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.cbt"
        for kind in KINDS:
            began, files, wrong, slowest, most = time.process_time(), 0, 0, 0.0, 0.0
            for case in kind(sample, chance, given.random):
                start = time.process_time()
                said = fault(path, case, sample.data)
                slowest = max(slowest, time.process_time() - start)
                files += 1
                if files % 50 == 1:
                    most = max(most, (memory_of(path) - (64 << 20)) / max(len(case[0]), 1))
                if said:
                    wrong += 1
                    print(f"{kind.__name__}, file {files}: {said}")
            bound = "within" if most <= 10 else "BEYOND"
            wrong += most > 10
            failures += wrong
            spent = time.process_time() - began
            counts = f"{files} files, {wrong} failed, slowest {slowest:.2f} s, memory {bound} bounds"
            print(f"{kind.__name__}: {counts}, {spent:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
