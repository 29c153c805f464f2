"""What each color means, the same in every chart, table and legend.

A specification names a color as its CSS variable; the browser puts in the value of the reader's scheme (light or dark)
before a chart is drawn. The values themselves are in ``templates/assets/style.css``.
"""

from __future__ import annotations

from typing import Any

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
GPU = "var(--gpu)"
RUN_A = "var(--run-a)"
RUN_B = "var(--run-b)"
QUIET = "var(--muted)"
SIGNAL = "var(--accent)"

MEMORY_SERIES: tuple[tuple[Any, Any, Any], ...] = (
    ("reserved", "var(--used)", [1, 0]),
    ("allocated", "var(--decode)", [1, 0]),
    ("device_used", "var(--limit)", [5, 3]),
    ("host_rss", "var(--duration)", [2, 2]),
)
"""Color and dashes of each kind of memory."""

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

PIECE_COLORS = {
    "input_queue": "var(--piece-queue)",
    "warm_up": "var(--piece-warm-up)",
    "before_fork": "var(--piece-fork)",
    "wait_next_step": "var(--piece-next)",
    "wait_token_budget": "var(--piece-budget)",
    "wait_request_cap": "var(--piece-cap)",
    "wait_cache_budget": "var(--piece-cache)",
    "wait_kv_blocks": "var(--piece-blocks)",
    "wait_safety_margin": "var(--piece-margin)",
    "wait_blocked": "var(--piece-blocked)",
    "wait_unknown": "var(--piece-unknown)",
    "step_in_flight": "var(--piece-flight)",
    "prefill": PREFILL,
    "decode": DECODE,
    "shared_step": "var(--piece-shared)",
    "recompute": RECOMPUTE,
    "wasted": WASTED,
    "not_scheduled": "var(--piece-absent)",
    "reset_wait": "var(--piece-reset)",
    "offloaded": "var(--piece-offload)",
    "capture": "var(--mark-capture)",
    "copy": "var(--piece-copy)",
    "host": "var(--piece-host)",
    "idle": "var(--piece-idle)",
    "unattributed": "var(--piece-unknown)",
}
"""The color of each piece that a latency is cut into."""

STATE_COLORS = {
    "queued": "var(--piece-next)",
    **{name: PIECE_COLORS[name] for name in ("prefill", "decode", "recompute", "wasted")},
    **{name: PIECE_COLORS[name] for name in ("not_scheduled", "reset_wait", "offloaded", "unattributed")},
}
"""The color of each state of a request's life."""
