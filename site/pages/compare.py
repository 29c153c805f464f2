"""The compare page: any two sides of the site's runs, chosen in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.site.pages.chrome import Chrome

SCRIPTS = (
    "compare_noise.js",
    "compare_conditions.js",
    "comparison.js",
    "compare_details.js",
    "compare_dom.js",
    "compare_changes.js",
    "compare_shapes.js",
    "compare_where.js",
    "compare_requests.js",
    "compare_choice.js",
    "compare.js",
)
"""What the page runs, in this order."""


@dataclass(frozen=True)
class DefaultComparison:
    """A comparison that was made with the site, and can be read without JavaScript."""

    label: str
    page: str
    """Path relative to the site."""


def compare_page(chrome: Chrome, runs_script: str, defaults: Sequence[DefaultComparison] = ()) -> str:
    """The page as HTML. ``runs_script`` lists the runs and where the data of each is."""
    return chrome.page("compare.html", "compare", runs_script=runs_script, scripts=SCRIPTS, defaults=list(defaults))
