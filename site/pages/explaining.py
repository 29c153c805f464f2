"""The pages that explain what stands on all others: numbers, the site itself, messages."""

from __future__ import annotations

from cbtrace.site.pages.about import about_page
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.messages import messages_page
from cbtrace.site.pages.metrics import metrics_page


def explaining_pages(chrome: Chrome) -> dict[str, str]:
    """The pages as HTML, by their paths relative to the site."""
    return {
        "metrics.html": metrics_page(chrome),
        "about.html": about_page(chrome),
        "messages.html": messages_page(chrome),
    }
