"""Errors with a slug, and the catalogue in which every slug has its cause and its remedy.

A *slug* names a problem once and for all (``trace-empty``): it is in error messages, in the findings of
``cbtrace check`` and in the page of all messages, which is generated from :func:`catalogue`. Other rooms add their own
with :func:`declare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .schema import FORMAT_VERSION, Severity


@dataclass(frozen=True)
class Message:
    """One kind of problem: what leads to it and what to do about it, each in full sentences."""

    slug: str
    severity: Severity
    cause: str
    remedy: str


_CATALOGUE: dict[str, Message] = {}


def declare(slug: str, severity: Severity, cause: str, remedy: str) -> Message:
    """Add a message to the catalogue and return it.

    Raises:
        ValueError: the slug is taken by a different message.
    """
    message = Message(slug, severity, cause, remedy)
    if _CATALOGUE.setdefault(slug, message) != message:
        raise ValueError(f"The slug {slug!r} is declared twice with different words.")
    return message


def catalogue() -> list[Message]:
    """All messages declared so far, ordered by slug. A room's messages are declared when its modules are imported."""
    return sorted(_CATALOGUE.values(), key=lambda message: message.slug)


def explain(slug: str) -> Message:
    """The message of a slug.

    Raises:
        KeyError: no such slug was declared.
    """
    return _CATALOGUE[slug]


class CbtraceError(Exception):
    """Base of all errors that are shown to a user as one sentence, without a traceback."""

    slug: str = "failed"
    exit_code: int = 1

    def __init__(self, text: str, *, slug: str | None = None) -> None:
        super().__init__(text)
        if slug is not None:
            self.slug = slug

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes an error goes as it is: a class of its own may be made of something else than a text."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[CbtraceError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> CbtraceError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class UsageError(CbtraceError):
    """The command line or an argument is wrong; nothing was done."""

    slug = "usage"
    exit_code = 2


class TraceError(CbtraceError):
    """A trace cannot be read or written."""

    slug = "trace-unreadable"


class TraceNotFoundError(TraceError):
    """There is no file of that name, or it is not a regular file, or it may not be read."""

    slug = "trace-not-found"


class NotATraceError(TraceError):
    """The file holds something else."""

    slug = "not-a-trace"


class EmptyTraceError(TraceError):
    """The file is empty or ends before its first frame."""

    slug = "trace-empty"


class TraceVersionError(TraceError):
    """The trace names a format version that is newer than this reader, or that never existed.

    Attributes:
        found: the version of the file.
        supported: the newest version that this reader knows.
    """

    slug = "trace-too-new"

    def __init__(self, name: str, found: int, supported: int = FORMAT_VERSION) -> None:
        self.found = found
        self.supported = supported
        if found > supported:
            super().__init__(
                f"{name} is a trace of format version {found}, and this cbtrace reads versions 1 to {supported}: "
                "install a newer cbtrace to read it."
            )
        else:
            super().__init__(
                f"{name} names format version {found}, which no cbtrace ever wrote, and this one reads versions 1 to "
                f"{supported}: ask for the file again where it came from.",
                slug="trace-version-unknown",
            )


class TraceExistsError(TraceError):
    """The file to write is already there."""

    slug = "trace-exists"


class TraceFullError(TraceError):
    """The trace has reached its size limit: nothing more is written but its end mark.

    Attributes:
        footer_reason: what the end mark should say.
        limit: bytes that the file may have.
    """

    slug = "trace-full"
    footer_reason = "max_size"

    def __init__(self, name: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"The trace {name} has reached its limit of {limit} bytes.")


declare("failed", Severity.BROKEN, "Something failed that has no message of its own.", "Read the sentence printed.")
declare("usage", Severity.BROKEN, "The command line or an argument is wrong.", "Run the command with --help.")
declare(
    "trace-unreadable",
    Severity.BROKEN,
    "The trace cannot be read or written.",
    "Check the file and its permissions.",
)
declare(
    "trace-not-found",
    Severity.BROKEN,
    "There is no regular file of that name that may be read.",
    "Check the path; record a run with `cbtrace record -o RUN.cbt -- python SCRIPT`.",
)
declare(
    "not-a-trace",
    Severity.BROKEN,
    "The file does not start as a trace does, and no frame was found in it.",
    "Name a file that cbtrace recorded.",
)
declare(
    "trace-empty",
    Severity.BROKEN,
    "The file has no content beyond its first bytes: recording stopped before anything was written.",
    "Record the run again.",
)
declare(
    "trace-too-new",
    Severity.BROKEN,
    "The trace was written by a newer cbtrace, in a format version that this one does not know.",
    "Install a newer cbtrace, as the message says.",
)
declare(
    "trace-version-unknown",
    Severity.BROKEN,
    "The file starts as a trace does, and names a format version that never existed.",
    "Ask for the file again where it came from: another program wrote it, or changed it.",
)
declare(
    "trace-exists",
    Severity.BROKEN,
    "A file of that name exists, and recordings are not overwritten without being asked.",
    "Choose another name, or allow overwriting.",
)
declare(
    "trace-full",
    Severity.DATA_LOSS,
    "The trace reached the size limit that was asked for.",
    "Raise the limit, or record a ring that keeps the newest steps.",
)
