"""Findings as sentences: the texts of the rules with their numbers filled in."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.findings import Finding
from cbtrace.site.words import Words

_UNITS = {
    "_share": formats.percent,
    "_ms": formats.milliseconds,
    "_s": formats.number,
    "_bytes": formats.size,
    "_count": formats.number,
}


@dataclass(frozen=True)
class FindingRow:
    """One finding: what is so, what to change and at what cost, and where to look."""

    rule: str
    text: str
    advice: str
    place: str
    place_label: str


def finding_rows(found: list[Finding], words: Words) -> list[FindingRow]:
    """The findings in words, in their order."""
    return [_row(finding, words) for finding in found]


def _row(finding: Finding, words: Words) -> FindingRow:
    values = {name: _text(name, value) for name, value in finding.numbers.items()}
    return FindingRow(
        rule=finding.rule,
        text=words(f"finding.{finding.rule}.text", **values),
        advice=words(f"finding.{finding.rule}.{finding.numbers.get('advice', 'advice')}", **values),
        place=finding.place,
        place_label=words(f"section.{finding.place}"),
    )


def _text(name: str, value: float | int | str) -> str:
    if isinstance(value, str):
        return value
    return next((told(value) for unit, told in _UNITS.items() if name.endswith(unit)), str(value))
