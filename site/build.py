"""Builds a site from traces: a folder of static pages that works from ``file://``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.assets import SPECS, Assets, hashed_name, site_assets
from cbtrace.site.folder import OutputFolder
from cbtrace.site.pages.about import about_page
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare import compare_page
from cbtrace.site.pages.compare_data import catalogue_data
from cbtrace.site.pages.index import index_page
from cbtrace.site.pages.messages import messages_page
from cbtrace.site.pages.metrics import metrics_page
from cbtrace.site.render import data_script
from cbtrace.site.run_files import SLUG_DIGITS, RunRecord, RunSource, digest_file, run_files
from cbtrace.site.words import LANGUAGES, load_words
from cbtrace.traces.errors import UsageError
from cbtrace.traces.reader import open_bytes

Progress = Callable[[int, int, str], None]
"""Called with how many traces are done, how many there are, and the name of the file at hand."""


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
    with OutputFolder(out) as folder:
        assets = site_assets(load_words(language))
        chrome = site_chrome(assets, title, language)
        _write(folder, assets.files)
        records: list[RunRecord] = []
        for done, source in enumerate(sources(paths)):
            if progress is not None:
                progress(done, len(paths), source.path.name)
            record, texts = run_files(chrome, source)
            _write(folder, texts)
            records.append(record)
        _write(folder, shared_pages(chrome, records))
        if progress is not None:
            progress(len(paths), len(paths), "")
    runs = [BuiltRun(p, r.name, r.page, r.complete, r.summary) for p, r in zip(paths, records, strict=True)]
    return BuildReport(folder.out, runs, len(folder.files), sum(folder.files.values()))


def _write(folder: OutputFolder, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        folder.write(name, text)


def sources(paths: Iterable[Path]) -> list[RunSource]:
    """The traces with their digests, and those whose digests begin alike counted."""
    found: list[RunSource] = []
    copies: Counter[str] = Counter()
    for path in paths:
        open_bytes(path).close()
        digest = digest_file(path)
        copies[digest[:SLUG_DIGITS]] += 1
        found.append(RunSource(path, digest, copies[digest[:SLUG_DIGITS]]))
    return found


def site_chrome(assets: Assets, title: str, language: str) -> Chrome:
    """What all pages of the site have around their content."""
    return Chrome(
        title=title,
        words=load_words(language),
        assets=assets.paths,
        chart_specs=assets.paths[SPECS],
        tool_version=_tool_version(),
    )


def shared_pages(chrome: Chrome, records: Sequence[RunRecord]) -> dict[str, str]:
    """The pages that are not of one run, by path relative to the site, with the data they need."""
    choices = data_script("runs", {"runs": [record.entry for record in records]} | catalogue_data(chrome.words))
    choices_path = f"assets/{hashed_name('runs.js', choices)}"
    return {
        choices_path: choices,
        "compare.html": compare_page(chrome, choices_path),
        "metrics.html": metrics_page(chrome),
        "about.html": about_page(chrome),
        "messages.html": messages_page(chrome),
        "index.html": index_page(chrome, [record.row for record in records]),
    }


def _tool_version() -> str:
    try:
        return version("cbtrace")
    except PackageNotFoundError:
        return "0"
