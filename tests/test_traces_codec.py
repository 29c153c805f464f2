"""Payloads: packed steps say the same as arrays do."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces.codec import decode, encode
from cbtrace.traces.frames import seal
from cbtrace.traces.schema import Step, StepDetail
from cbtrace.traces.stepcode import pack_slots, pack_times


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
    decode=st.binary(max_size=20),
    kv_free=near(16),
    kv_cached=near(16),
    waiting=near(13),
    active=near(11),
    stop=near(3),
    flags=near(5),
    graph=near(8),
    detail=st.one_of(st.none(), st.builds(StepDetail, chunks=st.binary(max_size=5))),
)


@given(steps)
def test_a_step_comes_back_as_it_was(step: Step) -> None:
    assert decode(encode(step)) == step


def plain(width: int, requests: int = 64) -> Step:
    instants = [10**14 + (number << 8 * width - 8) for number in range(6)]
    return Step(2**31, pack_times(*instants), 9_000_000, pack_slots(range(requests)), 9000, 900, 300, 64, 1, 3, 200)


def test_a_step_in_which_nothing_changes_is_small() -> None:
    assert len(seal(encode(plain(3)))) == 54
    assert len(seal(encode(plain(4)))) == 59


@pytest.mark.parametrize("size", range(40))
def test_a_packed_step_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encode(plain(3, requests=0))[: min(size, 38)])
