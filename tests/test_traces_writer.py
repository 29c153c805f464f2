"""The writer: what is on disk, and when; what it refuses to touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cbtrace.traces import TraceExistsError, TraceWriter, open_trace
from cbtrace.traces.frames import MAX_PAYLOAD, PREAMBLE_BYTES
from cbtrace.traces.schema import Clock, Footer, Step, TokenIds
from cbtrace.traces.stepcode import pack_times
from trace_builder import TraceBuilder, header

KILLED = """
import sys
from cbtrace.traces import TraceWriter
from trace_builder import header
from cbtrace.traces.schema import Clock
writer = TraceWriter(sys.argv[1])
writer.write(header())
count = 0
while True:
    writer.write(Clock(count, count))
    print(count, flush=True)
    count += 1
"""


def test_every_frame_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    with TraceWriter(path) as writer:
        writer.write(header())
        for count in range(5):
            writer.write(Clock(count, count))
            assert path.stat().st_size == writer.bytes_written
            assert len(open_trace(path).clocks) == count + 1
        assert writer.frames == 6


def test_a_killed_process_leaves_all_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    trace = open_trace(path)
    assert len(trace.clocks) > seen[-1]
    assert [clock.t_ns for clock in trace.clocks] == list(range(len(trace.clocks)))
    assert trace.recovery.status == "cut"


def test_threads_do_not_mix_their_frames(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"

    def work(number: int) -> None:
        for count in range(200):
            writer.write(Clock(number, count))

    with TraceWriter(path) as writer:
        writer.write(header())
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    clocks = open_trace(path).clocks
    for number in range(4):
        assert [clock.wall_ns for clock in clocks if clock.t_ns == number] == list(range(200))


def test_an_existing_trace_is_kept_unless_overwriting_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    TraceBuilder(path, name="old").close()
    before = path.read_bytes()
    with pytest.raises(TraceExistsError, match="exists already"):
        TraceWriter(path)
    assert path.read_bytes() == before
    TraceWriter(path, overwrite=True).close()
    assert path.stat().st_size == PREAMBLE_BYTES


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_is_no_trace_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    with pytest.raises(TraceExistsError, match="not a trace"):
        TraceWriter(path, overwrite=overwrite)
    assert path.read_text() == "years of work"
    with pytest.raises(TraceExistsError, match="not a regular file"):
        TraceWriter(tmp_path, overwrite=overwrite)


def test_what_the_system_refuses_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TraceWriter(tmp_path / "no such folder" / "run.cbt")


@pytest.mark.parametrize("limit", range(1000, 1040))
def test_a_full_disk_leaves_whole_frames_and_the_reason(tmp_path: Path, limit: int) -> None:
    resource = pytest.importorskip("resource", reason="file-size limits exist on POSIX only")
    path = tmp_path / "run.cbt"
    child = os.fork()
    if child == 0:  # the limit holds for a whole process, so a child hits it
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        writer = TraceWriter(path)
        writer.write(header())
        try:
            for index in range(10_000):
                writer.write(Step(index, pack_times(*range(index, index + 6)), -1, b"", 0, 0, 0, 0, 0, 0))
        except OSError:
            writer.write(Footer(1, "disk_full", index, 0, writer.frames + 1, 0, 0, 0))
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    report = open_trace(path).recovery
    assert limit - 120 < path.stat().st_size <= limit
    assert report.status == "stopped"
    assert [finding.slug for finding in report.findings] == ["stopped-disk-full", "engine-missing"]
    assert report.after_step == report.frames_read - 3 > 5


def test_a_frame_beyond_the_limit_is_refused_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    with TraceWriter(path) as writer:
        writer.write(header())
        with pytest.raises(ValueError, match="longer"):
            writer.write(TokenIds(0, bytes(MAX_PAYLOAD)))
        writer.write(Clock(1, 2))
    assert len(open_trace(path).clocks) == 1


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.cbt")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(Clock(1, 2))
