"""The compare page: any two sides of the runs at hand, chosen in the browser; or one comparison, made beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare_static import Side, StaticSection, comparison_sections

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


@dataclass(frozen=True)
class _Shown:
    """The comparison that a page shows from the start; its sides as the fragment of a link names them."""

    label: str
    a: str
    b: str
    sections: list[StaticSection]


def comparison_path(a: Sequence[str], b: Sequence[str]) -> str:
    """Where the page of a comparison lies, relative to the site; ``a`` and ``b`` are names of runs."""
    names = "|".join(".".join(side) for side in (a, b))
    return f"comparison-{hashlib.sha256(names.encode()).hexdigest()[:8]}.html"


def compare_page(chrome: Chrome, runs_script: str, defaults: Sequence[DefaultComparison] = ()) -> str:
    """The page as HTML. ``runs_script`` lists the runs and where the data of each is."""
    return _page(chrome, runs_script, None, defaults)


def comparison_page(chrome: Chrome, runs_script: str, label: str, a: Side, b: Side) -> str:
    """The page of one comparison: plain HTML, which the scripts take over where they run.

    ``runs_script`` lists at least the runs of both sides.
    """
    id_a, id_b = (".".join(run["slug"] for run in side) for side in (a, b))
    return _page(chrome, runs_script, _Shown(label, id_a, id_b, comparison_sections(a, b, chrome.words)), ())


def _page(chrome: Chrome, runs_script: str, shown: _Shown | None, defaults: Sequence[DefaultComparison]) -> str:
    return chrome.page(
        "compare.html",
        "compare",
        runs_script=runs_script,
        scripts=SCRIPTS,
        shown=shown,
        defaults=list(defaults),
    )
