"""Labels of a run, as the command line gives them."""

from __future__ import annotations

from collections.abc import Iterable

from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity


def parse_tags(given: Iterable[str]) -> dict[str, str]:
    """Turn ``KEY=VALUE`` texts into labels. A value may be empty and may hold further equals signs.

    Raises:
        UsageError: a text has no key or no equals sign, or a key is given twice.
    """
    tags: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--tag takes KEY=VALUE, as in --tag blocks=64, and was given {text!r}.", slug="bad-tag")
        if key in tags:
            raise UsageError(f"--tag {key} is given twice: name each tag once.", slug="bad-tag")
        tags[key] = value
    return tags


declare(
    "bad-tag",
    Severity.BROKEN,
    "A tag on the command line is not of the form KEY=VALUE, or its key is given twice.",
    "Write tags as in `--tag blocks=64`, each key once.",
)
