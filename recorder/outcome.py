"""What is said at the end of a recorded program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cbtrace.recorder.session import Recording
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity

_OF_ONE_RUN = re.compile(r"(-|\.pid|\.rank)\d+")
"""What a recorder adds to a trace's name for further engines, processes and ranks."""


def sentences(recording: Recording, *, replaced: bool) -> Iterator[tuple[str, str]]:
    """Yield each sentence with its slug (empty where all is well): which traces there are, whether they are whole, and
    what lies beside one that has ``replaced`` an older trace."""
    stopped = recording.stopped
    whole = [str(path) for path in recording.paths if path not in stopped]
    if whole:
        yield f"recorded {', '.join(whole)}", ""
    for path in recording.paths:
        if path in stopped:
            slug, text = stopped[path]
            yield f"recorded {path} only up to when the recording stopped early ({text})", slug
    left = sorted(_left_over(recording)) if replaced else []
    if left:
        yield f"beside it are older traces of the same name, which were left alone: {', '.join(left)}", "older-traces"


def _left_over(recording: Recording) -> Iterator[str]:
    first = recording.paths[0]
    for path in first.parent.iterdir():
        older = path.suffix == first.suffix and path.stat().st_mtime_ns < recording.began_ns
        if older and path not in recording.paths and _OF_ONE_RUN.fullmatch(path.stem.removeprefix(first.stem)):
            yield path.name


declare(
    "older-traces",
    Severity.WARNING,
    "The trace that was replaced has neighbors that may belong to it: its further engines, processes or ranks.",
    "Remove them if they do: a site that is built from the whole folder would show old runs beside new ones.",
)
