"""The compact forms of the frames that every request has: fixed records instead of msgpack arrays.

The first byte of a payload, its *form*, tells which; it starts no msgpack array. Little-endian, instants in 6 bytes;
zero bytes at the end of an admission are left out:

==== ============ ========================================================================================
form frame        content
==== ============ ========================================================================================
176  ``Request``  request 4, prompt tokens 2, limit 2, submitted 6, flags 1, hash 8, id
177  ``Request``  the same, with the planned instant 6 in front of the hash
178  ``Visible``  request 4, instant 6
179  ``Admit``    serial 4, request 4, slot 2, step 4, instant 6, residency 4, start 4, prefix hit 4, computed 4
180  ``End``      request 4, instant 6, step 4, reason 1, tokens 2, blocks 2, hash 8
==== ============ ========================================================================================

A frame with anything else in it (an incarnation, a parent, an error, a number that does not fit) is an array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from .schema import Admit, End, Request, Visible

_REQUEST = struct.Struct("<BIHHIHB8s")
_PLANNED = struct.Struct("<BIHHIHBIH8s")
_VISIBLE = struct.Struct("<BIIH")
_ADMIT = struct.Struct("<BIIHIIHIIII")
_ADMIT_LEAST = 21
"""Bytes of an admission up to its instant: the rest may be left out."""
_END = struct.Struct("<BIIHIBHH8s")
_HASH = 8


def _halves(t_ns: int) -> tuple[int, int]:
    return t_ns & 0xFFFFFFFF, t_ns >> 32


def _pack_request(frame: Request) -> bytes | None:
    if len(frame.prompt_hash) != _HASH or (frame.incarnation, frame.parent, frame.generated_before) != (0, -1, 0):
        return None
    head = (frame.request, frame.prompt_tokens, frame.max_new_tokens, *_halves(frame.submit_ns), frame.flags)
    if frame.planned_ns == -1:
        packed = _REQUEST.pack(176, *head, frame.prompt_hash)
    else:
        packed = _PLANNED.pack(177, *head, *_halves(frame.planned_ns), frame.prompt_hash)
    return packed + frame.id.encode()


def _pack_visible(frame: Visible) -> bytes:
    return _VISIBLE.pack(178, frame.request, *_halves(frame.t_ns))


def _pack_admit(frame: Admit) -> bytes:
    where = (frame.serial, frame.request, frame.slot, frame.step, *_halves(frame.t_ns))
    packed = _ADMIT.pack(179, *where, frame.residency, frame.start, frame.prefix_hit, frame.computed)
    return packed[:_ADMIT_LEAST] + packed[_ADMIT_LEAST:].rstrip(b"\0")


def _pack_end(frame: End) -> bytes | None:
    if len(frame.output_hash) != _HASH or frame.error:
        return None
    numbers = (frame.step, frame.reason, frame.generated, frame.blocks)
    return _END.pack(180, frame.request, *_halves(frame.t_ns), *numbers, frame.output_hash)


_PACK: dict[type[msgspec.Struct], Callable[[Any], bytes | None]] = {
    Request: _pack_request,
    Visible: _pack_visible,
    Admit: _pack_admit,
    End: _pack_end,
}


def pack(frame: msgspec.Struct) -> bytes | None:
    """The payload of a frame; None if it has no compact form."""
    packing = _PACK.get(type(frame))
    try:
        return packing(frame) if packing is not None else None
    except struct.error:  # a number is too large, or unknown
        return None


def _request(payload: bytes) -> Request:
    _, request, prompt, limit, low, high, flags, prompt_hash = _REQUEST.unpack_from(payload)
    name = payload[_REQUEST.size :].decode()
    return Request(request, name, 0, -1, prompt, limit, low | high << 32, flags, -1, prompt_hash)


def _planned(payload: bytes) -> Request:
    _, request, prompt, limit, low, high, flags, plan, plan_high, prompt_hash = _PLANNED.unpack_from(payload)
    name, planned = payload[_PLANNED.size :].decode(), plan | plan_high << 32
    return Request(request, name, 0, -1, prompt, limit, low | high << 32, flags, planned, prompt_hash)


def _visible(payload: bytes) -> Visible:
    _, request, low, high = _VISIBLE.unpack(payload)
    return Visible(request, low | high << 32)


def _admit(payload: bytes) -> Admit:
    if len(payload) < _ADMIT_LEAST:
        raise msgspec.DecodeError("a packed admission is too short")
    _, serial, request, slot, step, low, high, *rest = _ADMIT.unpack(payload.ljust(_ADMIT.size, b"\0"))
    return Admit(serial, request, slot, step, low | high << 32, *rest)


def _end(payload: bytes) -> End:
    _, request, low, high, step, reason, generated, blocks, output_hash = _END.unpack(payload)
    return End(request, low | high << 32, step, reason, generated, blocks, output_hash)


_UNPACK: dict[int, Callable[[bytes], Request | Visible | Admit | End]] = {
    176: _request,
    177: _planned,
    178: _visible,
    179: _admit,
    180: _end,
}
FORMS = frozenset(_UNPACK)


def unpack(payload: bytes) -> Request | Visible | Admit | End:
    """The frame of a payload whose first byte is one of :data:`FORMS`.

    Raises:
        msgspec.DecodeError: its length is wrong.
        UnicodeDecodeError: its text is none.
    """
    try:
        return _UNPACK[payload[0]](payload)
    except struct.error as error:
        raise msgspec.DecodeError("a packed frame has a wrong length") from error
