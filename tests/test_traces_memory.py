"""No file makes the reader take more than ten times its size and 64 MB, or more than two seconds of the processor.

Measured in a process of its own, as the system sees it: the most memory that was resident, less what Python and the
libraries take.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from cbtrace.traces import codec
from cbtrace.traces.blocks import MOST_PAYLOADS, join_payloads
from cbtrace.traces.frames import MARKER, MAX_PAYLOAD, preamble, seal
from cbtrace.traces.schema import Admit, Event, Frame, Memory, Request, Roster, Step, Visible
from cbtrace.traces.stepcode import pack_times
from trace_builder import engine, header

READ = """
import sys, time
from pathlib import Path
import cbtrace.site.analysis.cut_check, cbtrace.site.analysis.summary, zstandard
from cbtrace.traces import TraceError, open_trace
from cbtrace.traces.invariants import check

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before, began = peak(), time.process_time()
try:
    trace = open_trace(sys.argv[1])
    for table in ("steps", "requests", "admissions", "events", "memory", "gpu"):
        getattr(trace, table)
    check(trace)
    said = trace.recovery.status
except TraceError as error:
    said = error.slug
print(peak() - before, time.process_time() - began, said)
"""
START = preamble() + seal(codec.encode(header())) + seal(codec.encode(engine()))
STEP_TIMES = pack_times(1, 2, 3, 4, 5, 6)
STEP = seal(codec.encode(Step(5, STEP_TIMES, -1, b"", 0, 0, 0, 0, 0, 0)))
SIZE = 3 << 19


def compressed(path: Path, parts: Iterator[bytes]) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as writer:
        for part in parts:
            writer.write(part)


def bomb_of_zeros(path: Path) -> None:
    """A gibibyte in some kilobytes."""
    compressed(path, (bytes(1 << 20) for _ in range(1024)))


def bomb_behind_a_sound_start(path: Path) -> None:
    compressed(path, (part for parts in ([START], [bytes(1 << 20)] * 1024) for part in parts))


def bomb_of_sound_steps(path: Path) -> None:
    """Each byte of it is valid."""
    many = STEP * ((1 << 20) // len(STEP))
    compressed(path, (part for parts in ([START], [many] * 1024) for part in parts))


def bomb_with_a_huge_window(path: Path) -> None:
    """Asks for two gibibytes of window before the first byte."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31)
    with path.open("wb") as file, zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file) as writer:
        writer.write(START)


def lengths_near_the_largest(path: Path) -> None:
    """Frames that claim up to 2**32 bytes, and payloads whose parts do."""
    claims = [MARKER + length + bytes(4) for length in (b"\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xfe" * 4)]
    lists = [b"\xdd\xff\xff\xff\xff", b"\x97\x06\x00\x00\xdd\xff\xff\xff\xf0", b"\x92\x0e\xc6\xff\xff\xff\xff"]
    path.write_bytes(START + b"".join(claims + [seal(part) for part in lists]) * 2000)


def one_nested_frame(path: Path) -> None:
    path.write_bytes(START + seal(b"\x98\x0c\x00\x00" + b"\x91" * (MAX_PAYLOAD - 4)))


def starts_of_frames(path: Path) -> None:
    path.write_bytes(START + (MARKER + b"\xff\x7f") * (SIZE // 4))


def blocks(payload: Callable[[int], bytes]) -> Callable[[Path], None]:
    """A file of nothing but blocks, which have no head for each frame."""

    def write(path: Path) -> None:
        parts, size, at = [START], 0, 0
        while size < SIZE:
            parts.append(seal(join_payloads([payload(at + number) for number in range(MOST_PAYLOADS)])))
            size, at = size + len(parts[-1]), at + MOST_PAYLOADS
        path.write_bytes(b"".join(parts))

    return write


def small(frame: Callable[[int], Frame]) -> Callable[[Path], None]:
    """A file of nothing but small frames: an object costs more than its bytes."""

    def write(path: Path) -> None:
        parts, size = [START], 0
        while size < SIZE:
            parts.append(seal(codec.encode(frame(len(parts)))))
            size += len(parts[-1])
        path.write_bytes(b"".join(parts))

    return write


FILES: dict[str, Callable[[Path], None]] = {
    "zeros": bomb_of_zeros,
    "zeros behind a start": bomb_behind_a_sound_start,
    "steps": bomb_of_sound_steps,
    "window": bomb_with_a_huge_window,
    "lengths": lengths_near_the_largest,
    "nesting": one_nested_frame,
    "starts of frames": starts_of_frames,
    "small requests": small(lambda at: Request(at, "", 0, -1, 0, 0, 0)),
    "blocks of what is no frame": blocks(lambda at: b"none, and not at all"),
    "blocks of small samples": blocks(lambda at: codec.encode(Memory(at, "as small as can be"))),
    "blocks of steps": blocks(lambda at: codec.encode(Step(at, STEP_TIMES, -1, b"", 0, 0, 0, 0, 0, 0))),
    "small visible": small(lambda at: Visible(at, 0)),
    "small admissions": small(lambda at: Admit(at, at, at % 64, 0, 0, 0, 0, 0, 0)),
    "small events": small(lambda at: Event(9, at, 0)),
    "small samples": small(lambda at: Memory(at, "")),
    "small rosters": small(lambda at: Roster(at, 0, [], [])),
    "rosters": small(lambda at: Roster(at, 0, [n for slot in range(9999) for n in (slot, slot)], [0] * 9999)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the highest resident memory of a process")
@pytest.mark.parametrize("kind", FILES)
def test_memory_and_time_are_bounded_by_the_size_of_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.cbt"
    FILES[kind](path)
    told = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    peak, seconds, said = told.stdout.split()
    size = path.stat().st_size
    assert int(peak) <= 10 * size + 64_000_000, f"{int(peak) / 1e6:.0f} MB for {size / 1e6:.2f} MB: {said}"
    assert float(seconds) <= 2.0
    if path.read_bytes().startswith(b"\x28\xb5\x2f\xfd"):
        assert size < 200_000
        assert said in ("zstd-bomb", "trace-unreadable", "not-a-trace")
    else:
        assert said in ("damaged", "cut")
