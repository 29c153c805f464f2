"""In which line of a TOML file a key stands: parsers that are kept well do not tell."""

from __future__ import annotations

import re

from cbtrace.recorder.experiments.spec_error import Path

_KEY = r'(?:[A-Za-z0-9_-]+|"[^"\n]*"|\'[^\'\n]*\')'
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]\]?")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_PART = re.compile(_KEY)


class TomlLines:
    """Finds the line of a key in the text of a TOML document, from 1.

    Keys inside inline tables are found by the line they are on; a key that is missing, by that of its table.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {(): 1}
        self._texts = text.splitlines()
        arrays: dict[Path, int] = {}
        table: Path = ()
        for number, line in enumerate(self._texts, 1):
            header = _HEADER.match(line)
            assignment = _ASSIGNMENT.match(line)
            if header is not None:
                table = _resolved(_keys(header[2]), arrays)
                if header[1] == "[[":
                    arrays[table] = arrays.get(table, -1) + 1
                    table = (*table, arrays[table])
                self._note(table, number)
            elif assignment is not None:
                self._note((*table, *_keys(assignment[1])), number)

    def line_of(self, at: Path) -> int:
        """Return the line of the key at ``at``, or of the innermost table around it that has one."""
        for length in range(len(at), -1, -1):
            line = self._lines.get(at[:length])
            if line is not None:
                return self._inside(line, at[length:])
        return 1

    def _note(self, at: Path, line: int) -> None:
        for length in range(1, len(at) + 1):
            self._lines.setdefault(at[:length], line)

    def _inside(self, line: int, rest: Path) -> int:
        """A value may go on over several lines: look for the key below the line its value begins in."""
        names = [str(name) for name in rest if isinstance(name, str)]
        if not names:
            return line
        word = re.compile(rf"(?<![\w-])[\"']?{re.escape(names[-1])}[\"']?\s*=")
        for number in range(line, min(line + 40, len(self._texts)) + 1):
            text = self._texts[number - 1]
            if number > line and (_HEADER.match(text) or self._starts_another(number)):
                break
            if word.search(text):
                return number
        return line

    def _starts_another(self, number: int) -> bool:
        return number in self._lines.values()


def _keys(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _resolved(keys: tuple[str, ...], arrays: dict[Path, int]) -> Path:
    """Put the number of the newest element behind each key that names an array of tables."""
    at: Path = ()
    for place, key in enumerate(keys):
        at = (*at, key)
        if at in arrays and place < len(keys) - 1:
            at = (*at, arrays[at])
    return at
