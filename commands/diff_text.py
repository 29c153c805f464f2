"""A comparison for the terminal. Without one it is plain text of a fixed width."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from cbtrace.commands import diff_numbers as numbers
from cbtrace.commands import diff_sentences as say
from cbtrace.site.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cbtrace.site.analysis.comparison import ComparedValue
    from cbtrace.site.diff import Diff, DiffRun

WIDTH = 120
"""Of plain text."""
_NAME = 80
"""Most characters of a name."""
_STYLES = {"good": "green", "bad": "red", "warning": "yellow", "plain": ""}


def print_diff(diff: Diff, *, every: bool, file: IO[str] | None = None) -> None:
    """Print the comparison to ``file``, or to standard output. ``every``: numbers that are equal in both, too."""
    console = _console(file)
    for side, name, runs in (("A", "baseline", diff.a), ("B", "candidate", diff.b)):
        console.print(f"{side}  {name:<10}{_runs(runs)}", markup=False, highlight=False)
    console.print()
    _say(console, [say.headline(diff.comparison)], bold=True)
    for title, sentences in (
        ("Comparable?", say.comparability(diff.comparison.comparability)),
        ("Correct?", say.correctness(diff)),
    ):
        console.print(f"\n{title}", style="bold", highlight=False)
        _say(console, sentences)
    shown = [it for it in diff.comparison.values if every or _worth_showing(it)]
    console.print()
    console.print(_table(shown))
    hidden = len(diff.comparison.values) - len(shown)
    if hidden:
        console.print(f"{hidden} numbers are equal in both, or unknown: --all shows them.", highlight=False)
    if diff.gates:
        console.print("\nConditions", style="bold", highlight=False)
        _say(console, [say.gate(result) for result in diff.gates])


def _console(file: IO[str] | None) -> Console:
    from rich.console import Console

    if file is not None:
        return Console(file=file, width=WIDTH, color_system=None, soft_wrap=False)
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def _runs(runs: list[DiffRun]) -> str:
    names = list(dict.fromkeys(plain(run.name or run.path.name, _NAME) for run in runs))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}: {shown}"


def _say(console: Console, sentences: Iterable[say.Said], *, bold: bool = False) -> None:
    from rich.text import Text

    for said in sentences:
        style = f"{'bold ' if bold else ''}{_STYLES[said.tone]}".strip()
        indent = "" if bold else "  "
        console.print(Text(indent + said.text, style=style), highlight=False)


def _worth_showing(it: ComparedValue) -> bool:
    return it.judgement.difference is not None and it.judgement.why != "equal" and _differs(it)


def _differs(it: ComparedValue) -> bool:
    return it.judgement.difference != 0 or it.judgement.low != it.judgement.high


def _table(values: list[ComparedValue]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from cbtrace.site.pages.compare_sentences import amount, percent, signed, value_label
    from cbtrace.site.words import load_words

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("means over runs", overflow="fold", min_width=18)
    for name in ("A", "B", "B less A", "change", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("B is", "verdict"):
        table.add_column(name, no_wrap=True)
    for it in values:
        found, unit, beside = it.judgement, it.value.unit, numbers.unit_of(it)
        label = value_label(it.value.key, load_words())
        table.add_row(
            Text(f"{label} [{beside}]" if beside else label),
            amount(unit, found.mean_a),
            amount(unit, found.mean_b),
            signed(unit, found.difference),
            percent(found.change),
            numbers.interval(it),
            it.direction,
            Text(numbers.verdict_word(found), style=_STYLES[numbers.verdict_tone(found)]),
        )
    return table
