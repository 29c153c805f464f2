"""Where the time went: both cuts, for the run and by percentile, as plain data for the template and the chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.attribution import Cuts, TtftCuts
from cbtrace.site.analysis.bands import Band, Single, bands, pieces_of, singles
from cbtrace.site.analysis.gaps import GapKinds
from cbtrace.site.analysis.pieces import PIECES
from cbtrace.site.pages.labels import request_label
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace

WORST_ROWS = 50
TOP_PIECES = 3


@dataclass(frozen=True)
class PieceRow:
    """One piece: its share of each band, and its milliseconds at each single value."""

    piece: str
    label: str
    shares: list[str]
    amounts: list[str]


@dataclass(frozen=True)
class CutTable:
    """The cut of one latency."""

    id: str
    title: str
    bands: list[str]
    singles: list[str]
    """Headings of the single values: which percentile, how long it took, whose it was."""
    note: str
    """That the headline's percentiles lie between values, where they differ from those of the single rows."""
    rows: list[PieceRow]


@dataclass(frozen=True)
class WorstTtft:
    """One of the slowest TTFTs."""

    request: str
    ordinal: int
    ttft: str
    ttft_ns: int
    prompt: int
    went: str


@dataclass(frozen=True)
class WhereSection:
    """Both cuts and the slowest TTFTs."""

    tables: list[CutTable]
    worst: list[WorstTtft]


def where_section(trace: Trace, cuts: Cuts, words: Words) -> WhereSection:
    """The section of the page."""
    tables = [
        _table("ttft", cuts.ttft, trace, words),
        _table("gap", cuts.gaps, trace, words),
    ]
    return WhereSection([table for table in tables if table.rows], _worst(trace, cuts.ttft, words))


def _table(name: str, cut: TtftCuts | GapKinds, trace: Trace, words: Words) -> CutTable:
    found, single = bands(cut.total_ns, cut.pieces, cut.count), singles(cut.total_ns, cut.pieces, cut.count)
    used = [piece for piece in PIECES if any(piece in band.pieces for band in found)]
    title = words(f"where.{name}.title_none")
    if found and found[0].total_ns:
        largest = max(found[0].pieces, key=lambda piece: found[0].pieces[piece])
        share = formats.percent(found[0].pieces[largest] / found[0].total_ns)
        title = words(f"where.{name}.title", share=share, piece=words(f"piece.{largest}"))
    return CutTable(
        id=name,
        title=title,
        bands=[words(f"band.{band.id}", n=formats.number(band.n)) for band in found],
        singles=[_heading(one, cut, trace, words) for one in single],
        note=_between(name, single, words),
        rows=[_row(piece, found, single, words) for piece in used],
    )


def _between(name: str, single: list[Single], words: Words) -> str:
    """Why a percentile of the headline is not the value of any request, with both values."""
    differ = [one for one in single if formats.from_ns(one.total_ns) != formats.number(one.percentile_ns / 1e6)]
    if not differ:
        return ""
    pairs = [
        words(
            "where.between_pair",
            id=one.id,
            headline=formats.number(one.percentile_ns / 1e6),
            single=formats.from_ns(one.total_ns),
        )
        for one in differ
    ]
    return words(f"where.between_{name}", pairs="; ".join(pairs))


def _heading(one: Single, cut: TtftCuts | GapKinds, trace: Trace, words: Words) -> str:
    who = request_label(trace, int(cut.request[one.row]))
    return words(f"single.{one.id}", total=formats.from_ns(one.total_ns), request=short(who))


def short(text: str, limit: int = 40) -> str:
    """A name that fits a heading."""
    return text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"


def _row(piece: str, found: list[Band], single: list[Single], words: Words) -> PieceRow:
    def share(band: Band) -> str:
        return formats.percent(band.pieces.get(piece, 0) / band.total_ns if band.total_ns else None)

    return PieceRow(
        piece,
        words(f"piece.{piece}"),
        [share(band) for band in found],
        [formats.from_ns(one.pieces.get(piece, 0)) for one in single],
    )


def _worst(trace: Trace, cut: TtftCuts, words: Words) -> list[WorstTtft]:
    order = (-cut.total_ns).argsort(kind="stable")[:WORST_ROWS].tolist()
    return [
        WorstTtft(
            request=request_label(trace, int(cut.request[row])),
            ordinal=int(cut.request[row]),
            ttft=formats.from_ns(int(cut.total_ns[row])),
            ttft_ns=int(cut.total_ns[row]),
            prompt=int(trace.requests.prompt_tokens[cut.request[row]]),
            went=went(pieces_of(cut.pieces[row]), int(cut.total_ns[row]), words),
        )
        for row in order
    ]


def went(pieces: dict[str, int], total_ns: int, words: Words) -> str:
    """The largest pieces of one cut in words."""
    largest = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))[:TOP_PIECES]
    shares = [(words(f"piece.{piece}"), formats.percent(ns / total_ns if total_ns else None)) for piece, ns in largest]
    return ", ".join(f"{label} {share}" for label, share in shares)


def cut_rows(cuts: Cuts, words: Words) -> list[dict[str, Any]]:
    """Rows of the chart: the share of each piece of each band."""
    rows = []
    for name, cut in (("ttft", cuts.ttft), ("gap", cuts.gaps)):
        for place, band in enumerate(bands(cut.total_ns, cut.pieces, cut.count)):
            for piece, ns in band.pieces.items():
                rows.append(
                    {
                        "cut": name,
                        "band": words(f"band.{band.id}", n=formats.number(band.n)),
                        "place": place,
                        "piece": piece,
                        "order": PIECES.index(piece),
                        "share": round(ns / band.total_ns, 6) if band.total_ns else 0,
                    }
                )
    return rows
