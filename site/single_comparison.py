"""One comparison as one HTML file: everything inside, to be sent or kept with a build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.assets import site_assets, site_chrome
from cbtrace.site.pages.compare import comparison_page
from cbtrace.site.pages.compare_data import catalogue_data
from cbtrace.site.pages.explaining import explaining_pages
from cbtrace.site.render import data_script
from cbtrace.site.run_files import SLUG_DIGITS, RunSource, add_side, digest_file, run_slug
from cbtrace.site.run_output import RunFiles, into
from cbtrace.site.single_file import single_file
from cbtrace.site.single_run import refuse_what_is_not_ours, write_page
from cbtrace.site.words import load_words
from cbtrace.traces import open_trace

PAGE = "comparison.html"
RUNS = "assets/runs.js"


def build_single_comparison(
    a: Sequence[Path], b: Sequence[Path], out: Path, *, title: str | None = None, language: str = "en"
) -> None:
    """Write the comparison of the traces of A with those of B, each one or more, to the file ``out``.

    It can be read without scripts; with them it has charts, and its runs can be chosen and swapped.

    Raises:
        UsageError: an unknown language.
        TraceError: a file cannot be read as a trace.
        OutputFolderError: ``out`` is there and cbtrace did not write it.
        OutputWriteError: it cannot be written; what was there before still is.
    """
    refuse_what_is_not_ours(out)
    words = load_words(language)
    assets = site_assets(words)
    chrome = site_chrome(assets, title, words)
    copies: Counter[str] = Counter()
    texts: dict[str, str] = {}
    sides, entries = [], []
    for path in (*a, *b):
        side, entry = _add_run(path, copies, texts)
        sides.append(side)
        entries.append(entry)
    left, right = sides[: len(a)], sides[len(a) :]
    label = words("compare.of_runs", a=_names(left), b=_names(right))
    texts[RUNS] = data_script("runs", {"runs": entries} | catalogue_data(words, alone=True))
    texts[PAGE] = comparison_page(chrome, RUNS, label, left, right)
    explaining = explaining_pages(chrome)
    used = {name: text for name, text in assets.files.items() if name in texts[PAGE]}
    write_page(out, single_file(PAGE, used | texts | explaining, list(explaining)))


def _add_run(path: Path, copies: Counter[str], texts: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add the data of a run; return its side and its entry in the list of runs."""
    trace = open_trace(path)
    digest, size = digest_file(path)
    copies[digest[:SLUG_DIGITS]] += 1
    slug = run_slug(trace.header.name, RunSource(path, digest, size, copies[digest[:SLUG_DIGITS]]))
    cuts = attribute(trace)
    return add_side(RunFiles(slug, into(texts)), trace, summarize(trace, cuts), cuts)


def _names(side: Sequence[dict[str, Any]]) -> str:
    name = str(side[0]["name"])
    return name if len(side) == 1 else f"{name} (+{len(side) - 1})"
