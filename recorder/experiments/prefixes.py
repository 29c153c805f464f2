"""Prompts that begin alike: which requests share a prefix, and with whom."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from cbtrace.recorder.experiments.lengths import Tokens


class SharedPrefix(Struct, forbid_unknown_fields=True, frozen=True):
    """A share of the requests begins with one of a few common prefixes.

    The prefix is part of a prompt's length. A prompt that is not longer than the prefix begins with as much of it as
    leaves one token of its own.
    """

    rate: Annotated[float, Meta(ge=0, le=1)]
    """Share of the requests that begin with a common prefix; rounded to whole requests."""
    tokens: Tokens
    groups: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """How many different prefixes there are; requests take them in turn."""


def assign_groups(prefix: SharedPrefix | None, count: int, random: np.random.RandomState) -> list[int]:
    """Return the prefix group of each request, -1 for those without a common prefix."""
    groups = [-1] * count
    if prefix is not None:
        chosen = random.permutation(count)[: round(prefix.rate * count)]
        for number, request in enumerate(sorted(chosen.tolist())):
            groups[request] = number % prefix.groups
    return groups
