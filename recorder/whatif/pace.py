"""How long the parts of a step take: what a replay asks for, and what a time model answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Shape:
    """What the time of a batch depends on."""

    members: int
    waiting: int
    """Requests that the scheduler left waiting."""
    queries: int
    new_tokens: int
    kv_read: int
    """KV entries of earlier positions, summed over the members."""
    indexed_kv: int
    """Those for which the host writes an index: none on the decode fast path."""
    padded_queries: int
    padded_kv: int
    max_batch_tokens: int
    """Of an asynchronous engine, which carries an index of this length over from batch to batch; else 0."""
    uses_graph: bool = False
    captured: bool = False
    """There was no graph for these sizes: the batch ran once by itself and once to be captured."""
    first_replay: bool = False
    """Its graph was captured before and is replayed for the first time, for which the device has to load it."""
    copied_tokens: int = 0
    """Tokens whose KV is copied to the CPU or back while the batch is prepared."""


class Pace(Protocol):
    """Nanoseconds of each part of a step."""

    def schedule(self, shape: Shape) -> int:
        """From the begin of the step until the scheduler has answered. Padded sizes are not known yet."""

    def copy(self, tokens: int) -> int:
        """To copy the KV of so many tokens to the CPU, or back."""

    def prepare(self, shape: Shape) -> int:
        """Until the inputs are written, but for such copies."""

    def launch(self, shape: Shape) -> int:
        """Until the batch is enqueued on the device."""

    def capture(self, shape: Shape) -> int:
        """Likewise for one that is captured: the host waits for the device."""

    def device(self, shape: Shape) -> int:
        """The device's own work, first to last kernel."""

    def update(self, shape: Shape) -> int:
        """From results until requests are updated."""

    def between(self) -> int:
        """From there to the begin of the next step."""


@dataclass
class Clock:
    """The time of a replay: nanoseconds since its trace began."""

    now_ns: int = 0

    def __call__(self) -> int:
        """What the clock shows."""
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass."""
        self.now_ns += max(0, duration_ns)

    def wait_until(self, instant_ns: int) -> None:
        """Do nothing until then, unless it is past."""
        self.now_ns = max(self.now_ns, instant_ns)
