"""How work on many parts of a run is gone about: in turn, or spread by whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Protocol, TypeVar

Result = TypeVar("Result")
Finished = Generator[tuple[int, Result], None, None]
"""Numbers of parts, each with what came of it, as they are finished."""


class Spread(Protocol):
    """Does ``work`` on every number below ``count``."""

    def __call__(self, work: Callable[[int], Result], count: int) -> Finished[Result]:
        """Yield each number with what came of it."""
        ...


def in_turn(work: Callable[[int], Result], count: int) -> Finished[Result]:
    """One after the other."""
    for number in range(count):
        yield number, work(number)


def in_order(finished: Finished[Result]) -> Generator[Result, None, None]:
    """What came of the parts, in order of their numbers, whichever was finished first."""
    early: dict[int, Result] = {}
    wanted = 0
    with closing(finished):
        for number, result in finished:
            early[number] = result
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1
