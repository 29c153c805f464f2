"""What every page has around its content: title, navigation, assets, language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cbtrace.site.render import render
from cbtrace.site.words import Words


@dataclass(frozen=True)
class Chrome:
    """The frame of all pages of one site. Paths are relative to the site's folder."""

    title: str
    words: Words
    assets: Mapping[str, str]
    """Path of each asset by its plain name."""
    chart_specs: str
    tool_version: str

    def page(self, template: str, current: str, *, root: str = "", **content: Any) -> str:
        """Render one page. ``root`` leads from its folder to the site's."""
        return render(
            f"pages/{template}",
            t=self.words,
            site_title=self.title,
            assets=self.assets,
            chart_specs=self.chart_specs,
            tool_version=self.tool_version,
            current=current,
            root=root,
            **content,
        )
