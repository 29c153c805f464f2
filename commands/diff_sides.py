"""Which traces are A and which are B, from the arguments of ``cbtrace diff``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cbtrace.commands.trace_files import trace_files
from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

BETWEEN = "vs"


def two_sides(named: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """``A B``, or ``A... vs B...``: each a trace, or a folder for all traces in it. Ranks of one run are one run: of
    them the lowest is returned, whose numbers stand for it.

    Raises:
        UsageError: it is not clear which belong to A, or a folder holds no trace.
    """
    if BETWEEN in named:
        at = named.index(BETWEEN)
        a, b = named[:at], named[at + 1 :]
        if not a or not b or BETWEEN in b:
            raise UsageError(
                f"There must be traces before and after {BETWEEN}, and one {BETWEEN} (a file of that name is "
                f"./{BETWEEN}).",
                slug="unclear-sides",
            )
    elif len(named) == 2:
        a, b = named[:1], named[1:]
    else:
        raise UsageError(
            f"It is open which are A and which are B (traces named: {len(named)}): write A B, or A... {BETWEEN} B...",
            slug="unclear-sides",
        )
    from cbtrace.traces.rank_groups import stand_ins

    return stand_ins(trace_files(map(Path, a))), stand_ins(trace_files(map(Path, b)))


def variant_sides(experiment: Path, named: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The finished runs of two variants of an experiment, by their names.

    Raises:
        UsageError: there is no experiment or no such variant, or it has no finished run.
    """
    from cbtrace.traces.experiment import read_experiment

    if len(named) != 2:
        raise UsageError("With --experiment, name two of its variants: the baseline and the candidate.")
    read = read_experiment(experiment)
    if read is None:
        raise UsageError(f"{experiment} holds no experiment.json: name the folder of an experiment.")
    known = [variant.name for variant in read.variants]
    sides = []
    for name in named:
        if name not in known:
            raise UsageError(f"There is no variant {name!r}: this experiment has {', '.join(known)}.")
        runs = [run for run in read.runs if run.variant == name and run.status == "done" and run.trace]
        if not runs:
            failures = sorted(
                {f"{run.failure} in {run.phase}" for run in read.runs if run.variant == name and run.failure}
            )
            if failures:
                raise UsageError(f"Every run of {name!r} failed ({'; '.join(failures)}): there is nothing to compare.")
            raise UsageError(f"No run of {name!r} was finished: run the experiment first.")
        sides.append([experiment / run.trace for run in runs])
    return sides[0], sides[1]


declare(
    "unclear-sides",
    Severity.BROKEN,
    "The names given to `cbtrace diff` do not say which runs are the baseline A and which the candidate B.",
    "Write `cbtrace diff A B`, or `cbtrace diff A1 A2 vs B1 B2`; a folder stands for all traces in it.",
)
