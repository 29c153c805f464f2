"""Reading a sound trace: the tables against a known truth; wrong files in one sentence."""

from __future__ import annotations

import os
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.traces import (
    EmptyTraceError,
    NotATraceError,
    Trace,
    TraceError,
    TraceNotFoundError,
    TraceVersionError,
    attribution,
    open_trace,
)
from cbtrace.traces.frames import preamble, seal
from cbtrace.traces.schema import FORMAT_VERSION, EndReason, EventKind, GraphKey, Memory
from trace_builder import CAPACITY, UNIT_BYTES, TraceBuilder, TrueMember, eventful


@pytest.fixture
def build(tmp_path: Path) -> TraceBuilder:
    return eventful(tmp_path / "run.cbt")


def members(trace: Trace) -> list[TrueMember]:
    columns = (getattr(trace.step_requests, field.name).tolist() for field in fields(TrueMember))
    return [TrueMember(*row) for row in zip(*columns, strict=True)]


def test_each_step_gave_each_request_what_it_did(build: TraceBuilder) -> None:
    trace = build.close()
    assert members(trace) == sorted(build.truth, key=lambda member: (member.step, member.request))
    assert trace.steps.members_known.all()


def test_every_delivered_token_has_its_number_and_its_time(build: TraceBuilder) -> None:
    trace = build.close()
    for request, times in build.token_times.items():
        mine = trace.tokens.request == request
        assert trace.tokens.time_ns[mine].tolist() == times
        assert trace.tokens.position[mine].tolist() == list(range(1, len(times) + 1))
        assert trace.requests.first_token_ns[request] == times[0]
        assert trace.requests.last_token_ns[request] == times[-1]


def test_the_life_of_each_request(build: TraceBuilder) -> None:
    requests = build.close().requests
    assert requests.id == ["req_0", "req_1", "req_2", "req_1__child#0", "req_1"]
    assert requests.incarnation.tolist() == [0, 0, 0, 0, 1]
    assert requests.parent.tolist() == [-1, -1, -1, 1, -1]
    assert requests.generated.tolist() == [6, 4, 3, 2, 2]
    assert requests.prefill_computed.tolist() == [20, 7, 22, 0, 5]
    assert requests.prefix_hit.tolist() == [0, 0, 8, 0, 0]
    assert requests.recompute_saved.tolist() == [4, 0, 0, 0, 0]
    assert requests.recomputed.tolist() == [18, 0, 0, 0, 0]
    assert requests.wasted.tolist() == [0, 0, 0, 1, 0]
    assert requests.soft_resets.tolist() == [1, 0, 0, 0, 0]
    assert requests.offloads.tolist() == [1, 0, 0, 0, 0]
    assert [EndReason(reason).name for reason in requests.end_reason] == [
        "LENGTH",
        "LENGTH",
        "LENGTH",
        "CANCELLED",
        "FAILED",
    ]
    assert requests.error == ["", "", "", "", "RuntimeError"]
    assert (requests.submit_ns < requests.visible_ns).all()
    assert (requests.visible_ns <= requests.admitted_ns).all()


def test_steps_sum_up_their_members(build: TraceBuilder) -> None:
    trace = build.close()
    steps = trace.steps
    for row, index in enumerate(steps.index.tolist()):
        mine = [member for member in build.truth if member.step == index]
        assert steps.members[row] == len(mine)
        assert steps.prefill_tokens[row] == sum(member.prefill for member in mine)
        assert steps.decode_tokens[row] == sum(member.decode for member in mine)
        assert steps.recompute_tokens[row] == sum(member.recompute for member in mine)
        assert steps.new_tokens[row] == sum(member.new_token for member in mine)
        assert steps.wasted_tokens[row] == sum(member.wasted for member in mine)
        assert steps.kv_read[row] == sum(member.position for member in mine)
    assert (steps.kv_used + steps.kv_free + steps.kv_cached == CAPACITY * UNIT_BYTES).all()
    assert steps.starved.tolist() == [0, 0, 1, *[0] * 8]


def test_events_keep_their_order_and_name_rows(build: TraceBuilder) -> None:
    events = build.close().events
    names = [EventKind(kind).name for kind in events.kind]
    assert names == ["FORK", "SOFT_RESET", "OFFLOAD", "RESTORE"]
    assert events.request.tolist() == [3, 0, 0, 0]
    assert events.blocks[0] == 1  # the parent of the fork


def test_padded_sizes_come_from_the_graph_key(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    build.write(GraphKey(1, False, 64, 16384))
    build.write(GraphKey(2, True, 4, 0))
    request = build.submit(10)
    build.admit(request)
    build.step({request: 10}, graph=1)
    build.step([request], graph=2)
    build.step([request])
    steps = build.close().steps
    assert steps.padded_queries.tolist() == [64, 4, 1]
    assert steps.padded_kv.tolist() == [16384, -1, 11]


def test_samples_keep_their_marks(build: TraceBuilder) -> None:
    build.write(Memory(5, "model_loaded", allocated=100))
    build.write(Memory(6, "", peak_allocated=200))
    memory = build.close().memory
    assert memory.mark == ["model_loaded", ""]
    assert memory.allocated.tolist() == [100, -1]
    assert memory.peak_allocated.tolist() == [-1, 200]
    assert memory.time_ns.tolist() == [5, 6]


def test_a_trace_with_no_steps_has_empty_tables(tmp_path: Path) -> None:
    trace = TraceBuilder(tmp_path / "run.cbt").close()
    assert trace.recovery.whole
    for table in (trace.steps, trace.step_requests, trace.tokens, trace.events, trace.admissions, trace.gpu):
        assert all(len(column) == 0 for column in astuple(table))


def test_reading_piece_by_piece_gives_the_same_rows(
    build: TraceBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build.close().step_requests
    monkeypatch.setattr(attribution, "_BLOCK_STEPS", 2)
    trace = open_trace(build.path)
    assert len(list(trace.iter_step_requests())) == 6
    for field in fields(whole):
        assert np.array_equal(getattr(trace.step_requests, field.name), getattr(whole, field.name)), field.name


actions = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7), st.integers(1, 9)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_any_course_of_events_is_read_as_it_was(tmp_path_factory: pytest.TempPathFactory, script: list[tuple]) -> None:
    build = TraceBuilder(tmp_path_factory.mktemp("any") / "run.cbt", roster_every=3)
    play(build, script)
    trace = build.close()
    assert trace.recovery.whole
    assert members(trace) == sorted(build.truth, key=lambda member: (member.step, member.request))
    for request, times in build.token_times.items():
        assert trace.tokens.time_ns[trace.tokens.request == request].tolist() == times


def play(build: TraceBuilder, script: list[tuple[int, int, int]]) -> None:
    """Let chance decide: submit, admit, step, soft reset, offload, finish."""
    for action, which, amount in script:
        live = [request for request in build.requests if request.slot >= 0]
        out = [request for request in build.requests if request.slot < 0 and request.held == 0 and not request.ended]
        if action == 0:
            build.submit(amount * 2, 8)
        elif action <= 2 and out:
            build.admit(out[which % len(out)])
        elif action == 3 and live:
            build.soft_reset(live[which % len(live)])
        elif action == 4 and live:
            build.finish(live[which % len(live)])
        elif live:
            one = live[which % len(live)]
            wasted = [one] if action == 9 and one.pending == 0 and one.generated else []
            build.step({request: min(max(request.pending, 1), amount) for request in live}, wasted=wasted)
            for request in wasted:
                build.finish(request)


def wrong_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", EmptyTraceError, "empty"),
        (preamble()[:9], EmptyTraceError, "empty"),
        (preamble(), EmptyTraceError, "no frames"),
        (b"PK\x03\x04 some archive", NotATraceError, "not a trace"),
        (b"Ein Brief.\n" * 1000, NotATraceError, "not a trace"),
        (preamble() + b"\xc1\xb7 garbage", TraceError, "no frame in it is intact"),
        (preamble() + seal(b"\x91\x63"), TraceError, "no frame in it is intact"),
        (preamble(0), TraceVersionError, "version 0"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, error: type[TraceError], words: str
) -> None:
    path = wrong_file(tmp_path / "run.cbt", content)
    with pytest.raises(error, match=words) as caught:
        open_trace(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path} ")


def test_a_newer_version_is_refused_before_anything_else_is_read(tmp_path: Path) -> None:
    path = wrong_file(tmp_path / "run.cbt", preamble(FORMAT_VERSION + 40) + b"what a later version thought of")
    with pytest.raises(TraceVersionError) as caught:
        open_trace(path)
    assert (caught.value.found, caught.value.supported) == (FORMAT_VERSION + 40, FORMAT_VERSION)
    assert f"version {FORMAT_VERSION + 40}" in str(caught.value)
    assert f"1 to {FORMAT_VERSION}" in str(caught.value)


def test_a_version_that_never_was_is_not_called_new(tmp_path: Path) -> None:
    with pytest.raises(TraceVersionError) as caught:
        open_trace(wrong_file(tmp_path / "run.cbt", preamble(0)))
    assert caught.value.slug == "trace-version-unknown"
    assert "newer" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="no trace"):
        open_trace(tmp_path / "absent.cbt")
    with pytest.raises(TraceNotFoundError, match="folder"):
        open_trace(tmp_path)
    os.mkfifo(tmp_path / "pipe.cbt")
    with pytest.raises(TraceNotFoundError, match="regular file"):
        open_trace(tmp_path / "pipe.cbt")
