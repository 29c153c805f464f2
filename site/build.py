"""Builds a site from traces: a folder of static pages that works from ``file://``."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.site.charts.specs import chart_specs
from cbtrace.site.folder import OutputFolder
from cbtrace.site.pages.about import about_page
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare import compare_page
from cbtrace.site.pages.compare_data import catalogue_data, compare_data
from cbtrace.site.pages.compare_groups import compare_entry
from cbtrace.site.pages.compare_requests import compare_requests, token_files
from cbtrace.site.pages.index import IndexRow, index_page, index_row
from cbtrace.site.pages.messages import messages_page
from cbtrace.site.pages.metrics import metrics_page
from cbtrace.site.pages.request_data import DETAILS_A_FILE, request_files
from cbtrace.site.pages.run import RunView, run_page, run_view, time_origin
from cbtrace.site.pages.step_data import step_files
from cbtrace.site.pages.timeline_data import TimelineData, timeline_data
from cbtrace.site.pages.where import cut_rows
from cbtrace.site.render import data_script
from cbtrace.site.words import LANGUAGES, Words, load_words
from cbtrace.traces import open_trace
from cbtrace.traces.errors import UsageError
from cbtrace.traces.reader import Trace

Progress = Callable[[int, int, str], None]
"""Called with how many traces are done, how many there are, and the name of the file at hand."""

ASSETS = (
    "style.css",
    "cbtrace.js",
    "charts.js",
    "timeline.js",
    "where.js",
    "requests.js",
    "steps.js",
    "index.js",
    "comparison.js",
    "compare.js",
)
VEGA = "vendor/vega.js"


@dataclass(frozen=True)
class BuiltRun:
    """One run of a site: its trace, and where its page is, relative to the site."""

    source: Path
    name: str
    page: str
    complete: bool
    """Whether everything that was recorded was read."""
    summary: RunSummary


@dataclass(frozen=True)
class BuildReport:
    """What was built."""

    out: Path
    runs: list[BuiltRun]
    files: int
    bytes: int


def build_site(
    paths: Sequence[Path], out: Path, *, title: str = "cbtrace", language: str = "en", progress: Progress | None = None
) -> BuildReport:
    """Read every trace of ``paths`` and write a site to the folder ``out``.

    Runs are listed in the order of ``paths``; ``language`` is one of :data:`~cbtrace.site.words.LANGUAGES`. The site is
    written aside and swapped in, so that an error leaves ``out`` as it was. The same traces give the same bytes. A
    damaged trace is shown under a banner.

    Raises:
        UsageError: no traces, an unknown language, or an output folder that holds something else.
        TraceError: a file that is no trace; the message names it.
        OutputWriteError: the site could not be written.
    """
    if not paths:
        raise UsageError("There is no trace to build a site from: name one or more .cbt files.")
    if language not in LANGUAGES:
        raise UsageError(f"There are no texts in {language!r}: choose one of {', '.join(LANGUAGES)}.")
    words = load_words(language)
    with OutputFolder(out) as folder:
        chrome = _write_assets(folder, title, words)
        runs: list[BuiltRun] = []
        rows: list[IndexRow] = []
        sides: list[dict[str, Any]] = []
        slugs: set[str] = set()
        for done, path in enumerate(paths):
            if progress is not None:
                progress(done, len(paths), path.name)
            run, row, side = _write_run(folder, chrome, path, slugs)
            runs.append(run)
            rows.append(row)
            sides.append(side)
        _write_pages(folder, chrome, rows, sides)
        if progress is not None:
            progress(len(paths), len(paths), "")
    return BuildReport(folder.out, runs, len(folder.files), sum(folder.files.values()))


def _write_assets(folder: OutputFolder, title: str, words: Words) -> Chrome:
    source = files("cbtrace.templates") / "assets"
    assets = {name: _write_hashed(folder, name, (source / name).read_text(encoding="utf-8")) for name in ASSETS}
    assets["vega.js"] = _write_hashed(folder, "vega.js", (source / VEGA).read_text(encoding="utf-8"))
    specs = _write_hashed(folder, "specs.js", data_script("charts", chart_specs(words)))
    return Chrome(title=title, words=words, assets=assets, chart_specs=specs, tool_version=_tool_version())


def _write_hashed(folder: OutputFolder, name: str, text: str) -> str:
    """Write a script or style sheet under a name that changes with its content, so that no browser shows an old one."""
    stem, _, suffix = name.rpartition(".")
    return folder.write(f"assets/{stem}.{digest(text.encode())}.{suffix}", text)


def _write_data(folder: OutputFolder, base: str, key: str, data: dict[str, Any]) -> str:
    """Write a run's data under ``key``; return its file name within the run's folder."""
    text = data_script(key, data)
    name = f"{key.rpartition('/')[2]}.{digest(text.encode())}.js"
    folder.write(f"{base}/{name}", text)
    return name


def _write_run(
    folder: OutputFolder, chrome: Chrome, path: Path, slugs: set[str]
) -> tuple[BuiltRun, IndexRow, dict[str, Any]]:
    trace = open_trace(path)
    summary = summarize(trace)
    slug = run_slug(trace, slugs)
    base = f"runs/{slug}"
    origin = time_origin(trace)
    cuts = attribute(trace)
    timeline = timeline_data(trace, slug, origin, chrome.words)
    view = run_view(trace, summary, cuts, slug, timeline, chrome.words)
    files = _write_details(folder, base, slug, _Details(trace, cuts, timeline, view, origin), chrome.words)
    key = f"{slug}/run"
    script = _write_data(folder, base, key, timeline.overview | files | {"cuts": cut_rows(cuts, chrome.words)})
    page = folder.write(f"{base}/index.html", run_page(chrome, view, script, key))
    side = _write_side(folder, base, trace, summary, compare_data(trace, summary, cuts, slug))
    run = BuiltRun(path, view.name, page, trace.recovery.whole, summary)
    return run, index_row(trace, summary, slug), side


def _write_side(
    folder: OutputFolder, base: str, trace: Trace, summary: RunSummary, side: dict[str, Any]
) -> dict[str, Any]:
    """Write what comparisons need of a run; return its entry in the list of runs that can be chosen."""
    key = f"{side['slug']}/compare"
    tokens = [
        _write_data(folder, base, f"{key}-tokens-{number}", {"ids": part})
        for number, part in enumerate(token_files(trace))
    ]
    requests = _write_data(folder, base, f"{key}-requests", compare_requests(trace))
    src = _write_data(folder, base, key, side | {"sources": {"requests": requests, "tokens": tokens}})
    return compare_entry(trace, summary, side, f"{base}/{src}")


def _write_pages(folder: OutputFolder, chrome: Chrome, rows: list[IndexRow], sides: list[dict[str, Any]]) -> None:
    runs = data_script("runs", {"runs": sides} | catalogue_data(chrome.words))
    folder.write("index.html", index_page(chrome, rows))
    folder.write("compare.html", compare_page(chrome, _write_hashed(folder, "runs.js", runs)))
    folder.write("metrics.html", metrics_page(chrome))
    folder.write("about.html", about_page(chrome))
    folder.write("messages.html", messages_page(chrome))


@dataclass(frozen=True)
class _Details:
    """What the files beside a run's page are made from."""

    trace: Trace
    cuts: Cuts
    timeline: TimelineData
    view: RunView
    origin_ns: int


def _write_details(folder: OutputFolder, base: str, slug: str, of: _Details, words: Words) -> dict[str, Any]:
    """Write what the page loads when asked: finer levels of the timeline, requests, steps. Returns where it is."""
    named = np.array([step.index for step in of.view.gaps.steps], dtype=np.int64)
    requests = request_files(of.trace, of.cuts, of.origin_ns, words)
    steps = list(step_files(of.trace, named, of.origin_ns))
    parts = {part.key: part.data for part in of.timeline.files}
    parts[f"{slug}/requests"] = requests.listed
    parts |= {f"{slug}/request-{number}": part for number, part in enumerate(requests.details)}
    parts |= {f"{slug}/step-{number}": part for number, part in enumerate(steps)}
    return {
        "slug": slug,
        "sources": {key: _write_data(folder, base, key, data) for key, data in parts.items()},
        "details_a_file": DETAILS_A_FILE,
        "step_starts": [part["index"][0] for part in steps],
    }


def run_slug(trace: Trace, taken: set[str]) -> str:
    """A name for the run's folder: of ASCII letters, digits and dashes, never two alike. Adds it to ``taken``."""
    name = trace.header.name.strip() or trace.path.stem
    ascii_name = unicodedata.normalize("NFKD", name[:200]).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:40].strip("-") or "run"
    base = f"{words}-{digest(trace.path.read_bytes())}"
    slug, number = base, 2
    while slug in taken:
        slug, number = f"{base}-{number}", number + 1
    taken.add(slug)
    return slug


def digest(data: bytes) -> str:
    """Eight hexadecimal digits of the content, for names."""
    return hashlib.sha256(data).hexdigest()[:8]


def _tool_version() -> str:
    try:
        return version("cbtrace")
    except PackageNotFoundError:
        return "0"
