"""The size that a trace may have, as people write it: ``50MB``, ``1.5 GiB``, or a number of bytes."""

from __future__ import annotations

import re

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity
from cbtrace.traces.writer import SMALLEST_LIMIT

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", 1)
    for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(given: int | str) -> int:
    """Turn a size into bytes. ``k``, ``M``, ``G`` and ``T`` count in thousands, ``KiB`` to ``TiB`` in 1024s.

    Raises:
        UsageError: it is no size, or one that no trace can keep to.
    """
    found = _SIZE.fullmatch(str(given).strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{str(given)[:40]!r} is no size: write it as in 50MB, 1.5GiB or 200000.", slug="bad-size")
    size = int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
    if size < SMALLEST_LIMIT:
        raise UsageError(
            f"{given} is too small for a trace: allow it {SMALLEST_LIMIT // 1024} KiB at least.", slug="bad-size"
        )
    return size


declare(
    "bad-size",
    Severity.BROKEN,
    "The size that a trace may have is not a number with a unit, or is smaller than any trace.",
    "Write it as in `50MB` or `1.5GiB`; at least `64KiB`.",
)
declare(
    "no-size-limit",
    Severity.BROKEN,
    "It was said what to do when the trace reaches its size limit, and no limit was given.",
    "Name the limit too, as in `--max-size 50MB --when-full ring`.",
)
