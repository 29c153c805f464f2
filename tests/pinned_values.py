"""All that a trace is read as, to be kept beside it: small tables in full, of long ones the sum and a hash of each
column."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from cbtrace.traces import Trace, codec
from cbtrace.traces.blocks import each_payload
from cbtrace.traces.frames import PREAMBLE_BYTES, Damage, FrameScanner
from cbtrace.traces.schema import Frame

IN_FULL = ("requests", "admissions", "events", "memory", "gpu")
HASHED = ("steps", "step_requests", "tokens")
LISTED = ("engines", "clocks", "notices")


def plain(column: Any) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [value.hex() if isinstance(value, bytes) else value for value in values]


def hashed(column: Any) -> str:
    """Of the column as 64-bit integers, whatever it is in memory."""
    return hashlib.blake2b(np.asarray(column).astype("<i8").tobytes(), digest_size=8).hexdigest()


def frames_of(path: Path) -> list[Frame]:
    """All frames of a sound trace of the newest version."""
    with path.open("rb") as file:
        file.seek(PREAMBLE_BYTES)
        found = list(each_payload(FrameScanner(file.read, PREAMBLE_BYTES)))
    return [codec.decode(part) for part in found if not isinstance(part, Damage)]


def told(frame: Struct) -> dict[str, Any]:
    """A frame by field: later versions may append some."""
    fields: dict[str, Any] = to_builtins(asdict(frame))
    return fields


def values(trace: Trace) -> dict[str, Any]:
    """See the module. It can be compared with what was written as JSON and read again."""

    def columns(name: str) -> dict[str, Any]:
        table = getattr(trace, name)
        return {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}

    report = trace.recovery
    return {
        "columns": {name: {key: plain(column) for key, column in columns(name).items()} for name in IN_FULL},
        "sums": {name: {key: int(column.sum()) for key, column in columns(name).items()} for name in HASHED},
        "hashes": {name: {key: hashed(column) for key, column in columns(name).items()} for name in HASHED},
        "token_ids": {str(row): [len(ids), hashed(ids)] for row, ids in trace.token_ids.items()},
        "kv_groups": {str(step): groups.tolist() for step, groups in trace.kv_groups().items()},
        "ordinals": trace.ordinals.tolist(),
        "header": told(trace.header),
        "footer": told(trace.footer) if trace.footer else {},
        "listed": {name: {str(at): told(one) for at, one in enumerate(getattr(trace, name))} for name in LISTED},
        "graph_keys": {str(number): told(key) for number, key in trace.graph_keys.items()},
        "counts": {name: len(getattr(trace, name)) for name in (*LISTED, "graph_keys", "token_ids")},
        "recovery": {
            "status": report.status,
            "frames_read": report.frames_read,
            "bytes_total": report.bytes_total,
            "steps_overwritten": report.steps_overwritten,
            "findings": [finding.slug for finding in report.findings],
        },
    }


def write(path: Path, kept: dict[str, Any]) -> None:
    """As JSON, a line a column."""

    def lines(part: dict[str, Any], depth: int) -> str:
        inner = (
            f"{json.dumps(key)}: {lines(each, depth - 1) if depth and isinstance(each, dict) else json.dumps(each)}"
            for key, each in part.items()
        )
        return "{\n" + ",\n".join(inner) + "\n}"

    path.write_text(lines(kept, 2) + "\n")


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Where a value is not as expected. Keys and elements that were not there at that time may have been added."""
    if isinstance(expected, dict):
        missing = [f"{place}.{key} is missing" for key in expected if key not in found]
        known = (key for key in expected if key in found)
        return missing + [wrong for key in known for wrong in differences(found[key], expected[key], f"{place}.{key}")]
    return [] if found == expected else [f"{place}: {found!r} is not {expected!r}"]
