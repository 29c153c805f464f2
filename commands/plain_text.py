"""Text from a trace on a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return ``text`` without characters that would steer the terminal: a trace may come from anyone."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
