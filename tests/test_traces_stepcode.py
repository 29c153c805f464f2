"""The packed parts of a step, there and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces.stepcode import pack_slots, pack_times, unpack_slots, unpack_times

deltas = st.one_of(st.integers(0, 2**24), st.integers(0, 2**33), st.integers(0, 2**40))
instants = st.tuples(st.integers(0, 2**60), deltas, deltas, deltas, deltas, deltas).map(
    lambda parts: [sum(parts[: count + 1]) for count in range(6)]
)


@given(st.lists(instants, max_size=20))
def test_times_come_back_as_they_were(steps: list[list[int]]) -> None:
    assert unpack_times([pack_times(*step) for step in steps]).tolist() == steps


@pytest.mark.parametrize(("longest", "size"), [(2**24 - 1, 23), (2**24, 28), (2**32 - 1, 28), (2**32, 48)])
def test_times_take_no_more_bytes_than_their_longest_part_needs(longest: int, size: int) -> None:
    assert len(pack_times(10**15, *[10**15 + longest] * 5)) == size


def test_times_that_run_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="backwards"):
        pack_times(5, 4, 6, 7, 8, 9)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_bytes_that_are_no_times_are_unknown_or_in_order(packed: list[bytes]) -> None:
    for row in unpack_times(packed).tolist():
        assert row == [-1] * 6 or (min(row) >= 0 and row == sorted(row))


@given(st.lists(st.sets(st.integers(0, 200)), min_size=1, max_size=20))
def test_decode_bits_come_back_as_they_were(steps: list[set[int]]) -> None:
    matrix = unpack_slots([pack_slots(slots) for slots in steps])
    assert [set(np.flatnonzero(row).tolist()) for row in matrix] == steps
