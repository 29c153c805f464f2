"""What each color means, the same in every chart, table and legend.

A specification names a color as its CSS variable; the browser puts in the value of the reader's scheme (light or dark)
before a chart is drawn. The values themselves are in ``templates/assets/style.css``.
"""

from __future__ import annotations

DECODE = "var(--decode)"
LIMIT = "var(--limit)"
ROOM = "var(--cached)"
QUIET = "var(--muted)"
SIGNAL = "var(--accent)"
FAILURE = "var(--mark-failure)"
RUN_A = "var(--run-a)"
RUN_B = "var(--run-b)"
