"""Writes a trace: one checksummed frame, one unbuffered write."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from .codec import encode, is_step
from .errors import TraceExistsError, TraceFullError
from .frames import PREAMBLE_BYTES, preamble, read_preamble, seal
from .ring import Checkpoint, RingMemory, append_bytes
from .schema import MAGIC, Footer, Frame

SMALLEST_LIMIT = 1 << 16
"""64 KiB: the smallest ``max_bytes``."""
_FOOTER_ROOM = 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class TraceWriter:
    """Appends frames to a new trace file. Safe to call from several threads.

    Each frame reaches the operating system in one ``write`` before :meth:`write` returns: a process that is killed at
    any instant leaves every frame written so far readable under the file's final name. Nothing is buffered and nothing
    is synchronised to the disk, so a crash of the whole machine may cost the last frames.

    Args:
        path: the file to create.
        overwrite: replace a trace that is already there. Any other existing file is never touched.
        max_bytes: the file never gets longer than this (at least :data:`SMALLEST_LIMIT`); None for no limit.
        ring: at the limit, give up the oldest steps instead of stopping. Needs a roster now and then to start anew at,
            and for a moment room on the disk for a second file of five eighths of the limit.

    Raises:
        TraceExistsError: the file exists and may not be overwritten.
        OSError: the file cannot be created or written.
        ValueError: the limit is too small.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        max_bytes: int | None = None,
        ring: bool = False,
    ) -> None:
        if max_bytes is not None and max_bytes < SMALLEST_LIMIT:
            raise ValueError(f"A trace needs room for {SMALLEST_LIMIT} bytes at least, not {max_bytes}.")
        self.path = Path(path)
        self.frames = 0
        """Frames written whole, those that a ring has given up included."""
        self.steps = 0
        """Steps among them."""
        self.bytes_written = 0
        """Bytes in the file, the preamble included."""
        self._newest: deque[tuple[int, bool]] = deque(maxlen=4)
        """Where the newest frames begin, and whether each is a step."""
        self._limit = max_bytes
        self._ring = RingMemory(max_bytes) if ring and max_bytes is not None else None
        self._lock = threading.Lock()
        self._rewritten = threading.Condition(self._lock)
        self._rewriting = False
        self._rewrite_error: OSError | None = None
        self._aside = self.path.with_name(f".{self.path.name}.ring")
        self._file = _create(self.path, overwrite)
        try:
            # A ring whose process was killed while it was being rewritten leaves this behind.
            self._aside.unlink(missing_ok=True)
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

    @property
    def is_ring(self) -> bool:
        """Whether old steps are given up at the limit."""
        return self._ring is not None

    @property
    def wants_roster(self) -> bool:
        """Whether a ring has gone so far without a roster that it might find none to start anew at."""
        return self._ring is not None and self._ring.wants_roster

    def write(self, frame: Frame | bytes) -> None:
        """Append one frame; bytes are the payload of a step (:func:`~.packed_steps.pack_step`).

        Raises:
            TraceFullError: the size limit is reached; only a :class:`Footer` still fits.
            OSError: it could not be written whole (disk full, size limit, I/O error). Frames before it are unharmed;
                a :class:`Footer` takes the place of up to four of them if it must.
            ValueError: the writer is closed, or the frame is longer than a trace allows.
        """
        data = seal(encode(frame))
        with self._lock:
            if self._file < 0:
                raise ValueError("The trace is closed.")
            if self._limit is not None:
                self._make_room(frame, len(data), self._limit)
                if self._ring is not None:
                    self._ring.note(frame, data, self.bytes_written, self.frames)
            if type(frame) is Footer:
                self._put_end_mark(frame, data)
                return
            self._put(data)
            self._count(frame, self.bytes_written - len(data))

    def write_all(self, frames: Sequence[Frame | bytes]) -> None:
        """Append several frames, none of them a :class:`Footer`, in one write.

        Raises as :meth:`write`; when the write fails, none of the frames is in the file. With a size limit, frames are
        written one by one, and those that fit stay.
        """
        if self._limit is not None or len(frames) == 1:
            for frame in frames:
                self.write(frame)
            return
        sealed = [seal(encode(frame)) for frame in frames]
        with self._lock:
            if self._file < 0:
                raise ValueError("The trace is closed.")
            start = self.bytes_written
            self._put(b"".join(sealed))
            for frame, data in zip(frames, sealed, strict=True):
                self._count(frame, start)
                start += len(data)

    @property
    def removed(self) -> bool:
        """Whether somebody has deleted the file while it was being written: what is in it can be read by nobody."""
        with self._lock:
            return self._file >= 0 and os.fstat(self._file).st_nlink == 0

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        with self._lock:
            self._rewritten.wait_for(lambda: not self._rewriting)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self, frame: Frame | bytes, start: int) -> None:
        step = is_step(frame)
        self.frames += 1
        self.steps += step
        self._newest.append((start, step))

    def _put(self, data: bytes) -> None:
        whole = self.bytes_written
        try:
            done = os.write(self._file, data)
            # The system may take less than it was given, at a size limit for one; the next call then tells why.
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            # Take back what was written of the frame, so that an end mark can follow whole frames.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, whole)
                os.lseek(self._file, whole, os.SEEK_SET)
            raise
        self.bytes_written = whole + len(data)

    def _put_end_mark(self, footer: Footer, data: bytes) -> None:
        """Append the end mark. On a full disk the newest few frames give way to it: why a recording ended says more."""
        while True:
            try:
                self._put(data)
            except OSError:
                if not self._newest:
                    raise
            else:
                self.frames += 1
                return
            self.bytes_written, was_step = self._newest.pop()
            self.frames -= 1
            self.steps -= was_step
            os.ftruncate(self._file, self.bytes_written)
            os.lseek(self._file, self.bytes_written, os.SEEK_SET)
            footer = replace(footer, frames=footer.frames - 1, steps=footer.steps - was_step)
            data = seal(encode(footer))

    # Staying within a limit -------------------------------------------------------------------------------------------

    def _make_room(self, frame: Frame | bytes, size: int, limit: int) -> None:
        """See to it that the frame fits, or refuse it. Called with the lock held."""
        if self._ring is not None:
            if self.bytes_written + size > limit * 3 // 4:
                self._start_rewriting(self._ring)
            if self.bytes_written + size > limit - _FOOTER_ROOM:
                self._rewritten.wait_for(lambda: not self._rewriting)
            if self._rewrite_error is not None:
                raise self._rewrite_error
        room = limit if isinstance(frame, Footer) else limit - _FOOTER_ROOM
        if self.bytes_written + size > room:
            raise TraceFullError(str(self.path), limit)

    def _start_rewriting(self, ring: RingMemory) -> None:
        if self._rewriting or self._rewrite_error is not None:
            return
        chosen = ring.choose(self.bytes_written)
        if chosen is None:
            return
        self._rewriting = True
        threading.Thread(target=self._rewrite, args=(ring, chosen), name="cbtrace-ring", daemon=True).start()

    def _rewrite(self, ring: RingMemory, checkpoint: Checkpoint) -> None:
        """Write the file anew from a checkpoint on, then let it take the trace's name. Runs on a thread of its own."""
        error: OSError | None = None
        source = target = -1
        start = checkpoint.start_of_file()
        try:
            source = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._aside.unlink(missing_ok=True)
            target = os.open(self._aside, _FLAGS, 0o666)
            _write_all(target, start)
            # Frames go on arriving meanwhile: copy most of them without holding anybody up, the rest with the lock.
            upto = self.bytes_written
            append_bytes(source, target, checkpoint.offset, upto)
            with self._lock:
                append_bytes(source, target, upto, self.bytes_written)
                self._aside.replace(self.path)
                ring.moved(checkpoint, len(start))
                self.bytes_written += len(start) - checkpoint.offset
                self._file, target = target, self._file
                self._newest.clear()
        except OSError as caught:
            error = caught
            self._aside.unlink(missing_ok=True)
        finally:
            for file in (source, target):
                if file >= 0:
                    os.close(file)
            with self._lock:
                self._rewrite_error = error
                self._rewriting = False
                self._rewritten.notify_all()


def _write_all(file: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(file, data[done:])


def _create(path: Path, overwrite: bool) -> int:
    """Open a new file for writing, or an existing trace if it may be replaced."""
    try:
        return os.open(path, _FLAGS, 0o666)
    except FileExistsError:
        _check_replaceable(path, overwrite)
    # A new file takes the name: whoever reads the old trace at this moment keeps reading it unharmed.
    path.unlink()
    return os.open(path, _FLAGS, 0o666)


def _check_replaceable(path: Path, overwrite: bool) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise TraceExistsError(f"{path} exists and is not a regular file: choose another name for the trace.")
    with path.open("rb") as file:
        start = file.read(PREAMBLE_BYTES)
    if start and not start.startswith(MAGIC) and read_preamble(start) is None:
        raise TraceExistsError(f"{path} exists and is not a trace: choose another name for the trace.")
    if not overwrite:
        raise TraceExistsError(f"{path} exists already: choose another name, or allow overwriting it.")
