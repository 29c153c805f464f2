"""One run as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cbtrace.site.assets import site_assets, site_chrome
from cbtrace.site.build import sources
from cbtrace.site.folder import OutputFolderError, explained
from cbtrace.site.pages.explaining import explaining_pages
from cbtrace.site.run_files import RunRecord, run_files
from cbtrace.site.run_output import into
from cbtrace.site.single_file import single_file
from cbtrace.site.words import load_words
from cbtrace.traces.aside import written_aside
from cbtrace.traces.errors import UsageError

MADE_BY = b'<meta name="generator" content="cbtrace">'
"""Every page of cbtrace has this in its head."""


def build_single_run(
    path: Path, out: Path, *, ranks: Sequence[Path] = (), title: str | None = None, language: str = "en"
) -> RunRecord:
    """Write the page of one run, with all its data and the pages that explain it, to the file ``out``. ``ranks`` are
    the traces of its further ranks, if it had any.

    Raises:
        UsageError: an unknown language, or traces of more than one run.
        TraceError: the file cannot be read as a trace.
        OutputFolderError: ``out`` is there and cbtrace did not write it.
        OutputWriteError: it cannot be written; what was there before still is.
    """
    refuse_what_is_not_ours(out)
    runs = sources([path, *ranks])
    if len(runs) != 1:
        raise UsageError(f"A single file holds one run, and {len(runs)} were named: name one, or all ranks of one.")
    words = load_words(language)
    assets = site_assets(words)
    chrome = site_chrome(assets, title, words)
    texts: dict[str, str] = {}
    record = run_files(chrome, runs[0], into(texts)).record
    explaining = explaining_pages(chrome)
    own = {name: text for name, text in texts.items() if not name.startswith(f"runs/{record.slug}/compare")}
    used = {name: text for name, text in assets.files.items() if name in texts[record.page]}
    write_page(out, single_file(record.page, used | own | explaining, list(explaining)))
    return record


def refuse_what_is_not_ours(out: Path) -> None:
    """Raise unless ``out`` is a new name, or a page that cbtrace wrote."""
    with explained(out):
        if out.is_dir():
            raise OutputFolderError(f"{out.name} is a folder: name a file for the page.")
        if out.exists() and not (out.is_file() and MADE_BY in _start(out)):
            raise OutputFolderError(f"{out.name} is not a page that cbtrace wrote: name a new file.")


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def write_page(out: Path, html: str) -> None:
    """Write a page beside its place and move it there."""
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(out) as aside:
            aside.write_text(html, encoding="utf-8", errors="backslashreplace")
