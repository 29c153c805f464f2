"""The files of one run while they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cbtrace.site.assets import hashed_name
from cbtrace.site.pages.pieces import Piece
from cbtrace.site.render import data_script

Write = Callable[[str, str], int]
"""Takes a file as it is finished, its path relative to the site and its text; returns its size in bytes."""
Parts = dict[str, dict[int, str]]
"""By kind and number: the digest in the name of a file, for the page to ask for it."""


def into(texts: dict[str, str]) -> Write:
    """Keep files in memory."""

    def write(path: str, text: str) -> int:
        texts[path] = text
        return len(text)

    return write


@dataclass
class RunFiles:
    """The files of one run, or some of them. Each is handed on at once, since those of a long run are many."""

    slug: str
    write: Write
    sizes: dict[str, int] = field(default_factory=dict)
    """Size of each file by path relative to the site."""
    parts: Parts = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The run's folder."""
        return f"runs/{self.slug}"

    def add(self, name: str, text: str) -> str:
        """Add a file to the run's folder; return its path relative to the site."""
        path = f"{self.base}/{name}"
        self.sizes[path] = self.write(path, text)
        return path

    def add_data(self, key: str, data: dict[str, Any]) -> str:
        """Add a data file that is loaded under ``key``; return its name within the run's folder."""
        text = data_script(key, data)
        name = hashed_name(f"{key.rpartition('/')[2]}.js", text)
        self.add(name, text)
        return name

    def add_piece(self, piece: Piece) -> None:
        """Make the files of a piece."""
        for number, data in enumerate(piece.make(), piece.first):
            name = self.add_data(f"{self.slug}/{piece.kind}-{number}", data)
            self.parts.setdefault(piece.kind, {})[number] = name.split(".")[-2]

    def join(self, sizes: Mapping[str, int], parts: Parts) -> None:
        """Add files that were written elsewhere."""
        self.sizes.update(sizes)
        for kind, digests in parts.items():
            self.parts.setdefault(kind, {}).update(digests)

    @property
    def digests(self) -> dict[str, list[str]]:
        """By kind: what :data:`Parts` tells, in order of the numbers."""
        return {kind: [digests[number] for number in sorted(digests)] for kind, digests in self.parts.items()}
