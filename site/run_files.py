"""Everything a site holds of one run: its page, the data beside the page, and what other pages say of it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.experiment import PassTokens, pass_tokens
from cbtrace.site.analysis.goodput import service_times
from cbtrace.site.analysis.request_lives import request_lives
from cbtrace.site.analysis.run_conditions import RunConditions, run_conditions
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.site.assets import hashed_name
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare_data import compare_data
from cbtrace.site.pages.compare_groups import compare_entry
from cbtrace.site.pages.compare_requests import compare_requests, token_files
from cbtrace.site.pages.goodput_section import goodput_data
from cbtrace.site.pages.index import IndexRow, index_row
from cbtrace.site.pages.rank_data import step_columns
from cbtrace.site.pages.rank_section import rank_section
from cbtrace.site.pages.request_data import (
    DETAILS_A_FILE,
    gaps_a_request,
    request_details,
    request_head,
    request_lists,
)
from cbtrace.site.pages.run import run_page, run_view, time_origin
from cbtrace.site.pages.timeline_data import ROWS_A_FILE, STEPS, timeline_data, timeline_parts
from cbtrace.site.pages.where import cut_rows
from cbtrace.site.render import data_script
from cbtrace.site.run_ranks import run_ranks
from cbtrace.site.words import Words
from cbtrace.traces import open_trace
from cbtrace.traces.rank_groups import RankGroup
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
    ranks: RankGroup | None = None
    """The files of a run over several ranks, of which this trace stands for the run."""
    ranks_digest: str = ""
    """SHA-256 of all that the run's files depend on of its other ranks, in hexadecimal; empty without others."""


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


Write = Callable[[str, str], object]
"""Takes a file as it is finished: its path relative to the site, and its text."""


@dataclass
class RunFiles:
    """The files of one run while they are made: each is handed on at once, since those of a long run are many."""

    slug: str
    write: Write
    parts: dict[str, list[str]] = field(default_factory=dict)
    """By kind: the digest in the name of each of its files, for the page to ask for them."""

    @property
    def base(self) -> str:
        """The run's folder."""
        return f"runs/{self.slug}"

    def add(self, name: str, text: str) -> str:
        """Add a file to the run's folder; return its path relative to the site."""
        path = f"{self.base}/{name}"
        self.write(path, text)
        return path

    def add_data(self, key: str, data: dict[str, Any]) -> str:
        """Add a data file that is loaded under ``key``; return its name within the run's folder."""
        text = data_script(key, data)
        name = hashed_name(f"{key.rpartition('/')[2]}.js", text)
        self.add(name, text)
        return name

    def add_part(self, kind: str, data: dict[str, Any]) -> None:
        """Add the next file of a kind, which the page loads when it is asked for."""
        digests = self.parts.setdefault(kind, [])
        name = self.add_data(f"{self.slug}/{kind}-{len(digests)}", data)
        digests.append(name.split(".")[-2])


Told = Callable[[float], object]
"""Told now and then which share of the work on a run is done."""
_READ, _ANALYZED, _STEPS, _REQUESTS = 0.2, 0.4, 0.65, 0.97
"""The share that is done after each piece of work, as measured with a million steps."""


def run_files(chrome: Chrome, source: RunSource, write: Write, told: Told = lambda share: None) -> RunRecord:
    """Read a trace and ``write`` the files of its run; return the record of it.

    Raises:
        TraceError: the file cannot be read as a trace.
    """
    trace = open_trace(source.path)
    told(_READ)
    cuts = attribute(trace)
    told(_ANALYZED)
    summary = summarize(trace, cuts)
    slug = run_slug(trace.header.name, source)
    out = RunFiles(slug, write)
    origin = time_origin(trace)
    timeline = timeline_data(trace, origin, chrome.words)
    ranks = run_ranks(trace, source.ranks)
    side_by_side = rank_section(ranks, origin, chrome.words) if ranks else None
    view = run_view(trace, summary, cuts, slug, timeline, side_by_side, chrome.words)
    by_step = step_columns(ranks.analysis, trace.steps.index) if ranks else {}
    for kind, part in timeline_parts(trace, timeline, origin, by_step):
        out.add_part(kind, part)
        written = min(1.0, len(out.parts.get(STEPS, ())) * ROWS_A_FILE / len(trace.steps.index))
        told(_ANALYZED + written * (_STEPS - _ANALYZED))
    _add_requests(out, trace, cuts, origin, chrome.words, told)
    key = f"{slug}/run"
    more = {"slug": slug, "parts": out.parts, "cuts": cut_rows(cuts, chrome.words)}
    more |= {"ranks": side_by_side.chart.data} if side_by_side else {}
    script = out.add_data(key, timeline.overview | more)
    side, entry = add_side(out, trace, summary, cuts)
    return RunRecord(
        slug=slug,
        name=view.name.encode(errors="backslashreplace").decode(),  # a file's name need not be text
        page=out.add("index.html", run_page(chrome, view, script, key)),
        complete=trace.recovery.whole and (ranks is None or ranks.complete),
        summary=summary,
        row=index_row(trace, summary, slug, ranks),
        entry=entry,
        side=side,
        conditions=run_conditions(trace),
        tokens=pass_tokens(trace.steps),
    )


def _add_requests(out: RunFiles, trace: Trace, cuts: Cuts, origin_ns: int, words: Words, told: Told) -> None:
    """Add what the page loads of requests when asked."""
    for part in request_lists(trace, cuts.longest_gap, origin_ns):
        out.add_part("list", part)
    begins = []
    for found in request_lives(trace, gaps_a_request(len(trace.requests.id))):
        for first in range(found.first, found.end, DETAILS_A_FILE):
            end = min(first + DETAILS_A_FILE, found.end)
            out.add_part("request", request_details(cuts.ttft, found, first, end, origin_ns))
            begins.append(first)
        told(_STEPS + found.end / len(trace.requests.id) * (_REQUESTS - _STEPS))
    out.add_part("requests", request_head(trace, cuts.longest_gap, begins, origin_ns, words))
    out.add_part("goodput", goodput_data(service_times(trace, cuts.longest_gap), words))


def add_side(out: RunFiles, trace: Trace, summary: RunSummary, cuts: Cuts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add what comparisons need of a run; return its side, and its entry in the list of runs that can be chosen."""
    side = compare_data(trace, summary, cuts, out.slug)
    key = f"{out.slug}/compare"
    tokens = [out.add_data(f"{key}-tokens-{number}", {"ids": part}) for number, part in enumerate(token_files(trace))]
    requests = out.add_data(f"{key}-requests", compare_requests(trace, cuts.longest_gap))
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
