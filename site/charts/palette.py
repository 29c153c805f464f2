"""What each color means, the same in every chart, table and legend.

A specification names a color as its CSS variable; the browser puts in the value of the reader's scheme (light or dark)
before a chart is drawn. The values themselves are in ``templates/assets/style.css``.
"""

from __future__ import annotations

PREFILL = "var(--prefill)"
DECODE = "var(--decode)"
RECOMPUTE = "var(--recompute)"
WASTED = "var(--wasted)"
USED = "var(--used)"
CACHED = "var(--cached)"
RESERVE = "var(--reserve)"
LIMIT = "var(--limit)"
WAITING = "var(--waiting)"
ACTIVE = "var(--active)"
DURATION = "var(--duration)"
RUN_A = "var(--run-a)"
RUN_B = "var(--run-b)"
QUIET = "var(--muted)"
SIGNAL = "var(--accent)"

MARK_SHAPES = {
    "soft_reset": ("triangle-down", "var(--mark-reset)"),
    "offload": ("triangle-left", "var(--mark-offload)"),
    "restore": ("triangle-right", "var(--mark-offload)"),
    "capture": ("diamond", "var(--mark-capture)"),
    "cancel": ("square", "var(--muted)"),
    "failure": ("cross", "var(--mark-failure)"),
    "out_of_memory": ("cross", "var(--mark-failure)"),
    "fatal_error": ("cross", "var(--mark-failure)"),
    "oversize": ("triangle-up", "var(--mark-failure)"),
}
"""Shape and color of each kind of mark: color is never the only signal."""
