"""The compare page: any two runs of the site, chosen in the browser."""

from __future__ import annotations

from cbtrace.site.pages.chrome import Chrome


def compare_page(chrome: Chrome, runs_script: str) -> str:
    """The page as HTML. ``runs_script`` lists the runs and where the data of each is."""
    return chrome.page("compare.html", "compare", runs_script=runs_script)
