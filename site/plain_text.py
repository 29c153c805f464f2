"""Text from a trace where no markup can hold it: in a list of choices, in a title, in a chart."""

from __future__ import annotations

import hashlib


def plain(text: str, limit: int) -> str:
    """``text`` with every character that cannot be seen replaced, cut at ``limit`` characters.

    A trace may come from anyone: control characters, and those that turn the direction of writing, would show something
    else than what is there. Spaces of any kind become plain ones.
    """
    start = text[: limit + 1]
    seen = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in start)
    return seen if len(seen) <= limit else f"{seen[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"


def distinct(text: str, limit: int) -> str:
    """As :func:`plain`, for values that are compared: what it changed carries a hash, so that no two become equal."""
    seen = plain(text, limit)
    return seen if seen == text else f"{seen} [{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}]"
