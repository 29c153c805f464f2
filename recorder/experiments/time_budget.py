"""How long a runner may go on starting runs: a machine that is lent by the hour is not to be overdrawn."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


@dataclass(frozen=True)
class TimeBudget:
    """Seconds, from when it was made."""

    seconds: float
    _start: float = field(default_factory=time.monotonic)

    def allows(self, expected_s: float) -> bool:
        """Whether a run that takes so long would still end in time."""
        return time.monotonic() - self._start + expected_s <= self.seconds


def parse_duration(given: str) -> float:
    """Turn a duration such as ``540``, ``540s``, ``9m`` or ``1.5h`` into seconds.

    Raises:
        UsageError: it is none, or no time at all.
    """
    found = _DURATION.fullmatch(given.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None or float(found[1]) == 0:
        raise UsageError(f"{given[:40]!r} is no duration: write it as in 540s, 9m or 1.5h.", slug="bad-duration")
    return float(found[1]) * unit


declare(
    "bad-duration",
    Severity.BROKEN,
    "A time limit on the command line is not a number with a unit.",
    "Write it as in `540s`, `9m` or `1.5h`.",
)
