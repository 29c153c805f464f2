"""Damaged traces: all that is intact is read, nothing is guessed, and the report says what is gone."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.traces import Trace, TraceError, open_trace
from cbtrace.traces.codec import encode
from cbtrace.traces.frames import PREAMBLE_BYTES, preamble, seal
from cbtrace.traces.schema import Admit, Clock, Frame, Header, Notice, Roster, Severity, Step
from trace_builder import TraceBuilder, TrueMember, eventful


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> TraceBuilder:
    build = eventful(tmp_path_factory.mktemp("sound") / "run.cbt")
    build.close()
    return build


def bounds(build: TraceBuilder) -> list[int]:
    """Where each frame of the file starts, and where the last ends."""
    sizes = [len(seal(encode(frame))) for frame in build.frames]
    return [PREAMBLE_BYTES + sum(sizes[:count]) for count in range(len(sizes) + 1)]


def read(path: Path, data: bytes) -> Trace:
    path.write_bytes(data)
    return open_trace(path)


def every_table(trace: Trace) -> None:
    for name in ("steps", "step_requests", "requests", "tokens", "admissions", "events", "memory", "gpu"):
        getattr(trace, name)


def claims_only_what_is_true(trace: Trace, build: TraceBuilder) -> None:
    """Every row that the reader gives is in the truth; a position is right or unknown."""
    truth = {(member.step, member.request): member for member in build.truth}
    table = trace.step_requests
    for row in zip(*(getattr(table, field.name).tolist() for field in fields(TrueMember)), strict=True):
        got = TrueMember(*row)
        meant = truth[got.step, got.request]
        assert got.position in (meant.position, -1)
        assert (got.prefill, got.decode, got.recompute) == (meant.prefill, meant.decode, meant.recompute)
        assert (got.new_token, got.wasted) == (meant.new_token, meant.wasted)
    for row in range(len(trace.tokens.step)):
        times = build.token_times[int(trace.tokens.request[row])]
        assert trace.tokens.position[row] in (-1, times.index(int(trace.tokens.time_ns[row])) + 1)


def test_cut_anywhere(build: TraceBuilder, tmp_path: Path) -> None:
    data, starts = Path(build.path).read_bytes(), bounds(build)
    for at in range(starts[1], len(data)):
        trace = read(tmp_path / "cut.cbt", data[:at])
        whole = sum(start <= at for start in starts) - 1
        report = trace.recovery
        assert (report.status, report.frames_read) == ("cut", whole)
        assert (report.cut_at, report.bytes_dropped) == (starts[whole], at - starts[whole])
        last = max((frame.index for frame in build.frames[:whole] if isinstance(frame, Step)), default=-1)
        assert report.after_step == last
        assert str(last if last >= 0 else "no step") in report.messages[0]
        claims_only_what_is_true(trace, build)
        assert trace.steps.members_known.all()


def test_a_changed_byte_anywhere(build: TraceBuilder, tmp_path: Path) -> None:
    data, starts = Path(build.path).read_bytes(), bounds(build)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        trace = read(tmp_path / "changed.cbt", bytes(changed))
        every_table(trace)
        # A wrong length in the last frame cannot be told from a cut.
        assert trace.recovery.status == ("damaged" if trace.footer else "cut") or at >= starts[-2]
        assert trace.recovery.severity >= Severity.DATA_LOSS
        claims_only_what_is_true(trace, build)
        if at < PREAMBLE_BYTES:
            assert trace.recovery.frames_read == len(build.frames)
        else:
            assert trace.recovery.frames_read == len(build.frames) - 1
            (lost,) = trace.recovery.ranges
            assert lost.start in starts
            assert lost.start <= at < lost.end


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stretch_overwritten_taken_out_or_put_in(
    build: TraceBuilder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content, starts = Path(build.path).read_bytes(), bounds(build)
    first = data.draw(st.integers(PREAMBLE_BYTES, len(content) - 1))
    last = data.draw(st.integers(first + 1, min(len(content), first + 400)))
    filler = data.draw(st.sampled_from([bytes(last - first), b"", b"\xff" * 50, b"\xc1\xb7" * 30, content[first:last]]))
    damaged = content[:first] + filler + content[last:]
    if damaged == content:
        return
    trace = read(tmp_path_factory.mktemp("stretch") / "run.cbt", damaged)
    every_table(trace)
    touched = sum(start < last and end > first for start, end in pairwise(starts))
    assert len(build.frames) - touched <= trace.recovery.frames_read <= len(build.frames)
    assert trace.recovery.status == "damaged" or not trace.footer
    assert not trace.recovery.whole
    claims_only_what_is_true(trace, build)


@pytest.mark.parametrize("more", [b"\xc1", b"\xc1\xb7", b"\xc1\xb7\xff\x7f" + bytes(4), bytes(9)])
def test_bytes_behind_the_end_mark_are_damage(build: TraceBuilder, tmp_path: Path, more: bytes) -> None:
    trace = read(tmp_path / "more.cbt", Path(build.path).read_bytes() + more)
    assert (trace.recovery.status, trace.recovery.bytes_dropped) == ("damaged", len(more))
    assert trace.recovery.severity == Severity.DATA_LOSS
    assert trace.recovery.frames_read == len(build.frames)


def assemble(frames: list[Frame]) -> bytes:
    return preamble() + b"".join(seal(encode(frame)) for frame in frames)


def test_each_frame_taken_out_is_noticed(build: TraceBuilder, tmp_path: Path) -> None:
    """No bytes are damaged here: only counting can tell."""
    for place, gone in enumerate(build.frames[:-1]):
        trace = read(tmp_path / "out.cbt", assemble(build.frames[:place] + build.frames[place + 1 :]))
        assert trace.recovery.status == "damaged", gone
        every_table(trace)
        claims_only_what_is_true(trace, build)
        if isinstance(gone, Step):
            assert trace.recovery.steps_missing == 1
        if isinstance(gone, Admit):
            # Nothing behind the last one counts admissions; its steps must be in doubt all the same.
            assert trace.recovery.admissions_lost == (gone.serial < build.serial - 1)
            assert gone.serial < build.serial - 1 or not trace.steps.members_known.all()
        if isinstance(gone, Header):
            assert trace.header.name == ""


def test_a_frame_in_another_place_is_noticed(build: TraceBuilder, tmp_path: Path) -> None:
    """Wherever it matters who was in which slot, or which step was first."""
    sound = build.frames
    places = [at for at, frame in enumerate(sound) if isinstance(frame, Step | Roster | Header)]
    for place in places[:-1]:
        for other in (0, len(sound) - 1):
            if abs(other - place) > 12:
                moved = [*sound[:place], *sound[place + 1 :]]
                moved.insert(other, sound[place])
                trace = read(tmp_path / "moved.cbt", assemble(moved))
                assert "frames-reordered" in [finding.slug for finding in trace.recovery.findings], (place, other)
                assert trace.recovery.status == "damaged"
                claims_only_what_is_true(trace, build)


def test_a_roster_behind_the_moves_of_its_own_step_brings_nobody_back(build: TraceBuilder, tmp_path: Path) -> None:
    for place, roster in enumerate(build.frames):
        if isinstance(roster, Roster):
            for later in range(place + 1, len(build.frames)):
                frames = [*build.frames[:place], *build.frames[place + 1 : later + 1], roster]
                trace = read(tmp_path / "late.cbt", assemble([*frames, *build.frames[later + 1 :]]))
                claims_only_what_is_true(trace, build)


def test_frames_repeated_or_out_of_order_change_nothing(build: TraceBuilder, tmp_path: Path) -> None:
    sound = open_trace(build.path)
    twice = read(tmp_path / "twice.cbt", assemble([frame for frame in build.frames for _ in range(2)]))
    assert twice.recovery.frames_repeated == len(build.frames)
    steps = [frame for frame in build.frames if isinstance(frame, Step)]
    others = [frame for frame in build.frames if not isinstance(frame, Step)]
    shuffled = read(tmp_path / "shuffled.cbt", assemble([*others, *reversed(steps)]))
    for trace in (twice, shuffled):
        for name in ("steps", "step_requests", "tokens", "events"):
            mine, other = getattr(trace, name), getattr(sound, name)
            for field in fields(mine):
                assert np.array_equal(getattr(mine, field.name), getattr(other, field.name)), field.name


def test_a_roster_finds_a_lost_admission_again(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt", roster_every=4)
    stays, lost = build.submit(4), build.submit(4, 20)
    build.admit(stays)
    build.step({stays: 4})
    build.admit(lost)
    build.step({stays: 1, lost: 4})
    for _ in range(8):
        build.step([stays, lost])
    build.close()
    frames = [frame for frame in build.frames if not (isinstance(frame, Admit) and frame.request == lost.ordinal)]
    trace = read(tmp_path / "lost.cbt", assemble(frames))
    claims_only_what_is_true(trace, build)
    assert trace.recovery.admissions_lost == 1
    # Step 1 names it itself, as a chunk; steps 2 and 3 only have a bit in a slot; from the roster on all is known.
    assert trace.steps.members_known.tolist() == [True, True, False, False, *[True] * 6]
    assert trace.steps.members.tolist() == [1, *[2] * 9]
    assert trace.steps.kv_read.tolist()[2:4] == [-1, -1]
    named = trace.step_requests.step[trace.step_requests.request == lost.ordinal]
    assert named.tolist() == [1, 4, 5, 6, 7, 8, 9]
    confirmed = trace.step_requests.step[trace.step_requests.request == stays.ordinal]
    assert confirmed.tolist() == list(range(10))


def test_whoever_was_in_a_slot_is_not_taken_for_its_next_occupant(tmp_path: Path) -> None:
    """The end of one request and the admission of the next into its slot are lost together."""
    build = TraceBuilder(tmp_path / "run.cbt")
    old = build.submit(2, 30)
    build.admit(old)
    build.step({old: 2})
    build.step([old])
    keep = len(build.frames)
    build.finish(old)
    new = build.submit(2, 30)
    build.admit(new)
    build.step({new: 2})
    lost = slice(keep, len(build.frames))
    for _ in range(3):
        build.step([new])
    build.close()
    data = bytearray(Path(build.path).read_bytes())
    starts = bounds(build)
    data[starts[lost.start] : starts[lost.stop]] = bytes(starts[lost.stop] - starts[lost.start])
    trace = read(tmp_path / "lost.cbt", bytes(data))
    claims_only_what_is_true(trace, build)
    assert trace.steps.members_known.tolist() == [True, True, False, False, False]


def test_an_end_does_not_hide_that_an_admission_before_it_is_missing(tmp_path: Path) -> None:
    """Whole frames are gone and no byte is damaged: only the next count of admissions tells, and it came late."""
    build = TraceBuilder(tmp_path / "run.cbt")
    old, other = build.submit(2, 30), build.submit(2, 30)
    build.admit(old)
    build.admit(other)
    build.step({old: 2, other: 2})
    build.step([old, other])
    keep = len(build.frames)
    build.finish(old)
    new = build.submit(2, 30)
    build.admit(new)
    build.step({new: 2, other: 1})
    lost = slice(keep, len(build.frames))
    build.step([new, other])
    build.finish(other)
    build.step([new])
    late = build.submit(2, 30)
    build.admit(late)
    build.step({late: 2, new: 1})
    build.close()
    trace = read(tmp_path / "lost.cbt", assemble(build.frames[: lost.start] + build.frames[lost.stop :]))
    claims_only_what_is_true(trace, build)
    assert trace.recovery.admissions_lost == 1


def test_tokens_behind_steps_that_stay_unclear_to_the_end_are_not_numbered(tmp_path: Path) -> None:
    """No step from the lost admission on is known whole; the last ones name one request as a chunk all the same."""
    build = TraceBuilder(tmp_path / "run.cbt")
    known, lost = build.submit(2, 30), build.submit(2, 30)
    build.admit(known)
    build.step({known: 2})
    build.admit(lost)
    build.step({lost: 2, known: 1})
    for _ in range(3):
        build.step([lost, known])
    build.soft_reset(known)
    build.admit(known)
    build.step({known: 7, lost: 1})
    build.close()
    frames = [frame for frame in build.frames if not (isinstance(frame, Admit) and frame.request == lost.ordinal)]
    steps = [frame for frame in frames if isinstance(frame, Step)]
    trace = read(tmp_path / "lost.cbt", assemble([frame for frame in frames if frame not in steps[2:4]]))
    claims_only_what_is_true(trace, build)
    last = int(trace.steps.index[-1])
    assert not trace.steps.members_known[-1]
    assert last in trace.tokens.step.tolist()
    assert trace.tokens.position[trace.tokens.step == last].tolist() == [-1]


def test_tokens_behind_a_gap_are_numbered_from_the_end(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    ends, runs = build.submit(2, 6), build.submit(2, 99)
    build.admit(ends)
    build.admit(runs)
    build.step({ends: 2, runs: 2})
    for _ in range(5):
        build.step([ends, runs])
    build.finish(ends)
    build.close()
    frames = [frame for frame in build.frames if not (isinstance(frame, Step) and frame.index == 2)]
    trace = read(tmp_path / "gap.cbt", assemble(frames))
    position = trace.tokens.position
    assert position[trace.tokens.request == ends.ordinal].tolist() == [1, 2, 4, 5, 6]
    assert position[trace.tokens.request == runs.ordinal].tolist() == [1, 2, -1, -1, -1]
    assert trace.requests.generated.tolist() == [6, 5]


@pytest.mark.parametrize(
    ("reason", "status", "slugs"),
    [
        ("closed", "clean", []),
        ("disk_full", "stopped", ["stopped-disk-full"]),
        ("max_size", "stopped", ["stopped-max-size"]),
        ("recorder_error", "stopped", ["stopped-recorder-error"]),
        ("io_error", "stopped", ["stopped-io-error"]),
        ("moonlight", "stopped", ["stopped"]),
    ],
)
def test_how_a_recording_ended_is_told(tmp_path: Path, reason: str, status: str, slugs: list[str]) -> None:
    report = TraceBuilder(tmp_path / "run.cbt").close(reason).recovery
    assert report.status == status
    assert [finding.slug for finding in report.findings] == slugs
    assert report.cut_at == -1


def test_a_recording_that_was_not_closed_says_so(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    build.writer.close()
    report = open_trace(build.path).recovery
    assert (report.status, report.findings[0].slug) == ("cut", "unfinished")
    assert report.cut_at == report.bytes_total == Path(build.path).stat().st_size


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93\x0c\x00" + b"\xcf" + b"\xff" * 8,  # a time beyond 63 bits
        b"\x98\x0c\x00\x00" + b"\x91" * 100_000,  # nested deeply, in a field that nobody knows
        b"\x95\x06\x00\x00\xdd\xff\xff\xff\xff",  # a list that claims four billion slots
        encode(Admit(1 << 40, 0, 1 << 30, 0, 0, 0, 0, 0, 0)),  # a slot that no engine has
        encode(Admit(9, 0, 0, 0, 0, 0, 1 << 62, 0, 0)),  # KV entries beyond any memory
        encode(Roster(0, 1, [0], [0])),  # a slot without a request
        encode(Roster(0, 2, [0, 0, 1, 0], [0, 1])),  # a request in two slots
        encode(Roster(0, 1, [0, 0], [0], [1 << 62], [0])),
        encode(Clock(-1 << 63, 0)),
        b"\x93\x63\x00\x00",  # a frame of an unknown kind
        b"",
    ],
)
def test_an_impossible_frame_is_skipped_and_counted(build: TraceBuilder, tmp_path: Path, payload: bytes) -> None:
    trace = read(tmp_path / "odd.cbt", Path(build.path).read_bytes() + seal(payload))
    every_table(trace)
    assert trace.recovery.status == "damaged"
    assert [finding.slug for finding in trace.recovery.findings] == ["frames-unreadable"]
    claims_only_what_is_true(trace, build)


def test_huge_numbers_of_requests_cost_no_memory(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    build.write(Admit(0, 4_000_000_000, 0, 0, 0, 0, 0, 0, 0))
    build.step()
    trace = build.close()
    assert len(trace.requests.id) == 1
    assert trace.admissions.request.tolist() == [0]


def test_unknown_fields_at_the_end_of_a_frame_are_ignored(build: TraceBuilder, tmp_path: Path) -> None:
    longer = b"\x96\x0f\x05\xa4slug\x00\xa4text" + b"\xc0"
    trace = read(tmp_path / "longer.cbt", Path(build.path).read_bytes() + seal(longer))
    assert trace.notices == [Notice(5, "slug", 0, "text")]
    assert trace.recovery.whole


@settings(max_examples=200, deadline=None)
@given(
    content=st.binary(max_size=2000), prefix=st.sampled_from([b"", preamble(), preamble() + seal(b"\x93\x0c\x00\x00")])
)
def test_random_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, prefix: bytes
) -> None:
    path = tmp_path_factory.mktemp("random") / "run.cbt"
    try:
        trace = read(path, prefix + content)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    every_table(trace)
    assert not trace.recovery.whole
