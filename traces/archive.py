"""Writes a trace again to be stored: its frames in blocks, and all of it compressed (``.cbt.zst``); and back.

A recorder cannot write so: a block is as good as lost until it is whole. Everything that reads traces reads stored ones
too, and ``zstd -d`` makes a trace of blocks of one, which is read like any other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from .aside import written_aside
from .blocks import BLOCK, MOST_PAYLOADS, each_payload, fit_a_block, join_payloads
from .compressed import ZstdFile, padding, zstd_library
from .errors import CbtraceError, TraceError, TraceExistsError, UsageError, declare
from .frames import PREAMBLE_BYTES, FrameScanner, read_preamble, seal
from .opening import format_version, open_bytes
from .schema import FORMAT_VERSION, MAGIC, Severity
from .writer import TraceWriter

_LEVEL = 12
"""Higher levels take ten times as long for a twentieth less."""
_BLOCK_BYTES = 1 << 20

Progress = Callable[[int, int], object]
"""Called with how many bytes of the source are done, and how many there are."""


def compress_trace(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write a trace to ``target`` in blocks, compressed with Zstandard: a third of its size, where Zstandard alone
    leaves more than half. What was written is read again before it takes its name.

    Raises:
        UsageError: the trace is of an older format version.
        TraceError: it is damaged, cannot be read, or the package to compress with is not installed.
        TraceExistsError: the target exists and may not be overwritten.
        OSError: the target cannot be written.
    """
    source, target = Path(source), Path(target)
    compressor = zstd_library(source).ZstdCompressor(level=_LEVEL, write_checksum=True)
    _check_target(target, overwrite)
    told, plain = hashlib.sha256(), 0
    with written_aside(target) as aside:
        with aside.open("xb") as file:
            with compressor.stream_writer(file, closefd=False) as writer:
                for piece in _in_blocks(source, told.update, progress):
                    writer.write(piece)
                    plain += len(piece)
            file.write(padding(plain, file.tell()))
        kept = hashlib.sha256()
        for piece in _one_by_one(aside):
            kept.update(piece)
        if kept.digest() != told.digest():
            raise CbtraceError(
                f"{source} does not come back from what was compressed, so nothing was written: keep it, and report "
                "this.",
                slug="compress-differs",
            )


def decompress_trace(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write a stored trace to ``target`` as it was recorded, byte for byte.

    Raises:
        TraceError: the trace is damaged or cannot be read.
        TraceExistsError: the target exists and may not be overwritten.
        OSError: the target cannot be written.
    """
    source, target = Path(source), Path(target)
    _check_target(target, overwrite)
    with written_aside(target) as aside, aside.open("xb") as file:
        for piece in _one_by_one(source):
            file.write(piece)


def _check_target(target: Path, overwrite: bool) -> None:
    """Refuse to replace what is no trace, compressed or not."""
    if not overwrite and (target.exists() or target.is_symlink()):
        raise TraceExistsError(f"{target} exists already: choose another name, or allow overwriting it.")
    if not (target.is_file() and _is_compressed_trace(target)):
        TraceWriter.check_target(target, overwrite=overwrite)


def _is_compressed_trace(path: Path) -> bool:
    with open_bytes(path) as file:
        return isinstance(file, ZstdFile) and file.read(len(MAGIC)) == MAGIC


class _Source:
    """A trace whose frames are written again."""

    def __init__(self, path: Path, file: BinaryIO | ZstdFile) -> None:
        self.preamble = file.read(PREAMBLE_BYTES)
        self.version = format_version(path, self.preamble, file)
        self.rest = b""
        """What a recording that was cut holds of its last frame; known when all payloads are."""
        self._path, self._file = path, file
        if read_preamble(self.preamble) is None:
            raise self._damaged("is damaged at byte 0")

    def payloads(self) -> Iterator[bytes]:
        """The payloads of all frames, those in blocks one by one.

        Raises:
            TraceError: bytes are damaged, or cannot be read.
        """
        try:
            yield from self._read()
        except OSError as error:
            raise TraceError(f"{self._path} cannot be read to its end ({error.strerror}): try again.") from error

    def _read(self) -> Iterator[bytes]:
        scanner = FrameScanner(self._file.read, PREAMBLE_BYTES)
        for payload in each_payload(scanner):
            if isinstance(payload, bytes):
                if not payload or payload[0] == BLOCK:
                    raise self._damaged("holds a frame that is none")
                yield payload
            elif payload.reason != "cut":
                raise self._damaged(f"is damaged at byte {payload.start}")
            else:  # the last thing in the file, and less than a frame
                self._file.seek(payload.start)
                self.rest = self._file.read(payload.end - payload.start)
        if isinstance(self._file, ZstdFile) and self._file.broken:
            raise self._damaged(f"is cut, or damaged at byte {scanner.bytes_seen} of what it holds")

    def _damaged(self, what: str) -> TraceError:
        return TraceError(
            f"{self._path} {what}, and a copy would hide that: keep it as it is, it stays readable.",
            slug="copy-damaged",
        )


def _in_blocks(source: Path, told: Callable[[bytes], object], progress: Progress) -> Iterator[bytes]:
    """The bytes of a trace with its frames in blocks. ``told`` hears its bytes with the frames one by one."""
    with open_bytes(source) as file:
        trace = _Source(source, file)
        if trace.version != FORMAT_VERSION:
            raise UsageError(
                f"{source} is of format version {trace.version}, which has no blocks: run cbtrace upgrade first.",
                slug="compress-old",
            )
        told(trace.preamble)
        yield trace.preamble
        waiting: list[bytes] = []
        size, done = 0, PREAMBLE_BYTES
        # How much a compressed file holds is known when all of it was read.
        total = 0 if isinstance(file, ZstdFile) else source.stat().st_size
        for payload in trace.payloads():
            if waiting and (size + len(payload) > _BLOCK_BYTES or len(waiting) == MOST_PAYLOADS):
                yield _together(waiting)
                waiting, size = [], 0
                if total:
                    progress(done, total)
            sealed = seal(payload)
            told(sealed)
            waiting.append(payload)
            size += len(payload)
            done += len(sealed)
        if waiting:
            yield _together(waiting)
        told(trace.rest)
        yield trace.rest


def _together(payloads: list[bytes]) -> bytes:
    """Frames in one block, or one by one where they do not fit into one."""
    if len(payloads) > 1 and fit_a_block(payloads):
        return seal(join_payloads(payloads))
    return b"".join(map(seal, payloads))


def _one_by_one(source: Path) -> Iterator[bytes]:
    """The bytes of a trace with no frame in a block."""
    with open_bytes(source) as file:
        trace = _Source(source, file)
        yield trace.preamble
        yield from map(seal, trace.payloads())
        yield trace.rest


declare(
    "compress-old",
    Severity.INFO,
    "Frames in blocks, which make a trace compress well, are new in format version 3.",
    "Upgrade the trace with `cbtrace upgrade`, and compress what that writes.",
)
declare(
    "copy-damaged",
    Severity.BROKEN,
    "A compressed or decompressed copy of a damaged trace would no longer show where it is damaged.",
    "Keep the trace as it is; `zstd` compresses any file.",
)
declare(
    "compress-differs",
    Severity.BROKEN,
    "What was compressed was read again and was not what had been read: a mistake in cbtrace, or a failing disk.",
    "Keep the trace as it is, and report this.",
)
