"""What a ring keeps when it gives up its oldest steps, and how the file is made anew without them.

The file is always a trace like any other. When it nears its limit, a new one is written beside it (the frames to keep,
a mark, and a copy of the bytes from a roster on) and takes its name: a process killed at any instant leaves either.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field, replace

from .codec import encode, is_step
from .frames import preamble, seal
from .schema import (
    Admit,
    End,
    Engine,
    Event,
    Frame,
    GraphKey,
    Header,
    Memory,
    Notice,
    Overwritten,
    Request,
    Roster,
    Visible,
)

_PERMANENT = (Header, Engine, GraphKey, Notice)


@dataclass(frozen=True)
class Checkpoint:
    """A roster in the file: everything before it can be given up if ``head`` is kept."""

    offset: int
    step: int
    steps: int
    """Steps before it since the recording began."""
    frames: int
    head_bytes: int
    head: tuple[bytes, ...]
    """Sealed frames that stay: permanent ones, newest events, requests alive."""

    def start_of_file(self) -> bytes:
        """The file up to the checkpoint's roster."""
        given_up = self.frames - len(self.head)
        mark = seal(encode(Overwritten(self.step, self.steps, given_up)))
        return b"".join((preamble(), *self.head, mark))


@dataclass
class RingMemory:
    """Remembers, beside the file, what a ring must keep when it gives up old steps.

    Args:
        limit: bytes that the file may have. Events may take an eighth of it, then the oldest are given up.
    """

    limit: int
    permanent: list[bytes] = field(default_factory=list)
    events: deque[bytes] = field(default_factory=deque)
    event_bytes: int = 0
    alive: dict[int, list[bytes]] = field(default_factory=dict)
    checkpoints: deque[Checkpoint] = field(default_factory=deque)
    steps: int = 0
    since_roster: int = 0
    """Bytes written since the newest roster."""

    @property
    def wants_roster(self) -> bool:
        """Whether the next checkpoint is due."""
        return self.since_roster >= self.limit // 16

    def note(self, frame: Frame | bytes, data: bytes, offset: int, frames: int) -> None:
        """Take notice of a frame that is about to be written as ``data`` at ``offset``, after ``frames`` others."""
        self.since_roster += len(data)
        if is_step(frame):
            self.steps += 1
        elif isinstance(frame, Request | Visible | Admit):
            self.alive.setdefault(frame.request, []).append(data)
        elif isinstance(frame, End):
            self.alive.pop(frame.request, None)
        elif isinstance(frame, Event):
            self._note_event(data)
        elif isinstance(frame, _PERMANENT) or (isinstance(frame, Memory) and frame.mark):
            self.permanent.append(data)
        elif isinstance(frame, Roster):
            self._note_roster(frame, offset, frames)

    def _note_event(self, data: bytes) -> None:
        self.events.append(data)
        self.event_bytes += len(data)
        while self.event_bytes > self.limit // 8:
            self.event_bytes -= len(self.events.popleft())

    def _note_roster(self, roster: Roster, offset: int, frames: int) -> None:
        """Make a checkpoint, unless the last one is near: each holds a copy of all frames to keep."""
        self.since_roster = 0
        if self.checkpoints and offset - self.checkpoints[-1].offset < self.limit // 16:
            return
        alive = [data for frames_of in self.alive.values() for data in frames_of]
        head = (*self.permanent, *self.events, *alive)
        self.checkpoints.append(Checkpoint(offset, roster.step, self.steps, frames, sum(map(len, head)), head))

    def choose(self, size: int) -> Checkpoint | None:
        """The checkpoint to start the file at, so that it gets five eighths of the limit at most.

        The oldest that does; None when even the newest leaves too much.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.head_bytes + size - checkpoint.offset <= self.limit * 5 // 8:
                return checkpoint
        return None

    def moved(self, checkpoint: Checkpoint, offset: int) -> None:
        """The file was rewritten: the checkpoint's roster is at ``offset`` now."""
        shift = offset - checkpoint.offset
        kept = [each for each in self.checkpoints if each.offset > checkpoint.offset]
        self.checkpoints = deque(replace(each, offset=each.offset + shift) for each in kept)


def append_bytes(source: int, target: int, start: int, end: int) -> None:
    """Append bytes ``start`` to ``end`` of one open file to another; the interpreter is free meanwhile."""
    while start < end:
        copied = os.sendfile(target, source, start, min(end - start, 1 << 24))
        if not copied:
            raise OSError(f"The trace ended at byte {start} while its newest {end - start} bytes were copied.")
        start += copied
