"""Which traces are of one run: several processes (*ranks*) record a file each, under one run id.

Ranks of a tensor-parallel model share one schedule and answer the same requests, each with its own part of every
layer: they are one run. A launch may hold several such groups (data parallelism), which answer requests of their own:
each is a run by itself, and so is every rank of a model that is not split at all.

Only the first frames of a file are read here, so that hundreds of files can be looked through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .blocks import each_payload
from .errors import TraceError, declare
from .frames import PREAMBLE_BYTES, FrameScanner, read_preamble
from .opening import open_bytes
from .reader import Trace
from .recovery import Finding
from .schema import Engine, Header, Severity, Step
from .versions import decoder

MOST_RANKS = 1 << 16
"""A file that claims to be of more processes is of none that can be told."""


@dataclass(frozen=True)
class RankFile:
    """What a file says of its place in a run over several processes."""

    path: Path
    run_id: str
    rank: int
    world_size: int
    split_over: int | None
    """Ranks of one tensor-parallel group; None when the file does not say."""


@dataclass(frozen=True)
class RankGroup:
    """The files of one run, at most one a rank, lowest rank first."""

    files: tuple[RankFile, ...]
    ranks: range
    """The ranks that the run had."""
    twice: tuple[int, ...] = ()
    """Ranks of which further files were found, which may belong to this run as well."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files' paths. The first one's numbers stand for the run."""
        return tuple(file.path for file in self.files)

    @property
    def missing(self) -> list[int]:
        """Ranks without a file."""
        there = {file.rank for file in self.files}
        return [rank for rank in self.ranks if rank not in there]

    def findings(self) -> list[Finding]:
        """What is wrong with the files of this run, each in a sentence."""
        found = []
        if self.missing:
            found.append(_missing(self.missing, self.ranks, self.files[0].rank))
        if self.twice:
            names = ranks_in_words(self.twice)
            text = (
                f"There are several files of {names} under this run id, and which of them belong together cannot be "
                "told: they were taken in the order of their names."
            )
            found.append(Finding("rank-twice", Severity.WARNING, "ranks", text))
        return found


def rank_of_trace(trace: Trace) -> RankFile | None:
    """The place of a trace that was read; None for one of a single process, or one that lost its header."""
    return _rank_file(trace.path, trace.header, trace.engines[-1] if trace.engines else None)


def rank_of_file(path: Path) -> RankFile | None:
    """The place of a file, from its first frames; None for a trace of a single process, and for what is no trace.

    The engine, which says over how many ranks the model is split, stands before the first step.
    """
    header: Header | None = None
    try:
        with open_bytes(path) as file:
            version = read_preamble(file.read(PREAMBLE_BYTES))
            if version is None:
                return None
            decode = decoder(version)
            for payload in each_payload(FrameScanner(file.read, PREAMBLE_BYTES)):
                frame = decode(payload) if isinstance(payload, bytes) else None
                if isinstance(frame, Header):
                    header = frame
                    if header.world_size < 2:
                        return None
                elif isinstance(frame, (Engine, Step)) or header is None:
                    return _rank_file(path, header, frame if isinstance(frame, Engine) else None)
    except (TraceError, OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError, KeyError):
        pass  # what can be said of a damaged file is said where it is read as a whole
    return _rank_file(path, header, None)


def _rank_file(path: Path, header: Header | None, engine: Engine | None) -> RankFile | None:
    if header is None or not header.run_id or not 0 <= header.rank < header.world_size:
        return None
    if not 2 <= header.world_size <= MOST_RANKS:
        return None
    told = engine.model.get("tensor_parallel") if engine else None
    split = told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= header.world_size else None
    return RankFile(path, header.run_id, header.rank, header.world_size, split)


def rank_groups(files: Iterable[RankFile]) -> list[RankGroup]:
    """Put files together that are of one run, in the order in which runs first appear.

    The n-th file of a rank belongs to the n-th group of its run: copies, and launches that share an id by mistake, are
    kept apart as far as their order tells.
    """
    by_run: dict[str, list[RankFile]] = {}
    for file in files:
        by_run.setdefault(file.run_id, []).append(file)
    return [group for run in by_run.values() for group in _groups_of_run(run)]


def _groups_of_run(files: Sequence[RankFile]) -> list[RankGroup]:
    world = max(file.world_size for file in files)
    # A file that was cut before its engine does not say; one without the fact is of an older recorder.
    size = max((file.split_over for file in files if file.split_over is not None), default=world)
    groups: dict[tuple[int, int], dict[int, RankFile]] = {}
    count: dict[int, int] = {}
    for file in files:
        nth = count[file.rank] = count.get(file.rank, -1) + 1
        groups.setdefault((file.rank // size, nth), {})[file.rank] = file
    made = []
    for (number, _), by_rank in groups.items():
        ranks = range(number * size, min((number + 1) * size, world))
        twice = tuple(rank for rank in ranks if count.get(rank, 0) > 0)
        made.append(RankGroup(tuple(by_rank[rank] for rank in sorted(by_rank)), ranks, twice))
    return made


def stand_ins(paths: Iterable[Path]) -> list[Path]:
    """Of traces, those that stand for runs: all but the further ranks of a run whose lowest rank is among them."""
    paths = list(paths)
    groups = rank_groups(file for path in paths if (file := rank_of_file(path)) is not None)
    further = {path for group in groups for path in group.paths[1:]}
    return [path for path in paths if path not in further]


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 1, 2, 5``; many are counted."""
    shown = ", ".join(map(str, ranks[:12])) + (f" and {len(ranks) - 12} more" if len(ranks) > 12 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _missing(missing: Sequence[int], ranks: range, lead: int) -> Finding:
    stands_in = f"; rank {lead} stands in for rank {ranks[0]}, the only one that sees requests come"
    if lead == ranks[0]:
        stands_in = ""
    text = (
        f"Of the {len(ranks)} ranks of this run, {ranks_in_words(missing)} "
        f"{'has' if len(missing) == 1 else 'have'} no trace here{stands_in}."
    )
    return Finding("rank-missing", Severity.WARNING, "ranks", text)


declare(
    "rank-missing",
    Severity.WARNING,
    "A run over several tensor-parallel ranks writes a trace a rank, and not all of them are among the traces named.",
    "Name all files of the run, or the folder that holds them; on several hosts, copy them together first.",
)
declare(
    "rank-twice",
    Severity.WARNING,
    "Two files have the same run id and the same rank: one is a copy of the other, or two launches were given one id.",
    "Name each file once; give `CBTRACE_RUN_ID` a new value for every launch.",
)
