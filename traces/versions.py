"""Old traces: one upgrader for each format version that is no longer the newest.

An upgrader turns one frame of version n, a msgpack array whose first element is the tag, into the same frame of
version n + 1, before it becomes a struct. The rest of the code knows only the newest version.

To change the format: raise :data:`~cbtrace.traces.schema.FORMAT_VERSION`, append an upgrader here that says *before*
and *after*, keep a recording of the old version in the tests, and describe the change in the format's changelog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from . import codec
from .schema import FORMAT_VERSION, Frame

RawFrame = list[Any]
_ROSTER = 6


def _from_1(frame: RawFrame) -> RawFrame:
    """Before: a roster was ``[6, step, next_serial, slots, serials]``. After: positions and delivered tokens follow.

    Version 1 did not record them, so both are -1, unknown, for each occupied slot. Version 2 also has a new kind of
    frame, :class:`~cbtrace.traces.schema.Overwritten`, and a packed form of steps; no trace of version 1 holds either.
    """
    if frame[0] != _ROSTER:
        return frame
    unknown = [-1] * len(frame[4])
    return [*frame[:5], unknown, unknown]


UPGRADERS: dict[int, Callable[[RawFrame], RawFrame] | None] = {1: _from_1, 2: None}
"""Version *from* which an upgrader leads to the next; None where every payload is as good in the next."""

_decode_any = msgspec.msgpack.Decoder(list).decode


def decoder(version: int) -> Callable[[bytes], Frame]:
    """The function that decodes a payload of a format version into a frame of the newest one.

    It raises :class:`msgspec.DecodeError` or :class:`RecursionError` for a payload that is no such frame.
    """
    steps = [upgrade for older in range(version, FORMAT_VERSION) if (upgrade := UPGRADERS[older]) is not None]
    if not steps:
        return codec.decode

    def decode(payload: bytes) -> Frame:
        raw = _decode_any(payload)
        try:
            for upgrade in steps:
                raw = upgrade(raw)
        except (IndexError, TypeError, ValueError, KeyError) as error:
            raise msgspec.DecodeError(f"not a frame of version {version}") from error
        frame: Frame = msgspec.convert(raw, Frame, builtin_types=(bytes,))
        return frame

    return decode
