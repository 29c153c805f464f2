"""What ``cbtrace check`` and ``cbtrace info`` say of the other ranks of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cbtrace.commands.trace_files import ENDINGS
from cbtrace.traces.errors import TraceError, declare
from cbtrace.traces.schema import Severity

if TYPE_CHECKING:
    from cbtrace.traces.rank_groups import RankFile, RankGroup
    from cbtrace.traces.recovery import Finding


def rank_findings(paths: Sequence[Path]) -> dict[Path, list[Finding]]:
    """By path: where its other ranks are, and for the first of each run what is wrong between them.

    Ranks are looked for among ``paths`` and in their folders. Runs of one process have no entry.
    """
    from cbtrace.traces.rank_groups import rank_groups

    files = _rank_files(paths)
    wanted = {file.path: path for path, file in files.items() if path in paths}
    found: dict[Path, list[Finding]] = {}
    for group in rank_groups(files.values()):
        named = [wanted[path] for path in group.paths if path in wanted]
        for path in named:
            found.setdefault(path, []).extend(_place(group, files[path].rank))
        if named and len(group.ranks) > 1:
            found[named[0]] += [*group.findings(), *_between(group)]
    return found


def rank_lines(path: Path) -> Iterator[str]:
    """The other ranks of a trace's run, a line each thing to say; nothing for a run of one process."""
    for findings in rank_findings([path]).values():
        for finding in findings:
            yield finding.meaning


def _rank_files(paths: Sequence[Path]) -> dict[Path, RankFile]:
    """The ranks among ``paths``, and those that lie beside one of them, by path."""
    from cbtrace.traces.rank_groups import rank_of_file

    files = {path: file for path in paths if (file := rank_of_file(path)) is not None}
    runs, seen = {file.run_id for file in files.values()}, {path.absolute() for path in paths}
    for folder in {path.absolute().parent for path in files}:
        for other in sorted(folder.iterdir()):
            if other.name.endswith(ENDINGS) and other not in seen:
                file = rank_of_file(other)
                if file is not None and file.run_id in runs:
                    files[other] = file
    return files


def _place(group: RankGroup, rank: int) -> list[Finding]:
    from cbtrace.traces.recovery import Finding

    if len(group.ranks) == 1:
        return []
    others = [f"rank {file.rank} is {file.path.name}" for file in group.files if file.rank != rank]
    shown = others[:8] + ([f"{len(others) - 8} more are there"] if len(others) > 8 else [])
    text = f"This is rank {rank} of a run over {len(group.ranks)} tensor-parallel ranks"
    return [Finding("rank-of-run", Severity.INFO, "ranks", f"{text}{'; ' if shown else ''}{', '.join(shown)}.")]


def _between(group: RankGroup) -> list[Finding]:
    """What the traces of a run say against each other, and which of them are not whole."""
    from cbtrace.traces import open_trace
    from cbtrace.traces.rank_join import RankJoiner

    joiner, count = RankJoiner(), 0
    for path in group.paths:
        with contextlib.suppress(TraceError):
            joiner.add(open_trace(path))
            count += 1
    return joiner.join().findings if count > 1 else []


declare(
    "rank-of-run",
    Severity.INFO,
    "A run over several tensor-parallel ranks writes a trace a rank; this is one of them.",
    "Name all of them, or their folder, to `cbtrace build`: they become one run, whose requests go by rank 0's clock.",
)
