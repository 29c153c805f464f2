"""Reads a trace that was compressed as a whole with Zstandard (``.cbt.zst``)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from .errors import TraceError, declare
from .schema import Severity

MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_WINDOW = 1 << 25
_LARGEST_RATIO = 20
"""Real traces shrink to half."""
_BASE = 1 << 20


class ZstdFile(io.RawIOBase):
    """Decompressed bytes of a file, in a stream; memory is bounded whatever the file says.

    Args:
        path: the compressed file.

    Attributes:
        broken: decompression ended before the data did, because the file is damaged or cut.

    Raises:
        TraceError: the package to decompress with is not installed.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._library = zstd_library(path)
        self._path = path
        self._file = path.open("rb")
        self._limit = path.stat().st_size * _LARGEST_RATIO + _BASE
        self.broken = False
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._at = 0
        decompressor = self._library.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._stream = decompressor.stream_reader(self._file, read_across_frames=True, closefd=False)

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; none at the end of what can be decompressed."""
        try:
            data: bytes = self._stream.read(size)
        except self._library.ZstdError:
            self.broken = True
            return b""
        self._at += len(data)
        if self._at > self._limit:
            raise TraceError(
                f"{self._path} grows to more than {_LARGEST_RATIO} times its size, which no trace does: "
                "do not trust it.",
                slug="zstd-bomb",
            )
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte from the start, by decompressing up to it."""
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("a compressed trace is read from its start")
        self._restart()
        while self._at < offset and self.read(min(offset - self._at, 1 << 20)):
            pass
        return self._at

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def zstd_library(path: Path) -> Any:
    """The package that compresses and decompresses; it is optional.

    Raises:
        TraceError: it is not installed, so that nothing can be done about ``path``.
    """
    try:
        import zstandard
    except ImportError as error:
        raise TraceError(
            f"{path} needs a package for Zstandard, which is not installed: run pip install 'cbtrace[zstd]', or use "
            "the zstd program.",
            slug="zstd-missing",
        ) from error
    return zstandard


declare(
    "zstd-missing",
    Severity.BROKEN,
    "The trace is or is to be compressed with Zstandard, and the optional package zstandard is not installed.",
    "Run pip install 'cbtrace[zstd]', or decompress the file with zstd -d.",
)
declare(
    "zstd-bomb",
    Severity.BROKEN,
    "The compressed file holds far more than a trace of its size could.",
    "Do not trust the file.",
)
