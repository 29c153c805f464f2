"""Bytes to frames and back, and the way through damage."""

from __future__ import annotations

import io
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbtrace.traces import frames
from cbtrace.traces.frames import (
    MARKER,
    MAX_PAYLOAD,
    PREAMBLE_BYTES,
    Damage,
    FrameScanner,
    PayloadTooLargeError,
    nearest_version,
    preamble,
    read_preamble,
    seal,
)

payloads = st.lists(st.binary(max_size=300), min_size=1, max_size=12)


def scan(data: bytes) -> tuple[list[bytes], list[Damage]]:
    found = list(FrameScanner(io.BytesIO(data).read, PREAMBLE_BYTES))
    whole = [item[1] for item in found if not isinstance(item, Damage)]
    return whole, [item for item in found if isinstance(item, Damage)]


@given(payloads)
def test_what_is_sealed_is_found_again(parts: list[bytes]) -> None:
    assert scan(b"".join(map(seal, parts))) == (parts, [])


@pytest.mark.parametrize("chunk", [1, 7, 100])
@given(parts=payloads)
def test_where_the_file_is_divided_into_reads_makes_no_difference(chunk: int, parts: list[bytes]) -> None:
    before = frames._CHUNK
    frames._CHUNK = chunk
    try:
        assert scan(b"".join(map(seal, parts)) + MARKER) == (parts, scan(b"".join(map(seal, parts)) + MARKER)[1])
    finally:
        frames._CHUNK = before


@pytest.mark.parametrize("length", [b"\x85\x00", b"\x85\x80\x00"])
def test_a_length_with_more_bytes_than_it_needs_begins_no_frame(length: bytes) -> None:
    checksum = zlib.crc32(length + b"12345").to_bytes(4, "little")
    assert scan(MARKER + length + checksum + b"12345" + seal(b"next"))[0] == [b"next"]


def test_a_step_costs_seven_bytes_beyond_its_payload() -> None:
    assert len(seal(bytes(127))) == 127 + 7
    assert len(seal(bytes(128))) == 128 + 8


def test_the_longest_frame_is_read_and_a_longer_one_is_not_written() -> None:
    assert scan(seal(bytes(MAX_PAYLOAD)))[0] == [bytes(MAX_PAYLOAD)]
    with pytest.raises(PayloadTooLargeError, match="longer"):
        seal(bytes(MAX_PAYLOAD + 1))


@given(payloads, st.data())
def test_a_cut_costs_the_frame_it_touches(parts: list[bytes], data: st.DataObject) -> None:
    sealed = [seal(part) for part in parts]
    body = b"".join(sealed)
    at = data.draw(st.integers(0, len(body)))
    ends = [sum(map(len, sealed[: count + 1])) for count in range(len(sealed))]
    whole, damage = scan(body[:at])
    assert whole == parts[: sum(end <= at for end in ends)]
    assert damage == [] if at in (0, *ends) else [item.reason for item in damage] == ["cut"]


@given(payloads, st.data())
def test_a_changed_byte_costs_the_frame_it_is_in(parts: list[bytes], data: st.DataObject) -> None:
    sealed = [seal(part) for part in parts]
    body = bytearray(b"".join(sealed))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    hit = next(count for count in range(len(sealed)) if at < sum(map(len, sealed[: count + 1])))
    whole, damage = scan(bytes(body))
    assert whole == parts[:hit] + parts[hit + 1 :]
    assert len(damage) == 1
    assert damage[0].start <= PREAMBLE_BYTES + at < damage[0].end


@given(payloads, st.binary(min_size=1, max_size=200), st.data())
def test_garbage_between_frames_costs_none_of_them(parts: list[bytes], garbage: bytes, data: st.DataObject) -> None:
    sealed = [seal(part) for part in parts]
    place = data.draw(st.integers(0, len(sealed)))
    whole, damage = scan(b"".join(sealed[:place]) + garbage + b"".join(sealed[place:]))
    assert whole == parts
    assert sum(item.end - item.start for item in damage) == len(garbage)


@pytest.mark.parametrize("claim", [b"\xff\xff\xff\x07", b"\x80\x80\x80\x08", b"\x7f", b"\x00", b""])
def test_a_file_full_of_false_starts_is_given_up_in_time(claim: bytes) -> None:
    hostile = (MARKER + claim) * (3_000_000 // (2 + len(claim)))
    start = time.process_time()
    whole, damage = scan(seal(b"first") + hostile)
    assert time.process_time() - start < 2
    assert whole == [b"first"]
    assert damage[-1].end == PREAMBLE_BYTES + len(seal(b"first")) + len(hostile)


def test_a_length_near_the_limit_of_four_bytes_is_refused_at_once() -> None:
    assert scan(MARKER + b"\xff\xff\xff\x7f" + bytes(4) + seal(b"next"))[0] == [b"next"]


@given(st.integers(0, 2**32 - 1))
def test_the_preamble_names_its_version(version: int) -> None:
    assert read_preamble(preamble(version)) == version


@given(st.integers(0, PREAMBLE_BYTES - 1), st.integers(1, 255))
def test_a_preamble_with_one_wrong_byte_is_noticed_and_recognized(at: int, change: int) -> None:
    damaged = bytearray(preamble())
    damaged[at] ^= change
    assert read_preamble(bytes(damaged)) is None
    assert nearest_version(bytes(damaged)) == frames.FORMAT_VERSION
