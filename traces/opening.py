"""Opens the file of a trace, and tells whether it is one and of which format version."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO

from .compressed import MAGIC as ZSTD_MAGIC
from .compressed import ZstdFile
from .errors import EmptyTraceError, NotATraceError, TraceError, TraceNotFoundError, TraceVersionError
from .frames import PREAMBLE_BYTES, Damage, FrameScanner, nearest_version, preamble, read_preamble
from .schema import FORMAT_VERSION, MAGIC

_SNIFF = 8 << 20  # how far into a file without a trace's first bytes a frame is looked for


def open_bytes(path: Path) -> BinaryIO | ZstdFile:
    """The bytes of a trace, decompressed if they are compressed, whatever the file's name is.

    Raises:
        TraceNotFoundError: no regular file of that name can be opened.
        TraceError: it is compressed, and the package to decompress it with is not installed.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceNotFoundError(f"{path} is a folder: name one trace in it, a file that ends in .cbt.")
        if not stat.S_ISREG(mode):
            raise TraceNotFoundError(f"{path} is not a regular file: name a trace on disk.")
        file = path.open("rb")
        if file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC:
            file.close()
            return ZstdFile(path)
        file.seek(0)
        return file
    except FileNotFoundError as error:
        raise TraceNotFoundError(f"There is no trace {path}: check the path.") from error
    except OSError as error:
        reason = (error.strerror or "it cannot be opened").lower()
        raise TraceNotFoundError(f"{path} cannot be read ({reason}): check its permissions.") from error


def format_version(path: Path, start: bytes, file: BinaryIO | ZstdFile) -> int:
    """The format version of a file, before anything else in it is looked at."""
    if isinstance(file, ZstdFile) and file.broken:
        raise TraceError(f"{path} is compressed, and cut or damaged at its start: copy it again from where it came.")
    if not start or (len(start) < PREAMBLE_BYTES and preamble().startswith(start)):
        raise EmptyTraceError(f"{path} is empty: recording ended before anything was written; record the run again.")
    version = read_preamble(start)
    if version is not None:
        if not 1 <= version <= FORMAT_VERSION:
            raise TraceVersionError(str(path), version)
        return version
    nearest = nearest_version(start)
    if nearest is not None:
        return nearest
    if not start.startswith(MAGIC) and not _holds_a_frame(file):
        raise NotATraceError(f"{path} is not a trace: name a file that cbtrace recorded (.cbt).")
    return FORMAT_VERSION


def _holds_a_frame(file: BinaryIO | ZstdFile) -> bool:
    """Whether a frame is found near the start of a file that does not begin as a trace does."""
    file.seek(0)
    left = _SNIFF

    def read(size: int) -> bytes:
        nonlocal left
        data = file.read(min(size, left))
        left -= len(data)
        return data

    return any(not isinstance(found, Damage) for found in FrameScanner(read))
