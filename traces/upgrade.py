"""Rewrites an old trace in the newest format version."""

from __future__ import annotations

import os
from pathlib import Path

from .aside import written_aside
from .blocks import each_payload
from .errors import TraceError, UsageError, declare
from .frames import PREAMBLE_BYTES, Damage, FrameScanner
from .opening import open_bytes
from .reader import open_trace
from .schema import FORMAT_VERSION, Severity
from .versions import decoder
from .writer import TraceWriter


def upgrade_trace(source: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool = False) -> int:
    """Write a trace of an older format version again in the newest one; returns the old version.

    Old traces are readable without this for ever; it is for other tools that know only the newest version. The target
    appears whole or not at all, and may be the source itself if ``overwrite`` is set.

    Raises:
        UsageError: the trace is of the newest version already.
        TraceError: the source is damaged (the upgraded trace would look whole), or cannot be read.
        TraceExistsError: the target exists and may not be overwritten.
        OSError: the target cannot be written.
    """
    source, target = Path(source), Path(target)
    trace = open_trace(source)
    if trace.format_version == FORMAT_VERSION:
        raise UsageError(
            f"{source} is of format version {FORMAT_VERSION} already, the newest: there is nothing to upgrade.",
            slug="upgrade-newest",
        )
    if trace.recovery.status == "damaged":
        raise TraceError(
            f"{source} is damaged, and an upgrade would hide that: keep it as it is, it stays readable.",
            slug="upgrade-damaged",
        )
    TraceWriter.check_target(target, overwrite=overwrite)
    with written_aside(target) as aside:
        _copy(source, aside, trace.format_version)
    return trace.format_version


def _copy(source: Path, aside: Path, version: int) -> None:
    decode = decoder(version)
    with open_bytes(source) as file, TraceWriter(aside) as writer:
        file.seek(PREAMBLE_BYTES)
        for payload in each_payload(FrameScanner(file.read, PREAMBLE_BYTES)):
            if not isinstance(payload, Damage):
                writer.write(decode(payload))


declare(
    "upgrade-newest",
    Severity.INFO,
    "The trace is of the newest format version already.",
    "Use it as it is.",
)
declare(
    "upgrade-damaged",
    Severity.BROKEN,
    "An upgraded copy of a damaged trace would no longer show the damage.",
    "Keep the trace as it is: every later cbtrace reads it.",
)
