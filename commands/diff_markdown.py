"""A comparison as markdown that fits a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cbtrace.commands import diff_numbers as numbers
from cbtrace.commands import diff_sentences as say
from cbtrace.site.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.site.analysis.comparison import ComparedValue
    from cbtrace.site.diff import Diff, DiffRun

_MARKUP = re.compile(r"([\\`*_\[\]<|~&$])")
_NAME = 80
"""Most characters of a name."""
_REFERENCES = re.compile(r"([@#]|(?<=:)/(?=/)|(?<=www)\.)")


def diff_markdown(diff: Diff) -> str:
    """The whole comment: the verdict and the headline numbers in sight, all other numbers folded away."""
    from cbtrace.site.analysis.run_values import HEADLINE_KEYS

    values = diff.comparison.values
    headline = [it for key in HEADLINE_KEYS for it in values if it.value.key == key]
    others = [it for it in values if it not in headline and it.judgement.difference is not None]
    parts = [
        f"### {escape(say.headline(diff.comparison).text)}",
        _list(escape(say.gate(result).text) for result in diff.gates),
        _list(_sides(diff)),
        _list(escape(said.text) for said in say.comparability(diff.comparison.comparability)),
        _list(escape(said.text) for said in say.correctness(diff)),
        _table(headline),
        f"<details><summary>{len(others)} more numbers</summary>\n\n{_table(others)}\n\n</details>",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def escape(text: str) -> str:
    """Text that comes from a trace, or may hold some: nothing in it is markup, a link or a mention."""
    # A backslash does not keep a mention or a reference from becoming a link: that is looked for after rendering.
    return _REFERENCES.sub("\\1\N{ZERO WIDTH SPACE}", _MARKUP.sub(r"\\\1", text))


def _sides(diff: Diff) -> Iterator[str]:
    for side, runs in (("A (baseline)", diff.a), ("B (candidate)", diff.b)):
        yield f"**{side}**: {_runs(runs)}"


def _runs(runs: list[DiffRun]) -> str:
    names = list(dict.fromkeys(plain(run.name or run.path.name, _NAME) for run in runs))
    shown = ", ".join(escape(name) for name in names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {shown}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(values: list[ComparedValue]) -> str:
    from cbtrace.site.pages.compare_sentences import amount, percent, signed, value_label, with_unit
    from cbtrace.site.words import load_words

    rows = ["| mean over runs | A | B | change | 95 % interval | B is | verdict |", "|---|--:|--:|--:|--:|---|---|"]
    for it in values:
        found, unit = it.judgement, it.value.unit
        word = numbers.verdict_word(found)
        cells = (
            value_label(it.value.key, load_words()),
            *(with_unit(numbers.unit_of(it), amount(unit, mean)) for mean in (found.mean_a, found.mean_b)),
            signed(unit, found.difference) if found.change is None else percent(found.change),
            numbers.interval(it),
            it.direction,
            f"**{word}**" if found.word in ("better", "worse") else word,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
