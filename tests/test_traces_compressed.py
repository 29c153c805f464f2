"""Traces compressed as a whole."""

from __future__ import annotations

import random
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard

from cbtrace.traces import EmptyTraceError, NotATraceError, TraceError, TraceVersionError, open_trace
from cbtrace.traces.frames import preamble
from cbtrace.traces.schema import FORMAT_VERSION
from trace_builder import eventful


def compressed(path: Path, content: bytes) -> Path:
    path.write_bytes(zstandard.ZstdCompressor().compress(content))
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    build = eventful(tmp_path / "run.cbt")
    build.close()
    return tmp_path / "run.cbt"


@pytest.mark.parametrize("name", ["run.cbt.zst", "any name"])
def test_a_compressed_trace_reads_as_the_plain_one(plain: Path, tmp_path: Path, name: str) -> None:
    trace, other = open_trace(compressed(tmp_path / name, plain.read_bytes())), open_trace(plain)
    assert trace.recovery == other.recovery
    assert np.array_equal(trace.tokens.time_ns, other.tokens.time_ns)


def test_several_compressed_parts_are_one_trace(plain: Path, tmp_path: Path) -> None:
    content, path = plain.read_bytes(), tmp_path / "run.cbt.zst"
    parts = [zstandard.ZstdCompressor().compress(part) for part in (content[:10], content[10:700], content[700:])]
    path.write_bytes(b"".join(parts))
    assert open_trace(path).recovery.whole


def test_a_damaged_preamble_inside_is_found_again(plain: Path, tmp_path: Path) -> None:
    content = plain.read_bytes()
    trace = open_trace(compressed(tmp_path / "run.cbt.zst", b"XXXX" + content[16:]))
    assert trace.recovery.frames_read == open_trace(plain).recovery.frames_read
    assert trace.recovery.status == "damaged"


def test_a_cut_or_changed_compressed_trace_is_never_whole_by_mistake(plain: Path, tmp_path: Path) -> None:
    content, path = compressed(tmp_path / "whole.zst", plain.read_bytes()).read_bytes(), tmp_path / "run.cbt.zst"
    chance = random.Random(1)
    times = open_trace(plain).tokens.time_ns.tolist()
    for _ in range(300):
        damaged = bytearray(content[: chance.randrange(4, len(content))] if chance.random() < 0.5 else content)
        damaged[chance.randrange(4, len(damaged)) if len(damaged) > 4 else 0] ^= chance.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            trace = open_trace(path)
        except TraceError as error:
            assert "\n" not in str(error)
        else:
            # Some bits of the compressed form change nothing in what it holds.
            assert not trace.recovery.whole or trace.tokens.time_ns.tolist() == times


def test_a_compressed_trace_that_is_cut_anywhere_is_told_to_be(plain: Path, tmp_path: Path) -> None:
    """Also within its checksum, where all of the trace is there."""
    path = tmp_path / "run.cbt.zst"
    content = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(plain.read_bytes())
    for end in range(5, len(content)):
        path.write_bytes(content[:end])
        try:
            recovery = open_trace(path).recovery
        except TraceError as error:
            assert "copy it again" in str(error)
        else:
            assert "compressed-damaged" in {finding.slug for finding in recovery.findings}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", EmptyTraceError),
        (b"a letter" * 100, NotATraceError),
        (preamble(FORMAT_VERSION + 1), TraceVersionError),
    ],
)
def test_wrong_content_is_refused_as_if_it_were_not_compressed(
    tmp_path: Path, content: bytes, error: type[TraceError]
) -> None:
    with pytest.raises(error):
        open_trace(compressed(tmp_path / "run.cbt.zst", content))


def test_a_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as writer:
        writer.write(preamble())
        for _ in range(512):
            writer.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(TraceError, match="times its size"):
        open_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_without_the_package_the_remedy_is_named(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(tmp_path / "run.cbt.zst", plain.read_bytes())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match="cbtrace\\[zstd\\]"):
        open_trace(path)
    assert open_trace(plain).recovery.whole
