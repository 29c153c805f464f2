"""The settings that ``cbtrace whatif`` is told to change."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cbtrace.traces.errors import UsageError

if TYPE_CHECKING:
    from cbtrace.traces.schema import Scalar


def combinations(fixed: list[str] | None, swept: list[str] | None) -> list[dict[str, Scalar]]:
    """Every combination of the swept values, once each, with the fixed ones.

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
    return [base | dict(chosen) for chosen in dict.fromkeys(itertools.product(*values))]


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise UsageError(f"{option} {text!r} is not of the form KEY=VALUE, as in num_blocks=96.")
    return key.strip(), value.strip()


def _value(key: str, text: str) -> Scalar:
    from cbtrace.recorder.whatif.settings import CHANGEABLE, SCHEDULERS

    kind = CHANGEABLE.get(key)
    if kind is None:
        raise UsageError(f"{key} is no setting whose effect can be told: known are {', '.join(CHANGEABLE)}.")
    text = text.strip()
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{key} is true or false, not {text!r}.")
        return text.lower() == "true"
    if kind is str:
        if text not in SCHEDULERS:
            raise UsageError(f"{key} is one of {', '.join(SCHEDULERS)}, not {text!r}.")
        return text
    return _number(key, kind, text)


def _number(key: str, kind: type, text: str) -> Scalar:
    from cbtrace.recorder.whatif.settings import SHARES
    from cbtrace.traces.predictions import LARGEST

    least, most = int(kind is int), 1 if key in SHARES else LARGEST
    try:
        number: Scalar = kind(text)
    except ValueError:
        number = None
    if not isinstance(number, (int, float)) or not least <= number <= most:
        raise UsageError(f"{key} is a {'whole ' * (kind is int)}number from {least} to {most:g}, not {text!r}.")
    return number
