"""The values that one fact has over the runs of a side: texts, ``None`` where a run does not know it."""

from __future__ import annotations

from collections.abc import Iterable


def names_in(facts: Iterable[Iterable[str]]) -> list[str]:
    """All names of several sets of facts, sorted."""
    return sorted({name for names in facts for name in names})


def known(values: list[str | None]) -> list[str]:
    """The different values of a side, in order."""
    return list(dict.fromkeys(value for value in values if value is not None))


def differ(a: list[str | None], b: list[str | None]) -> bool:
    """Whether both sides know the fact, and not as the same values."""
    left, right = known(a), known(b)
    return bool(left) and bool(right) and left != right


def shown(values: list[str | None]) -> str | None:
    """The different values as one text; ``None`` when no run knows the fact."""
    return ", ".join(known(values)) or None


def numbers(values: list[str | None]) -> list[float]:
    """The known values as numbers; empty when one of them is none."""
    try:
        return [float(value) for value in values if value is not None]
    except ValueError:
        return []
