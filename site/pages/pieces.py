"""Pieces of a run's page: data files that can be made apart from all others, by whichever process has time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Piece:
    """Some files of a kind that the page loads when they are asked for."""

    kind: str
    first: int
    """The number of the first of them among those of their kind."""
    files: int
    make: Callable[[], Iterable[dict[str, Any]]]
    """Makes the data of the files, in order."""
