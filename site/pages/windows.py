"""Windows of the timeline that links on a run's page lead to."""

from __future__ import annotations


def window_around(start_ns: int, end_ns: int, origin_ns: int) -> str:
    """A window, as start and end in seconds, that shows the span in its middle third."""
    width = max(end_ns - start_ns, 1)
    return f"{(start_ns - width - origin_ns) / 1e9:.6f},{(end_ns + width - origin_ns) / 1e9:.6f}"
