"""What comes to the engine of :mod:`long_schedule`: how much load when, and requests with lengths of their own."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from trace_builder import SimRequest

BLOCK = 16
"""Tokens of a KV block."""
FAMILIES, PREFIX_BLOCKS = 8, 6
PREFIX = PREFIX_BLOCKS * BLOCK
"""Half of the requests begin as all others of their family do."""
BUDGET = 1024
"""Tokens of a batch."""
SWELLS = 3


@dataclass(frozen=True)
class Plan:
    """What to simulate. A calm run has a KV cache that is never full and nobody who cancels, so that what is planted is
    the only one of its kind; -1 plants nothing."""

    steps: int = 1_000_000
    seed: int = 0
    slots: int = 64
    mean_tokens: int = 213
    calm: bool = False
    stall_step: int = -1
    reset_step: int = -1
    cancel_step: int = -1

    @property
    def blocks(self) -> int:
        """Blocks of the KV cache: enough for the usual, not for every crowd of long requests."""
        return self.slots * (60 if self.calm else 31)


@dataclass(eq=False)
class Active(SimRequest):
    """A request, and how it goes on while nothing but decoding happens to it."""

    family: int = -1
    target: int = 1
    serial: int = -1
    decoding_from: int = -1
    """The step of its next plain decode when it joined those that only decode; -1 while it does not. ``position`` and
    ``generated`` are those of that step."""

    def settle(self, step: int) -> None:
        """Bring ``position`` and ``generated`` up to before ``step``."""
        if self.decoding_from >= 0:
            passed = step - self.decoding_from
            self.position += passed
            self.generated += passed
            self.computed = max(self.computed, self.position)
            self.decoding_from = step

    @property
    def own_blocks(self) -> int:
        """Blocks that it holds, those of its family's prefix left out."""
        return max(0, -(-self.position // BLOCK) - (PREFIX_BLOCKS if self.family >= 0 else 0))

    @property
    def needed_blocks(self) -> int:
        """Blocks that it takes until its next token."""
        return -(-(self.prompt + self.generated) // BLOCK)

    @classmethod
    def drawn(cls, plan: Plan, ordinal: int, chance: random.Random) -> Active:
        """A new request with a prompt and an answer of random lengths."""
        family = chance.randrange(FAMILIES) if chance.random() < 0.5 else -1
        prompt = min(2000, 20 + int(chance.lognormvariate(5.0, 0.8))) + (PREFIX if family >= 0 else 0)
        longest = 4 * plan.mean_tokens
        target = max(1, min(longest, int(chance.gammavariate(2.0, plan.mean_tokens / 2))))
        limit = target if chance.random() < 0.3 else longest
        return cls(ordinal, f"req_{ordinal}", prompt, limit, family=family, target=target)


def arrivals(plan: Plan, step: int, chance: random.Random) -> int:
    """How many requests come before a step: a Poisson number, on average a little more than can be served."""
    rate = 1.06 + 0.22 * math.sin(2 * math.pi * SWELLS * step / plan.steps)
    mean = rate * plan.slots / (plan.mean_tokens + 1)
    left, count, term = chance.random(), 0, math.exp(-mean)
    while left > term and count < 20:
        left -= term
        count += 1
        term *= mean / count
    return count
