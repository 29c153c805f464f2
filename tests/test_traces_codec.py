"""Payloads: packed steps say the same as arrays do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces.codec import PACKED_SIZE, decode, encode, pack_plain
from cbtrace.traces.frames import seal
from cbtrace.traces.schema import Step, StepDetail
from cbtrace.traces.stepcode import pack_chunks, pack_slots, pack_times


def near(*bits: int) -> st.SearchStrategy[int]:
    """Numbers on both sides of what fits into so many bits, and unknown."""
    edges = [value for bit in bits for value in ((1 << bit) - 2, (1 << bit) - 1, 1 << bit)]
    return st.one_of(st.just(-1), st.sampled_from(edges), st.integers(0, 1 << max(bits)))


steps = st.builds(
    Step,
    index=near(32),
    times=st.one_of(
        st.builds(
            lambda start, delta: pack_times(*(start + delta * number for number in range(6))),
            near(48).map(abs),
            near(24, 32).map(abs),
        ),
        st.binary(max_size=50),
    ),
    gpu_ns=near(32),
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
        st.builds(StepDetail, chunks=st.binary(max_size=5)),
        st.builds(StepDetail, st.binary(min_size=1, max_size=30), st.one_of(st.none(), st.binary(max_size=5))),
        st.builds(StepDetail, st.binary(min_size=1, max_size=30), attempts=st.integers(1, 3)),
    ),
)


@given(steps)
def test_a_step_comes_back_as_it_was(step: Step) -> None:
    assert decode(encode(step)) == step


@given(
    instants=st.lists(st.one_of(near(24, 32, 48).map(abs)), min_size=6, max_size=6).map(sorted),
    numbers=st.tuples(*map(near, (32, 32, 16, 16, 13, 11, 3, 5, 8))),
    decode_bits=st.one_of(st.integers(0, 2**80), st.integers(0, 2100).map(lambda count: (1 << count) - 1)),
)
def test_a_plain_step_is_packed_as_the_step_that_it_is(
    instants: list[int], numbers: tuple[int, ...], decode_bits: int
) -> None:
    index, gpu_ns, *others = numbers
    packed = pack_plain(index, *instants, gpu_ns, decode_bits, *others)
    bits = decode_bits.to_bytes((decode_bits.bit_length() + 7) // 8, "little")
    payload = encode(Step(index, pack_times(*instants), gpu_ns, bits, *others))
    # It leaves numbers that do not fit to the general way.
    assert packed == (payload if payload[0] < 128 else None)


@pytest.mark.parametrize("at", range(6))
def test_a_plain_step_whose_clock_runs_backwards_is_not_packed(at: int) -> None:
    instants = [10 * number for number in range(6)]
    assert pack_plain(1, *instants, -1, 1, 5, 5, 0, 1, 0, 0, 0) is not None
    instants[at] = -1
    assert pack_plain(1, *instants, -1, 1, 5, 5, 0, 1, 0, 0, 0) is None


def plain(width: int, requests: int = 64) -> Step:
    instants = [10**14 + (number << 8 * width - 8) for number in range(6)]
    return Step(2**31, pack_times(*instants), 9_000_000, pack_slots(range(requests)), 9000, 900, 300, 64, 1, 3, 200)


def test_a_step_in_which_nothing_changes_is_small() -> None:
    assert len(seal(encode(plain(3)))) == 46
    assert len(seal(encode(plain(4)))) == 51


def test_only_distances_that_need_it_are_wide() -> None:
    step = plain(3)
    step.times = pack_times(10**9, 10**9 + 5, 10**9 + 9, 10**9 + 50_000_000, 10**9 + 50_000_001, 10**9 + 50_000_002)
    assert len(seal(encode(step))) == 47
    assert decode(encode(step)) == step


def test_a_slot_that_is_left_out_and_a_new_request_cost_what_they_say() -> None:
    step = plain(3)
    step.decode = pack_slots(slot for slot in range(64) if slot != 20)
    assert len(seal(encode(step))) == 46 + 8
    step.detail = StepDetail(chunks=pack_chunks([(70_000, 200, 0, 1)]))
    assert len(seal(encode(step))) == 46 + 8 + 1 + 13
    assert decode(encode(step)) == step


@given(st.binary(min_size=1, max_size=120))
def test_no_payload_of_a_packed_form_is_more_than_refused(payload: bytes) -> None:
    packed = bytes([payload[0] & 0x7F]) + payload[1:]
    try:
        step = decode(packed)
    except msgspec.DecodeError:
        assert len(packed) < PACKED_SIZE[packed[0]]
    else:
        assert isinstance(step, Step) and len(step.decode) <= 256


@pytest.mark.parametrize("size", range(40))
def test_a_packed_step_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encode(plain(3, requests=0))[: min(size, 38)])
