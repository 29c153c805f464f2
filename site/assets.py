"""Files that all pages of a site share: style sheet, scripts, Vega and the specifications of charts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from cbtrace.site.charts.specs import chart_specs
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare import SCRIPTS as COMPARE_SCRIPTS
from cbtrace.site.render import data_script
from cbtrace.site.words import Words

ASSETS = (
    "style.css",
    "experiment.css",
    "early.js",
    "cbtrace.js",
    "charts.js",
    "columns.js",
    "goodput.js",
    "plot.js",
    "panels.js",
    "memory.js",
    "ranks.js",
    "timeline.js",
    "where.js",
    "request_lists.js",
    "requests.js",
    "steps.js",
    "index.js",
    "experiment.js",
    "compare.css",
    *COMPARE_SCRIPTS,
)
VEGA = "vendor/vega.js"
SPECS = "specs.js"


@dataclass(frozen=True)
class Assets:
    """The shared files of one site."""

    files: Mapping[str, str]
    """Text by path relative to the site."""
    paths: Mapping[str, str]
    """Path by plain name."""


def site_assets(words: Words) -> Assets:
    """Read the assets and make the specifications of charts with their ``words``."""
    source = files("cbtrace.templates") / "assets"
    texts = {name: (source / name).read_text(encoding="utf-8") for name in ASSETS}
    texts["vega.js"] = (source / VEGA).read_text(encoding="utf-8")
    texts[SPECS] = data_script("charts", chart_specs(words))
    paths = {name: f"assets/{hashed_name(name, text)}" for name, text in texts.items()}
    return Assets({paths[name]: text for name, text in texts.items()}, paths)


def site_chrome(assets: Assets, title: str | None, words: Words) -> Chrome:
    """What all pages of a site have around their content. A site without a title has that of its language."""
    return Chrome(
        title=words("site.title") if title is None else title,
        words=words,
        assets=assets.paths,
        chart_specs=assets.paths[SPECS],
        tool_version=_tool_version(),
    )


def hashed_name(name: str, text: str) -> str:
    """A file name that changes with the file's content, so that no browser shows an old one."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{hashlib.sha256(text.encode()).hexdigest()[:8]}.{suffix}"


def _tool_version() -> str:
    try:
        return version("cbtrace")
    except PackageNotFoundError:
        return "0"
