"""Numbers as readers see them: few digits, the unit beside, and a dash for what is unknown."""

from __future__ import annotations

from datetime import datetime, timezone

UNKNOWN = "\N{EM DASH}"
_SPACE = "\N{NO-BREAK SPACE}"
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """Three significant digits or all integer digits, with thin grouping of thousands."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds, without its unit."""
    return number(value)


def from_ns(value: int | None) -> str:
    """A duration given in nanoseconds, as milliseconds without the unit; a dash for -1."""
    return UNKNOWN if value is None or value < 0 else number(value / 1e6)


def seconds(value: float | None) -> str:
    """Seconds to the millisecond, without the unit."""
    return UNKNOWN if value is None else f"{value:,.3f}"


def size(value: float | None) -> str:
    """Bytes in the largest binary unit that keeps it at 1 or more."""
    if value is None or value < 0:
        return UNKNOWN
    amount, unit = float(value), 0
    while amount >= 1024 and unit + 1 < len(_BINARY):
        amount, unit = amount / 1024, unit + 1
    return f"{number(amount)}{_SPACE}{_BINARY[unit]}"


def signed_size(value: int) -> str:
    """Bytes that may be negative: memory that was given back."""
    return size(value) if value >= 0 else f"\N{MINUS SIGN}{size(-value)}"


def percent(share: float | None) -> str:
    """A share of one as per cent."""
    if share is None:
        return UNKNOWN
    value = 100 * share
    if 0 < abs(value) < 0.05:
        return f"<0.1{_SPACE}%"
    return f"{value:.1f}{_SPACE}%" if 0 < abs(value) < 10 else f"{value:.0f}{_SPACE}%"


def instant(wall_ns: int) -> str:
    """A wall-clock instant in UTC, to the second, as it stands in the trace."""
    try:
        return datetime.fromtimestamp(wall_ns // 1_000_000_000, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def fact(value: object) -> str:
    """A setting or a condition of the run."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
