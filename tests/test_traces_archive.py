"""Compressed traces: they read as what they were made from, and come back byte for byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import zstandard

from cbtrace.traces import TraceError, TraceExistsError, UsageError, archive, open_trace
from cbtrace.traces.archive import compress_trace, decompress_trace
from cbtrace.traces.blocks import BLOCK
from cbtrace.traces.errors import CbtraceError
from cbtrace.traces.frames import MAX_PAYLOAD, PREAMBLE_BYTES, FrameScanner, seal
from cbtrace.traces.schema import TokenIds
from pinned_values import differences, values
from trace_builder import TraceBuilder, eventful

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from long_trace import write_long_trace
from long_workload import Plan

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    eventful(tmp_path / "run.cbt").close()
    return tmp_path / "run.cbt"


def long(path: Path, steps: int) -> Path:
    """A simulated schedule with everything that long runs have."""
    write_long_trace(path, Plan(steps))
    return path


def same(path: Path, other: Path) -> bool:
    """Whether two files are read as the same; the sizes of the files are not compared."""
    found, expected = values(open_trace(path)), values(open_trace(other))
    for each in (found, expected):
        each["recovery"].pop("bytes_total")
    return differences(found, expected) == []


@pytest.mark.parametrize("name", [path.name for path in sorted(FIXTURES.glob("version-3-*.cbt"))])
def test_a_compressed_trace_reads_as_the_trace_and_comes_back(tmp_path: Path, name: str) -> None:
    source, stored, back = FIXTURES / name, tmp_path / "run.cbt.zst", tmp_path / "run.cbt"
    compress_trace(source, stored)
    assert same(stored, source)
    decompress_trace(stored, back)
    if "blocks" not in name:  # that one is stored already
        assert back.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.cbt", "run.cbt.zst"]


def test_a_long_trace_takes_a_third_and_any_zstd_opens_it(tmp_path: Path) -> None:
    source = long(tmp_path / "run.cbt", 20_000)
    stored, opened = tmp_path / "run.cbt.zst", tmp_path / "opened.cbt"
    compress_trace(source, stored)
    alone = len(zstandard.compress(source.read_bytes(), 19))
    assert stored.stat().st_size < alone * 0.6
    opened.write_bytes(zstandard.ZstdDecompressor().stream_reader(stored.read_bytes()).read())
    with opened.open("rb") as file:
        file.seek(PREAMBLE_BYTES)
        payloads = [part[1] for part in FrameScanner(file.read, PREAMBLE_BYTES) if isinstance(part, tuple)]
    assert len(payloads) > 2 and {payload[0] for payload in payloads} == {BLOCK}
    assert max(map(len, payloads)) < 2_000_000
    assert same(opened, source)
    decompress_trace(opened, tmp_path / "back.cbt")
    assert (tmp_path / "back.cbt").read_bytes() == source.read_bytes()


def test_a_recording_that_was_cut_stays_what_it_is(run: Path, tmp_path: Path) -> None:
    cut = run.read_bytes()[:-70]
    run.write_bytes(cut)
    compress_trace(run, tmp_path / "run.cbt.zst")
    assert same(tmp_path / "run.cbt.zst", run)
    assert open_trace(tmp_path / "run.cbt.zst").recovery.status == "cut"
    decompress_trace(tmp_path / "run.cbt.zst", tmp_path / "back.cbt")
    assert (tmp_path / "back.cbt").read_bytes() == cut


@pytest.mark.parametrize("start", [3, 400])
def test_a_damaged_trace_is_refused_and_nothing_is_written(run: Path, tmp_path: Path, start: int) -> None:
    damaged = bytearray(run.read_bytes())
    damaged[start] ^= 1
    run.write_bytes(damaged)
    for copy in (compress_trace, decompress_trace):
        with pytest.raises(TraceError, match="is damaged at byte") as caught:
            copy(run, tmp_path / "out")
        assert caught.value.slug == "copy-damaged"
    assert [path.name for path in tmp_path.iterdir()] == ["run.cbt"]


@pytest.mark.parametrize("payload", [b"", b"\xb8no block at all"])
def test_a_frame_that_is_none_is_refused(run: Path, tmp_path: Path, payload: bytes) -> None:
    run.write_bytes(run.read_bytes() + seal(payload))
    with pytest.raises(TraceError, match="holds a frame that is none"):
        compress_trace(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run.cbt"]


@pytest.mark.parametrize("missing", [1, 4, 20, 1000, 10_000])
def test_a_compressed_trace_that_is_cut_is_refused_as_well(tmp_path: Path, missing: int) -> None:
    stored = tmp_path / "run.cbt.zst"
    compress_trace(long(tmp_path / "run.cbt", 5_000), stored)
    stored.write_bytes(stored.read_bytes()[:-missing])
    for copy in (compress_trace, decompress_trace):
        with pytest.raises(TraceError, match=r"cut|damaged"):
            copy(stored, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    try:  # a block that is cut is lost as a whole
        assert open_trace(stored).recovery.status in ("cut", "damaged")
    except TraceError as error:
        assert "copy it again" in str(error)


def appended(path: Path, payloads: list[bytes]) -> bytes:
    """A trace with more frames, the end mark not among them."""
    with path.open("ab") as file:
        file.write(b"".join(map(seal, payloads)))
    return path.read_bytes()


@pytest.mark.parametrize(
    "payloads",
    [
        [bytes([0x91]) + bytes((1 << 20) + 5)],
        [bytes(MAX_PAYLOAD), bytes(MAX_PAYLOAD - 20), bytes(5)],
        [b"tiny"] * 40_000,
    ],
    ids=["longer than a block", "the longest frames", "too short for a block"],
)
def test_frames_that_fit_no_block_come_back_too(run: Path, tmp_path: Path, payloads: list[bytes]) -> None:
    before = appended(run, payloads)
    compress_trace(run, tmp_path / "run.cbt.zst")
    decompress_trace(tmp_path / "run.cbt.zst", tmp_path / "back.cbt")
    assert (tmp_path / "back.cbt").read_bytes() == before


def test_what_compresses_too_well_is_padded_so_that_it_is_read(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(5, 10)
    build.admit(request)
    build.write(TokenIds(0, bytes(8 << 20)))
    build.close()
    compress_trace(build.path, tmp_path / "run.cbt.zst")
    assert same(tmp_path / "run.cbt.zst", tmp_path / "run.cbt")
    stored = (tmp_path / "run.cbt.zst").read_bytes()
    opened = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True).read()
    (tmp_path / "opened.cbt").write_bytes(opened)
    assert same(tmp_path / "opened.cbt", tmp_path / "run.cbt")
    assert (len(opened) - (1 << 20)) / 20 <= len(stored) < len(opened) / 20


def test_a_compressed_trace_can_be_compressed_again(run: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    compress_trace(long(tmp_path / "long.cbt", 20_000), tmp_path / "once", progress=lambda *at: told.append(at))
    assert told == sorted(told) and told[-1][0] <= told[-1][1] == (tmp_path / "long.cbt").stat().st_size
    told.clear()
    compress_trace(tmp_path / "once", tmp_path / "twice", progress=lambda *at: told.append(at))
    assert told == []  # how much there is to come is not known
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "once").read_bytes()


def test_an_older_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cbtrace upgrade"):
        compress_trace(FIXTURES / "version-2-synthetic.cbt", tmp_path / "out.cbt.zst")
    assert not list(tmp_path.iterdir())


def test_only_a_trace_is_replaced_and_only_when_asked(run: Path, tmp_path: Path) -> None:
    stored = tmp_path / "run.cbt.zst"
    compress_trace(run, stored)
    with pytest.raises(TraceExistsError, match="allow overwriting"):
        compress_trace(run, stored)
    compress_trace(run, stored, overwrite=True)
    decompress_trace(stored, run, overwrite=True)
    assert open_trace(run).recovery.whole
    for content in (b"mine", zstandard.compress(b"mine " * 100)):
        (tmp_path / "notes").write_bytes(content)
        for copy in (compress_trace, decompress_trace):
            with pytest.raises(TraceExistsError, match="not a trace"):
                copy(run, tmp_path / "notes", overwrite=True)
        assert (tmp_path / "notes").read_bytes() == content


def test_what_does_not_come_back_is_not_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = archive.join_payloads
    monkeypatch.setattr(archive, "join_payloads", lambda payloads: joined(payloads[:-1]))
    with pytest.raises(CbtraceError, match="nothing was written") as caught:
        compress_trace(run, tmp_path / "run.cbt.zst")
    assert caught.value.slug == "compress-differs"
    assert [path.name for path in tmp_path.iterdir()] == ["run.cbt"]


def test_without_the_package_the_remedy_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match="cbtrace\\[zstd\\]") as caught:
        compress_trace(run, tmp_path / "run.cbt.zst")
    assert caught.value.slug == "zstd-missing"
