"""Everything a site holds of one run: its page, the data beside the page, and what other pages say of it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.experiment import PassTokens, pass_tokens
from cbtrace.site.analysis.goodput import service_times
from cbtrace.site.analysis.run_conditions import RunConditions, run_conditions
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.site.assets import hashed_name
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare_data import compare_data
from cbtrace.site.pages.compare_groups import compare_entry
from cbtrace.site.pages.compare_requests import compare_requests, token_files
from cbtrace.site.pages.goodput_section import goodput_data
from cbtrace.site.pages.index import IndexRow, index_row
from cbtrace.site.pages.request_data import DETAILS_A_FILE, request_files
from cbtrace.site.pages.run import RunView, run_page, run_view, time_origin
from cbtrace.site.pages.step_data import step_files
from cbtrace.site.pages.timeline_data import TimelineData, timeline_data
from cbtrace.site.pages.where import cut_rows
from cbtrace.site.render import data_script
from cbtrace.site.words import Words
from cbtrace.traces import open_trace
from cbtrace.traces.reader import Trace

SLUG_DIGITS = 8
"""Hexadecimal digits of a trace's digest in the name of its folder."""


@dataclass(frozen=True)
class RunSource:
    """A trace to make a run's files from."""

    path: Path
    digest: str
    """SHA-256 of its bytes, in hexadecimal; empty when they cannot be read."""
    size: int
    """How many bytes it has."""
    copy: int
    """Counts the traces of a site whose digests begin alike: two equal traces have a page each."""


class RunRecord(msgspec.Struct, frozen=True):
    """What the pages that list runs need of one run. It is stored, so that an unchanged trace is not read again."""

    slug: str
    name: str
    page: str
    """Path of its page, relative to the site."""
    complete: bool
    """Whether everything that was recorded was read."""
    summary: RunSummary
    row: IndexRow
    entry: dict[str, Any]
    """The run in the list that the compare page chooses from."""
    side: dict[str, Any]
    """The run's side of comparisons."""
    conditions: RunConditions
    tokens: PassTokens


@dataclass
class RunFiles:
    """The files of one run while they are made: texts by path relative to the site."""

    slug: str
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The run's folder."""
        return f"runs/{self.slug}"

    def add(self, name: str, text: str) -> str:
        """Add a file to the run's folder; return its path relative to the site."""
        path = f"{self.base}/{name}"
        self.texts[path] = text
        return path

    def add_data(self, key: str, data: dict[str, Any]) -> str:
        """Add a data file that is loaded under ``key``; return its name within the run's folder."""
        text = data_script(key, data)
        name = hashed_name(f"{key.rpartition('/')[2]}.js", text)
        self.add(name, text)
        return name


def run_files(chrome: Chrome, source: RunSource) -> tuple[RunRecord, dict[str, str]]:
    """Read a trace; return the record of the run, and the texts of its files by path relative to the site.

    Raises:
        TraceError: the file cannot be read as a trace.
    """
    trace = open_trace(source.path)
    summary, cuts = summarize(trace), attribute(trace)
    slug = run_slug(trace.header.name, source)
    out = RunFiles(slug)
    origin = time_origin(trace)
    timeline = timeline_data(trace, slug, origin, chrome.words)
    view = run_view(trace, summary, cuts, slug, timeline, chrome.words)
    details = _add_details(out, _Details(trace, cuts, timeline, view, origin), chrome.words)
    key = f"{slug}/run"
    script = out.add_data(key, timeline.overview | details | {"cuts": cut_rows(cuts, chrome.words)})
    side, entry = add_side(out, trace, summary, cuts)
    record = RunRecord(
        slug=slug,
        name=view.name.encode(errors="backslashreplace").decode(),  # a file's name need not be text
        page=out.add("index.html", run_page(chrome, view, script, key)),
        complete=trace.recovery.whole,
        summary=summary,
        row=index_row(trace, summary, slug),
        entry=entry,
        side=side,
        conditions=run_conditions(trace),
        tokens=pass_tokens(trace.steps),
    )
    return record, out.texts


@dataclass(frozen=True)
class _Details:
    """What the files beside a run's page are made from."""

    trace: Trace
    cuts: Cuts
    timeline: TimelineData
    view: RunView
    origin_ns: int


def _add_details(out: RunFiles, of: _Details, words: Words) -> dict[str, Any]:
    """Add what the page loads when asked: finer levels of the timeline, requests, steps. Returns where it is."""
    named = np.array([step.index for step in of.view.gaps.steps], dtype=np.int64)
    requests = request_files(of.trace, of.cuts, of.origin_ns, words)
    steps = list(step_files(of.trace, named, of.origin_ns))
    parts = {part.key: part.data for part in of.timeline.files}
    parts[f"{out.slug}/requests"] = requests.listed
    parts[f"{out.slug}/goodput"] = goodput_data(service_times(of.trace), words)
    parts |= {f"{out.slug}/request-{number}": part for number, part in enumerate(requests.details)}
    parts |= {f"{out.slug}/step-{number}": part for number, part in enumerate(steps)}
    return {
        "slug": out.slug,
        "sources": {key: out.add_data(key, data) for key, data in parts.items()},
        "details_a_file": DETAILS_A_FILE,
        "step_starts": [part["index"][0] for part in steps],
    }


def add_side(out: RunFiles, trace: Trace, summary: RunSummary, cuts: Cuts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add what comparisons need of a run; return its side, and its entry in the list of runs that can be chosen."""
    side = compare_data(trace, summary, cuts, out.slug)
    key = f"{out.slug}/compare"
    tokens = [out.add_data(f"{key}-tokens-{number}", {"ids": part}) for number, part in enumerate(token_files(trace))]
    requests = out.add_data(f"{key}-requests", compare_requests(trace))
    src = out.add_data(key, side | {"sources": {"requests": requests, "tokens": tokens}})
    return side, compare_entry(trace, summary, side, f"{out.base}/{src}")


def run_slug(name: str, source: RunSource) -> str:
    """A name for the run's folder: of ASCII letters, digits and dashes, never two alike on one site."""
    ascii_name = unicodedata.normalize("NFKD", (name.strip() or source.path.stem)[:200]).encode("ascii", "ignore")
    words = re.sub(r"[^a-z0-9]+", "-", ascii_name.decode().lower()).strip("-")[:40].strip("-") or "run"
    slug = f"{words}-{source.digest[:SLUG_DIGITS]}"
    return slug if source.copy == 1 else f"{slug}-{source.copy}"


def digest_file(path: Path) -> tuple[str, int]:
    """SHA-256 of a file's bytes, in hexadecimal, and their number; an empty text when they cannot be read."""
    found, size = hashlib.sha256(), 0
    if not path.is_file():  # a pipe would never end
        return "", 0
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
                size += len(part)
    except OSError:
        return "", 0
    return found.hexdigest(), size
