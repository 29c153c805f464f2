"""Everything a site holds of one run: its page, the data beside the page, and what other pages say of it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cbtrace.site.analysis.attribution import Cuts, attribute
from cbtrace.site.analysis.experiment import PassTokens, pass_tokens
from cbtrace.site.analysis.run_conditions import RunConditions, run_conditions
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare_data import compare_data
from cbtrace.site.pages.compare_groups import compare_entry
from cbtrace.site.pages.compare_requests import compare_requests, token_files
from cbtrace.site.pages.index import IndexRow, index_row
from cbtrace.site.pages.pieces import Piece
from cbtrace.site.pages.rank_data import step_columns
from cbtrace.site.pages.rank_section import rank_section
from cbtrace.site.pages.request_pieces import request_pieces
from cbtrace.site.pages.run import run_page, run_view, time_origin
from cbtrace.site.pages.timeline_data import timeline_data, timeline_pieces
from cbtrace.site.pages.where import cut_rows
from cbtrace.site.run_output import Parts, RunFiles, Write
from cbtrace.site.run_ranks import run_ranks
from cbtrace.site.workers import Told, forked
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


@dataclass(frozen=True)
class FinishedRun:
    """A run whose files are written, but not in their place yet."""

    record: RunRecord
    sizes: dict[str, int]
    """Size of each file by path relative to the site."""


_READ, _ANALYZED, _MADE = 0.25, 0.55, 0.97
"""The share that is done after each piece of work, as measured with a million steps."""
_VIEW, _SIDE = 200, 100
"""How many files of a long run can be made while its view or its side of comparisons is."""


@dataclass(frozen=True)
class _Work:
    """What can be done for a run beside everything else; the value is for the page or the record."""

    files: int
    """How much work it is, in files."""
    do: Callable[[RunFiles], Any]


def run_files(
    chrome: Chrome, source: RunSource, write: Write, told: Told = lambda share: None, processes: int = 1
) -> FinishedRun:
    """Read a trace and ``write`` the files of its run, in so many ``processes`` once it is read.

    Raises:
        TraceError: the file cannot be read as a trace.
        BuildWorkerError: the system ended a process.
    """
    words = chrome.words
    trace = open_trace(source.path)
    told(_READ)
    cuts = attribute(trace, partial(forked, processes=processes))
    summary = summarize(trace, cuts)
    told(_ANALYZED)
    out = RunFiles(run_slug(trace.header.name, source), write)
    origin = time_origin(trace)
    timeline = timeline_data(trace, origin, words)
    ranks = run_ranks(trace, source.ranks)
    side_by_side = rank_section(ranks, origin, words) if ranks else None
    by_step = step_columns(ranks.analysis, trace.steps.index) if ranks else {}
    pieces = [*timeline_pieces(trace, timeline, origin, by_step), *request_pieces(trace, cuts, origin, words)]
    work = [  # the longest ones first
        _Work(_VIEW, lambda _: run_view(trace, summary, cuts, out.slug, timeline, side_by_side, words)),
        _Work(_SIDE, lambda files: add_side(files, trace, summary, cuts)),
        *(_Work(piece.files, partial(_add_piece, piece)) for piece in pieces),
    ]
    view, (side, entry), *_ = _done(out, work, processes, told)
    key = f"{out.slug}/run"
    more = {"slug": out.slug, "parts": out.digests, "cuts": cut_rows(cuts, words)}
    more |= {"ranks": side_by_side.chart.data} if side_by_side else {}
    script = out.add_data(key, timeline.overview | more)
    record = RunRecord(
        slug=out.slug,
        name=view.name.encode(errors="backslashreplace").decode(),  # a file's name need not be text
        page=out.add("index.html", run_page(chrome, view, script, key)),
        complete=trace.recovery.whole and (ranks is None or ranks.complete),
        summary=summary,
        row=index_row(trace, summary, out.slug, ranks),
        entry=entry,
        side=side,
        conditions=run_conditions(trace),
        tokens=pass_tokens(trace.steps),
    )
    return FinishedRun(record, out.sizes)


def _add_piece(piece: Piece, out: RunFiles) -> None:
    out.add_piece(piece)


def _done(out: RunFiles, work: Sequence[_Work], processes: int, told: Told) -> list[Any]:
    """Do all work, and add the files that are made; the value of each."""

    def one(number: int) -> tuple[Any, dict[str, int], Parts]:
        made = RunFiles(out.slug, out.write)
        return work[number].do(made), made.sizes, made.parts

    values: list[Any] = [None] * len(work)
    done, total = 0, sum(one.files for one in work)
    with closing(forked(one, len(work), processes)) as finished:
        for number, (value, sizes, parts) in finished:
            values[number] = value
            out.join(sizes, parts)
            done += work[number].files
            told(_ANALYZED + done / total * (_MADE - _ANALYZED))
    return values


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
