"""Frames to payloads and back.

A payload is a msgpack array (:mod:`.schema`), or has a form of its own, told by its first byte, which starts no msgpack
array: most steps (:mod:`.packed_steps`), most frames of requests (:mod:`.packed_requests`), and many payloads in one
(:mod:`.blocks`), which are no frame themselves.
"""

from __future__ import annotations

import msgspec

from . import packed_requests, packed_steps
from .schema import Frame, Step

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def encode(frame: Frame | bytes) -> bytes:
    """The payload of a frame; of a step that :func:`~.packed_steps.pack_step` packed, itself."""
    if isinstance(frame, bytes):
        return frame
    if isinstance(frame, Step):
        return packed_steps.pack(frame) or _encode(frame)
    return packed_requests.pack(frame) or _encode(frame)


def is_step(frame: Frame | bytes) -> bool:
    """Whether a frame is a step, packed already or not."""
    return type(frame) is bytes or type(frame) is Step


def decode(payload: bytes) -> Frame:
    """The frame of a payload.

    Raises:
        msgspec.DecodeError: it is none.
        UnicodeDecodeError: it is none: a text in it is not UTF-8.
        RecursionError: it is none, and nested without end.
    """
    form = payload[0] if payload else -1
    if form in packed_steps.FORMS:
        return packed_steps.unpack(payload)
    if form in packed_requests.FORMS:
        return packed_requests.unpack(payload)
    frame: Frame = _decode(payload)
    return frame
