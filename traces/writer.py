"""Writes a trace: one checksummed frame, one unbuffered write."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import msgspec

from .errors import TraceExistsError
from .frames import PREAMBLE_BYTES, preamble, read_preamble, seal
from .schema import MAGIC, Frame

_encode = msgspec.msgpack.Encoder().encode


class TraceWriter:
    """Appends frames to a new trace file. Safe to call from several threads.

    Each frame reaches the operating system in one ``write`` before :meth:`write` returns: a process that is killed at
    any instant leaves every frame written so far readable under the file's final name. Nothing is buffered and nothing
    is synchronised to the disk, so a crash of the whole machine may cost the last frames.

    Args:
        path: the file to create.
        overwrite: replace a trace that is already there. Any other existing file is never touched.

    Raises:
        TraceExistsError: the file exists and may not be overwritten.
        OSError: the file cannot be created or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.frames = 0
        """Frames written whole."""
        self.bytes_written = 0
        """Bytes in the file, the preamble included."""
        self._lock = threading.Lock()
        self._file = _create(self.path, overwrite)
        try:
            self._put(preamble())
        except BaseException:
            self.close()
            raise

    @staticmethod
    def check_target(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Raise what creating a trace at ``path`` would raise for a file that is there already; touches nothing."""
        path = Path(path)
        if path.exists() or path.is_symlink():
            _check_replaceable(path, overwrite)

    def write(self, frame: Frame) -> None:
        """Append one frame.

        Raises:
            OSError: it could not be written whole (disk full, size limit, I/O error). Frames before it are unharmed.
            ValueError: the writer is closed, or the frame is longer than a trace allows.
        """
        data = seal(_encode(frame))
        with self._lock:
            if self._file < 0:
                raise ValueError("The trace is closed.")
            self._put(data)
            self.frames += 1

    def _put(self, data: bytes) -> None:
        done = os.write(self._file, data)
        self.bytes_written += done
        # The system may take less than it was given, at a size limit for one; the next call then tells why.
        while done < len(data):
            more = os.write(self._file, data[done:])
            self.bytes_written += more
            done += more

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _create(path: Path, overwrite: bool) -> int:
    """Open a new file for writing, or an existing trace if it may be replaced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        _check_replaceable(path, overwrite)
    # A new file takes the name: whoever reads the old trace at this moment keeps reading it unharmed.
    path.unlink()
    return os.open(path, flags, 0o666)


def _check_replaceable(path: Path, overwrite: bool) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise TraceExistsError(f"{path.name} exists and is not a regular file: choose another name for the trace.")
    with path.open("rb") as file:
        start = file.read(PREAMBLE_BYTES)
    if start and not start.startswith(MAGIC) and read_preamble(start) is None:
        raise TraceExistsError(f"{path.name} exists and is not a trace: choose another name for the trace.")
    if not overwrite:
        raise TraceExistsError(f"{path.name} exists already: choose another name, or allow overwriting it.")
