"""Many payloads in one come back byte for byte; malformed blocks are no more than refused."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces import blocks
from cbtrace.traces.blocks import MOST_PAYLOADS, each_payload, fit_a_block, join_payloads, split_block
from cbtrace.traces.frames import Damage, FrameScanner, seal

kinds = st.sampled_from([b"", b"\xa1", b"\xa1one", b"\xa1two", b"\x98\x0a", b"\xb8", b"\x00" * 40])
payload_lists = st.lists(
    st.one_of(st.binary(min_size=16, max_size=24), st.builds(bytes.__add__, kinds, st.binary(max_size=30))), min_size=1
).filter(fit_a_block)


def payloads_of(data: bytes) -> list[bytes | Damage]:
    return list(each_payload(FrameScanner(io.BytesIO(data).read)))


@given(payload_lists)
def test_payloads_come_back_as_they_were_and_in_their_order(payloads: list[bytes]) -> None:
    assert split_block(join_payloads(payloads)) == payloads


def test_a_table_is_stored_column_by_column() -> None:
    long = bytes(62)
    block = join_payloads([b"\xa1ABCD", b"\xb2abc", b"\xa1EFGH", b"\xb2def", long])
    assert block == (
        b"\xb8"
        + bytes([5, 0, 0, 0, 3, 0, 0, 0])  # five payloads, three tables
        + bytes([5, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0])  # of 5 bytes and of 4, two each
        + bytes([62, 0, 0, 0, 1, 0, 0, 0])
        + bytes([0, 1, 0, 1, 2, 0, 0, 0, 0, 0])  # in which table each of them is
        + b"\xa1\xa1AEBFCGDH"
        + b"\xb2\xb2adbecf"
        + long
    )


def test_a_reader_meets_the_payloads_and_not_the_blocks() -> None:
    second, third = b"\xa1second" + bytes(20), b"\xa1third" + bytes(20)
    data = seal(b"\xa1first") + seal(join_payloads([second, third])) + seal(b"\xa1last")
    assert payloads_of(data) == [b"\xa1first", second, third, b"\xa1last"]
    damaged = bytearray(data)
    damaged[30] ^= 1
    found = payloads_of(bytes(damaged))
    assert [found[0], found[2]] == [b"\xa1first", b"\xa1last"] and isinstance(found[1], Damage)


def test_a_block_in_a_block_is_not_opened() -> None:
    inner = join_payloads([b"\xa1" + bytes(20)])
    outer = refused_block([inner, b"\xa2" + bytes(20)])
    assert payloads_of(seal(outer)) == [outer]


@pytest.mark.parametrize("head", [b"", bytes(4), bytes(8), b"\1\0\0\0" + bytes(4), b"\xff" * 8, b"\1\0\0\0" * 2])
def test_a_block_with_an_impossible_head_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match="block"):
        split_block(b"\xb8" + head)


@given(st.binary(max_size=60))
def test_no_block_is_more_than_refused(rest: bytes) -> None:
    try:
        split_block(b"\xb8" + rest)
    except ValueError:
        assert payloads_of(seal(b"\xb8" + rest)) == [b"\xb8" + rest]


@given(payload_lists, st.data())
def test_a_block_that_was_changed_in_a_number_is_refused_or_holds_as_many_bytes(
    payloads: list[bytes], data: st.DataObject
) -> None:
    block = bytearray(join_payloads(payloads))
    at = data.draw(st.integers(1, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    try:
        found = split_block(bytes(block))
    except ValueError:
        return
    assert sum(map(len, found)) == sum(map(len, payloads))


LONG = bytes(16)


def refused_block(payloads: list[bytes]) -> bytes:
    """A block that no cbtrace writes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "fit_a_block", lambda payloads: True)
        return join_payloads(payloads)


def test_as_many_payloads_as_a_block_may_have() -> None:
    assert len(split_block(join_payloads([LONG] * MOST_PAYLOADS))) == MOST_PAYLOADS


@pytest.mark.parametrize(
    "payloads", [[LONG] * (MOST_PAYLOADS + 1), [LONG, LONG[1:]], [LONG * 2, b""], [LONG, b"\xb8" + LONG], []]
)
def test_payloads_that_make_no_block_are_refused(payloads: list[bytes]) -> None:
    """Too many of them, too short ones, and blocks: nobody writes such a block, and nobody reads one."""
    with pytest.raises(ValueError, match="fit a block"):
        join_payloads(payloads)
    if all(payloads) and payloads:
        with pytest.raises(ValueError, match=r"impossible|too short"):
            split_block(refused_block(payloads))
