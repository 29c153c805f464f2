"""The settings that ``cbtrace whatif`` is told to change."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cbtrace.traces.errors import UsageError

if TYPE_CHECKING:
    from cbtrace.traces.schema import Scalar


def combinations(fixed: list[str] | None, swept: list[str] | None) -> list[dict[str, Scalar]]:
    """Every combination of the swept values, each with the fixed ones.

    Raises:
        UsageError: one is not ``KEY=VALUE`` of a setting that can be changed.
    """
    every = [_pair(text, "--set") for text in fixed or []]
    tried = [_pair(text, "--sweep") for text in swept or []]
    keys = [key for key, _ in (*every, *tried)]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{key} is given twice: name each setting once.")
    base = {key: _value(key, text) for key, text in every}
    values = [[(key, _value(key, part)) for part in text.split(",")] for key, text in tried]
    return [base | dict(chosen) for chosen in itertools.product(*values)]


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageError(f"{option} {text!r} is not of the form KEY=VALUE, as in num_blocks=96.")
    return key.strip(), value.strip()


def _value(key: str, text: str) -> Scalar:
    from cbtrace.recorder.whatif.settings import CHANGEABLE

    kind = CHANGEABLE.get(key)
    if kind is None:
        raise UsageError(f"{key} is no setting whose effect can be told: known are {', '.join(CHANGEABLE)}.")
    text = text.strip()
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{key} is true or false, not {text!r}.")
        return text.lower() == "true"
    if kind is str:
        return text
    least, name = (1, "a whole number of at least 1") if kind is int else (0, "a number of at least 0")
    try:
        number: Scalar = kind(text)
    except ValueError:
        number = None
    if not isinstance(number, (int, float)) or not least <= number < float("inf"):
        raise UsageError(f"{key} is {name}, not {text!r}.")
    return number
