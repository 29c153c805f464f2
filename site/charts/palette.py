"""What each color means, the same in every chart, table and legend.

A specification names a color as its CSS variable; the browser puts in the value of the reader's scheme (light or dark)
before a chart is drawn. The values themselves are in ``templates/assets/style.css``.
"""

from __future__ import annotations

PREFILL = "var(--prefill)"
DECODE = "var(--decode)"
RECOMPUTE = "var(--recompute)"
WASTED = "var(--wasted)"
LIMIT = "var(--limit)"
ROOM = "var(--cached)"
QUIET = "var(--muted)"
SIGNAL = "var(--accent)"
FAILURE = "var(--mark-failure)"
RUN_A = "var(--run-a)"
RUN_B = "var(--run-b)"

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
