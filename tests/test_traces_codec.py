"""Payloads: packed frames say the same as arrays do."""

from __future__ import annotations

from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces import packed_requests
from cbtrace.traces.codec import decode, encode
from cbtrace.traces.frames import seal
from cbtrace.traces.packed_steps import FORMS, PACKED_SIZE, pack_step, unpack_steps
from cbtrace.traces.schema import Admit, End, Frame, Request, Step, StepDetail, Visible
from cbtrace.traces.stepcode import pack_chunks, pack_slots, pack_times, unpack_times


def near(*bits: int) -> st.SearchStrategy[int]:
    """Numbers on both sides of what fits into so many bits, and unknown."""
    edges = [value for bit in bits for value in ((1 << bit) - 2, (1 << bit) - 1, 1 << bit)]
    return st.one_of(st.just(-1), st.just(0), st.sampled_from(edges), st.integers(0, 1 << max(bits)))


rows = st.lists(st.tuples(near(32).map(abs), *[near(16).map(abs)] * 2, st.integers(0, 3)), min_size=1, max_size=4)
chunks = st.one_of(
    st.binary(max_size=30),
    rows.filter(lambda found: all(max(row) < 1 << 32 for row in found)).map(pack_chunks),
)


steps = st.builds(
    Step,
    index=near(24, 32),
    times=st.one_of(
        st.builds(
            lambda start, distances: pack_times(*accumulate((start, *distances))),
            near(48).map(abs),
            st.lists(st.one_of(st.just(5), near(24, 32).map(abs)), min_size=5, max_size=5),
        ),
        st.binary(max_size=50),
    ),
    gpu_ns=near(24, 32),
    decode=st.one_of(st.binary(max_size=20), st.integers(0, 2100).map(lambda count: pack_slots(range(count)))),
    kv_free=near(16),
    kv_cached=near(16),
    waiting=near(13),
    active=near(11),
    stop=near(3),
    flags=near(5),
    graph=near(8),
    detail=st.one_of(
        st.none(),
        st.builds(StepDetail, chunks),
        st.builds(StepDetail, chunks, st.one_of(st.none(), st.binary(max_size=5))),
        st.builds(StepDetail, chunks, attempts=st.integers(1, 3)),
    ),
)


@given(steps)
def test_a_step_comes_back_as_it_was(step: Step) -> None:
    assert decode(encode(step)) == step


FORMS_OF_STEPS = {
    "nothing special": (160, {}),
    "dense": (161, {"dense": True}),
    "chunks": (162, {"rows": [(9, 512, 3, 1)]}),
    "dense, with chunks": (163, {"dense": True, "rows": [(9, 512, 3, 1), (10, 65_535, 65_535, 3)]}),
    "a long launch": (164, {"distances": (1, 2, 1 << 24, 4, 5)}),
    "a long wait, dense, with chunks": (
        171,
        {"dense": True, "rows": [(9, 1, 0, 1)], "distances": (1, 2, 3, 1 << 24, 5)},
    ),
    "a long preparation": (2, {"distances": (1, 1 << 24, 3, 4, 5)}),
    "two long distances, with chunks": (76, {"rows": [(9, 1, 0, 1)], "distances": (1, 2, 1 << 24, 1 << 24, 5)}),
    "a long device time, dense": (32, {"dense": True, "gpu_ns": (1 << 24) - 1}),
    "a high index": (0, {"index": 1 << 24}),
    "a chunk beyond 16 bits": (64, {"rows": [(9, 65_536, 0, 1)]}),
    "a distance of four seconds": (0x9D, {"distances": (1, 2, 1 << 32, 4, 5)}),
}


@pytest.mark.parametrize("name", FORMS_OF_STEPS)
def test_a_step_takes_the_smallest_form_that_fits(name: str) -> None:
    form, special = FORMS_OF_STEPS[name]
    decode_bits = 0xFF if special.get("dense") else 0xF0
    detail = StepDetail(pack_chunks(special["rows"])) if "rows" in special else None
    times = pack_times(*accumulate((10**9, *special.get("distances", (1, 2, 3, 4, 5)))))
    index, gpu_ns = special.get("index", 7), special.get("gpu_ns", 9_000_000)
    step = Step(index, times, gpu_ns, bytes([decode_bits]), 5, 6, 7, 8, 1, 3, 200, detail)
    payload = encode(step)
    assert payload[0] == form
    assert decode(payload) == step
    if form in FORMS:
        numbers, instants = unpack_steps(form, [payload, payload])
        assert numbers.tolist() == [[index, gpu_ns, 5, 6, 7, 8, 1, 3, 200]] * 2
        assert (instants == unpack_times([times])).all()


@pytest.mark.parametrize("at", range(6))
def test_a_step_whose_clock_runs_backwards_is_not_packed(at: int) -> None:
    instants = [10 * number for number in range(6)]
    assert pack_step(1, *instants, -1, 1, 5, 5, 0, 1, 0, 0, 0) is not None
    instants[at] = -1
    assert pack_step(1, *instants, -1, 1, 5, 5, 0, 1, 0, 0, 0) is None


def plain(distance: int = 1 << 16, requests: int = 64) -> Step:
    instants = [10**14 + number * distance for number in range(6)]
    return Step(2**24 - 1, pack_times(*instants), 9_000_000, pack_slots(range(requests)), 9000, 900, 300, 64, 1, 3, 200)


def test_a_step_in_which_nothing_changes_is_small() -> None:
    assert len(seal(encode(plain()))) == 44
    assert len(seal(encode(plain(1 << 24)))) == 51


def test_only_distances_that_need_it_are_wide() -> None:
    step = plain()
    step.times = pack_times(10**9, 10**9 + 5, 10**9 + 9, 10**9 + 50_000_000, 10**9 + 50_000_001, 10**9 + 50_000_002)
    assert len(seal(encode(step))) == 46  # the device time becomes as wide
    assert decode(encode(step)) == step


def test_a_slot_that_is_left_out_and_a_new_request_cost_what_they_say() -> None:
    step = plain()
    step.decode = pack_slots(slot for slot in range(64) if slot != 20)
    assert len(seal(encode(step))) == 44 + 8
    step.detail = StepDetail(chunks=pack_chunks([(70_000, 200, 0, 1)]))
    assert len(seal(encode(step))) == 44 + 8 + 1 + 9
    assert decode(encode(step)) == step


@given(st.sampled_from(sorted(FORMS)), st.binary(max_size=120))
def test_no_payload_of_a_packed_step_is_more_than_refused(form: int, rest: bytes) -> None:
    packed = bytes([form]) + rest
    try:
        step = decode(packed)
    except msgspec.DecodeError:
        assert len(packed) < PACKED_SIZE[form] or FORMS[form].chunk == 9
    else:
        assert isinstance(step, Step) and len(step.decode) <= 256


@pytest.mark.parametrize("size", range(37))
def test_a_packed_step_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encode(plain(requests=0))[:size])


hashes = st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=9))
requests = st.one_of(
    st.builds(
        Request,
        request=near(32),
        id=st.text(max_size=20),
        incarnation=st.sampled_from([0, 0, 0, 1]),
        parent=st.sampled_from([-1, -1, -1, 3]),
        prompt_tokens=near(16),
        max_new_tokens=near(16),
        submit_ns=near(32, 48),
        flags=near(8),
        planned_ns=st.one_of(near(32, 48), st.just(-7)),
        prompt_hash=hashes,
        generated_before=st.sampled_from([0, 0, 0, 7]),
    ),
    st.builds(Visible, near(32), near(32, 48)),
    st.builds(Admit, *map(near, (32, 32, 16, 32, 48, 32, 32, 32, 32))),
    st.builds(End, *map(near, (32, 48, 32, 8, 16, 16)), hashes, st.sampled_from(["", "", "ValueError"])),
)


@given(requests)
def test_a_frame_of_a_request_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


HASH = bytes(range(1, 9))
SMALL = [
    (Request(3, "req_3", 0, -1, 300, 64, 10**12, 1, -1, HASH), 29),
    (Request(3, "req_3", 0, -1, 300, 64, 10**12, 1, 10**12 + 5, HASH), 35),
    (Visible(3, 10**12), 11),
    (Admit(900_000, 300_000, 60, 10**6, 10**12, 0, 0, 0, 0), 21),
    (Admit(900_000, 300_000, 60, 10**6, 10**12, 0, 96, 96, 0), 30),
    (End(300_000, 10**12, 10**6, 2, 192, 40, HASH), 28),
]


@pytest.mark.parametrize(("frame", "size"), SMALL)
def test_frames_of_requests_are_small(frame: Frame, size: int) -> None:
    payload = encode(frame)
    assert payload[0] in packed_requests.FORMS and decode(payload) == frame
    assert len(payload) == size


@given(st.sampled_from(sorted(packed_requests.FORMS)), st.binary(max_size=60))
def test_no_payload_of_a_packed_request_is_more_than_refused(form: int, rest: bytes) -> None:
    try:
        frame = decode(bytes([form]) + rest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    else:
        assert isinstance(frame, Request | Visible | Admit | End)
