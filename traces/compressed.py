"""Reads a trace that was compressed as a whole with Zstandard (``.cbt.zst``)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from .errors import TraceError, declare
from .schema import Severity

MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x50\x2a\x4d\x18"
"""Begins a part that every decompressor skips; its length follows."""
_LARGEST_WINDOW = 1 << 25
_LARGEST_RATIO = 20
"""Real traces shrink to half."""
_BASE = 1 << 20
_AT_ONCE = 512
"""Compressed bytes that are decompressed at once: at most 16 MiB come of them, whatever they are."""
_LEAST_READ = 1 << 16


class ZstdFile(io.RawIOBase):
    """Decompressed bytes of a file, in a stream; memory is bounded whatever the file says.

    Args:
        path: the compressed file.

    Attributes:
        broken: the file is damaged or cut: what was decompressed may be less than what was compressed.

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
        self._ready = bytearray()
        self._left = b""
        """Compressed bytes behind the end of a part."""
        self._part: Any = None

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; none at the end of what can be decompressed."""
        size = _LEAST_READ if size < 0 else size
        while len(self._ready) < min(size, _LEAST_READ) and self._decompress():
            pass
        data = bytes(self._ready[:size])
        del self._ready[:size]
        self._at += len(data)
        if self._at > self._limit:
            raise TraceError(
                f"{self._path} grows to more than {_LARGEST_RATIO} times its size, which no trace does: "
                "do not trust it.",
                slug="zstd-bomb",
            )
        return data

    def _decompress(self) -> bool:
        """Decompress a little more; whether there was anything left to."""
        compressed = self._left or self._file.read(_AT_ONCE)
        self._left = b""
        if not compressed:
            self.broken |= self._part is not None  # cut within a part
            return False
        if self._part is None:
            self._part = self._library.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        try:
            self._ready += self._part.decompress(compressed)
        except self._library.ZstdError:
            self.broken = True
            self._file.seek(0, io.SEEK_END)
            return False
        if self._part.eof:
            self._left, self._part = self._part.unused_data, None
        return True

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


def padding(plain: int, stored: int) -> bytes:
    """What must follow ``stored`` bytes that ``plain`` ones were compressed to, so that they are not refused: a part
    that decompresses to nothing. Only what no engine does compresses so well."""
    missing = -(-(plain - _BASE) // _LARGEST_RATIO) - stored
    return _SKIPPED + missing.to_bytes(4, "little") + bytes(missing) if missing > 0 else b""


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
