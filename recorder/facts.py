"""Facts about the surroundings of a run, read one by one so that one that cannot be read costs only itself.

Three states are kept apart: a value that was read, :data:`UNSET` or :data:`NONE` (known to be absent), and ``None``,
which means *unknown* and is never a guess.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from cbtrace.traces.schema import Facts, Scalar

UNSET = "unset"
"""The setting exists and was left to its default."""
NONE = "none"
"""The thing is known not to be there: a library that is not installed, a CUDA runtime in a CPU build."""

_LONGEST = 500
_INT_LIMIT = 1 << 63


def collect(readers: Mapping[str, Callable[[], Any]]) -> Facts:
    """Call every reader; a reader that raises leaves its fact unknown. Never raises."""
    facts: Facts = {}
    for name, read in readers.items():
        try:
            facts[name] = scalar(read())
        except Exception:
            facts[name] = None
    return facts


def scalar(value: Any) -> Scalar:
    """``value`` as something a trace can hold: numbers and texts as they are (texts cut at 500 characters), an enum by
    its value, a sequence as a comma-separated text, anything else by its text."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -_INT_LIMIT <= number < _INT_LIMIT else str(number)
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [str(scalar(part)) for part in value]
        value = ",".join(sorted(parts) if isinstance(value, (set, frozenset)) else parts)
    return str(value)[:_LONGEST]


def digest(text: str) -> str:
    """A short fingerprint of ``text`` that tells *same* from *different* without storing it: 32 bits of BLAKE2b."""
    return "blake2b:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
