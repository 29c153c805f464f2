"""What a trace lost, and in which words that is said."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import declare
from .schema import Severity


@dataclass(frozen=True)
class LostRange:
    """Bytes ``start`` to ``end`` (exclusive) of the file from which nothing could be read."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or worth knowing, in a place; ``slug`` leads to cause and remedy."""

    slug: str
    severity: Severity
    place: str
    meaning: str
    """One sentence."""


@dataclass(frozen=True)
class RecoveryReport:
    """What was read and what was not.

    ``status`` is the worst that holds: ``damaged`` (bytes or frames in the middle are gone), ``cut`` (the file ends
    without having been closed), ``stopped`` (the recorder gave up early and said why), ``ring`` (older steps were
    overwritten, as asked) or ``clean``.
    """

    status: str
    frames_read: int
    bytes_total: int
    bytes_dropped: int
    ranges: tuple[LostRange, ...]
    cut_at: int
    """Byte behind the last whole frame of a file that was not closed; -1 if it was."""
    after_step: int
    """Index of the last step that was read; -1 if there is none."""
    steps_missing: int
    """Steps between the first and the last one that are not there."""
    steps_overwritten: int
    """Steps that a ring gave up for newer ones."""
    admissions_lost: int
    frames_repeated: int
    findings: tuple[Finding, ...]

    @property
    def severity(self) -> Severity:
        """The worst of the findings; INFO when there are none."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    @property
    def messages(self) -> list[str]:
        """The findings in words, one sentence each."""
        return [finding.meaning for finding in self.findings]

    @property
    def whole(self) -> bool:
        """Whether everything that was recorded was read."""
        return self.status == "clean"


@dataclass(frozen=True)
class Losses:
    """The facts a report is made of."""

    bytes_total: int
    ranges: tuple[LostRange, ...]
    preamble_damaged: bool
    frames_read: int
    frames_promised: int
    """As the footer says, itself included; -1 without a footer."""
    stop_reason: str
    """Of the footer; empty without one."""
    stop_text: str
    header_missing: bool
    engine_missing: bool
    last_step: int
    steps_missing: int
    steps_overwritten: int
    admissions_lost: int
    requests_unknown: int
    frames_repeated: int
    frames_reordered: int
    frames_unreadable: int
    malformed_parts: int


def report(losses: Losses) -> RecoveryReport:
    """Turn the facts into a report."""
    cut = [lost for lost in losses.ranges if lost.reason == "cut"]
    findings = tuple(_findings(losses))
    return RecoveryReport(
        status=_status(losses, findings),
        frames_read=losses.frames_read,
        bytes_total=losses.bytes_total,
        bytes_dropped=sum(lost.end - lost.start for lost in losses.ranges),
        ranges=losses.ranges,
        cut_at=-1 if losses.stop_reason else (cut[0].start if cut else losses.bytes_total),
        after_step=losses.last_step,
        steps_missing=losses.steps_missing,
        steps_overwritten=losses.steps_overwritten,
        admissions_lost=losses.admissions_lost,
        frames_repeated=losses.frames_repeated,
        findings=findings,
    )


def _status(losses: Losses, findings: tuple[Finding, ...]) -> str:
    closed = bool(losses.stop_reason)
    # Nothing follows an end mark: what looks like the start of a frame behind it is no cut.
    if any(finding.slug in _DAMAGE for finding in findings) or (closed and losses.ranges):
        return "damaged"
    if not closed:
        return "cut"
    if losses.stop_reason != "closed":
        return "stopped"
    return "ring" if losses.steps_overwritten else "clean"


def _findings(losses: Losses) -> list[Finding]:
    found = [_range_finding(lost, losses.last_step) for lost in losses.ranges]
    if losses.preamble_damaged:
        found.append(_finding("preamble-damaged", "byte 0", "The first 16 bytes are damaged; the rest was read."))
    found += _ending(losses)
    counted = (
        ("header-missing", losses.header_missing, "The header is gone: name, tags and fingerprint are unknown."),
        ("engine-missing", losses.engine_missing, "No engine was recorded: settings and KV sizes are unknown."),
        ("steps-missing", losses.steps_missing, "{} steps that were recorded are missing."),
        ("steps-overwritten", losses.steps_overwritten, "{} older steps were given up for newer ones, as asked."),
        ("admissions-lost", losses.admissions_lost, "{} admissions are missing: some members cannot be named."),
        ("requests-unknown", losses.requests_unknown, "{} requests are known by number only."),
        ("frames-repeated", losses.frames_repeated, "{} frames are in the file more than once; one of each was used."),
        ("frames-reordered", losses.frames_reordered, "{} frames are not where they were written."),
        ("frames-unreadable", losses.frames_unreadable, "{} whole frames could not be understood and were skipped."),
        ("values-malformed", losses.malformed_parts, "{} packed values of steps have a wrong size and were skipped."),
    )
    for slug, count, text in counted:
        if count:
            found.append(_finding(slug, "file", text.format(int(count), last=losses.last_step)))
    missing = losses.frames_promised - losses.frames_read
    if losses.frames_promised >= 0 and missing > 0 and not losses.ranges:
        found.append(_finding("frames-missing", "file", f"{missing} frames that were written are not in the file."))
    return found


def _ending(losses: Losses) -> list[Finding]:
    """Findings about how the recording ended."""
    if not losses.stop_reason:
        if any(lost.reason == "cut" for lost in losses.ranges):
            return []
        return [
            _finding(
                "unfinished",
                f"byte {losses.bytes_total}",
                f"The recording was not closed: the process ended, or still runs, after {_after(losses.last_step)}.",
            )
        ]
    if losses.stop_reason == "closed":
        return []
    slug = f"stopped-{losses.stop_reason.replace('_', '-')}"
    told = f" ({losses.stop_text})" if losses.stop_text else ""
    words = _STOPPED.get(slug, "for a reason that this cbtrace does not know")
    slug = slug if slug in _STOPPED else "stopped"
    return [_finding(slug, "end", f"The recorder stopped early, after {_after(losses.last_step)}, {words}{told}.")]


def _range_finding(lost: LostRange, last_step: int) -> Finding:
    size = lost.end - lost.start
    place = f"bytes {lost.start} to {lost.end}"
    if lost.reason == "cut":
        text = (
            f"The file ends within a frame at byte {lost.start}, after {_after(last_step)}; {size} bytes were dropped."
        )
        return _finding("cut", place, text)
    if lost.reason == "compressed":
        text = f"The compressed file is damaged behind its first {lost.start} decompressed bytes: the rest is lost."
        return _finding("compressed-damaged", place, text)
    if lost.reason == "abandoned":
        text = f"From byte {lost.start} on the file was not searched further: {size} bytes look made to waste time."
        return _finding("search-abandoned", place, text)
    return _finding("damaged", place, f"{size} bytes from byte {lost.start} on hold no whole frame and were dropped.")


def _after(step: int) -> str:
    return f"step {step}" if step >= 0 else "no step at all"


def _finding(slug: str, place: str, meaning: str) -> Finding:
    return Finding(slug, _SEVERITY[slug], place, meaning)


_STOPPED = {
    "stopped-disk-full": "because the disk was full",
    "stopped-io-error": "because of an input or output error",
    "stopped-recorder-error": "because of an error in the recorder itself",
    "stopped-max-size": "at the size limit that was asked for",
}
_RECORD_AGAIN = "Record the run again if what is missing matters; figures of this one cover only what was read."
_MESSAGES = [
    declare(
        "unfinished",
        Severity.WARNING,
        "The recording has no end mark: the process was killed, or is still running.",
        "Everything up to the last whole step is there; wait for the run to end, or use it as it is.",
    ),
    declare("cut", Severity.DATA_LOSS, "The file ends in the middle of a frame.", _RECORD_AGAIN),
    declare("damaged", Severity.DATA_LOSS, "Bytes within the file were changed, lost or added.", _RECORD_AGAIN),
    declare(
        "search-abandoned",
        Severity.DATA_LOSS,
        "A stretch of the file is full of false starts of frames, more than damage by accident makes.",
        "Do not trust the file unless you know where it comes from.",
    ),
    declare(
        "compressed-damaged",
        Severity.DATA_LOSS,
        "Bytes within the compressed file were changed or lost; nothing behind them can be decompressed.",
        _RECORD_AGAIN,
    ),
    declare("preamble-damaged", Severity.DATA_LOSS, "The first bytes of the file were changed.", _RECORD_AGAIN),
    declare("header-missing", Severity.DATA_LOSS, "The frame with name, tags and fingerprint is lost.", _RECORD_AGAIN),
    declare(
        "engine-missing",
        Severity.DATA_LOSS,
        "The frame that describes the engine is lost, or no engine ran while recording.",
        "Check that generation ran inside the recording; without it KV amounts have no unit.",
    ),
    declare("steps-missing", Severity.DATA_LOSS, "Numbers of steps are skipped.", _RECORD_AGAIN),
    declare(
        "steps-overwritten",
        Severity.INFO,
        "The trace was recorded as a ring: it keeps the newest steps within a size limit.",
        "Raise the size limit to keep more.",
    ),
    declare(
        "admissions-lost",
        Severity.DATA_LOSS,
        "Numbers of admissions are skipped, so who was in a slot is not known until the next roster.",
        _RECORD_AGAIN,
    ),
    declare("requests-unknown", Severity.DATA_LOSS, "The frames that introduce requests are lost.", _RECORD_AGAIN),
    declare(
        "frames-missing", Severity.DATA_LOSS, "The end mark counts more frames than the file holds.", _RECORD_AGAIN
    ),
    declare(
        "frames-repeated",
        Severity.WARNING,
        "Parts of the file were copied into it a second time.",
        "Nothing is lost; find out what changed the file.",
    ),
    declare(
        "frames-reordered",
        Severity.WARNING,
        "Parts of the file were moved: frames follow others that were written after them.",
        "Nothing is lost, but who was in a slot may not be known everywhere; find out what changed the file.",
    ),
    declare(
        "frames-unreadable",
        Severity.DATA_LOSS,
        "Frames are intact, and hold what this cbtrace does not understand or what cannot be.",
        "Read the trace with the cbtrace that wrote it, or newer.",
    ),
    declare("values-malformed", Severity.DATA_LOSS, "Packed values have an impossible size.", _RECORD_AGAIN),
    declare("stopped", Severity.DATA_LOSS, "The recorder stopped early for an unknown reason.", _RECORD_AGAIN),
    declare("stopped-disk-full", Severity.DATA_LOSS, "The disk was full.", "Free some space and record the run again."),
    declare("stopped-io-error", Severity.DATA_LOSS, "Writing the file failed.", "Record to a disk that works."),
    declare(
        "stopped-recorder-error",
        Severity.DATA_LOSS,
        "The recorder met something it did not expect, and stopped so as not to disturb generation.",
        "Report it, with the text shown; check that this version of Transformers is supported.",
    ),
    declare(
        "stopped-max-size",
        Severity.DATA_LOSS,
        "The trace reached the size limit.",
        "Raise the limit, or record a ring that keeps the newest steps.",
    ),
]
_SEVERITY = {message.slug: message.severity for message in _MESSAGES}
_DAMAGE = {
    "damaged",
    "search-abandoned",
    "compressed-damaged",
    "preamble-damaged",
    "header-missing",
    "steps-missing",
    "admissions-lost",
    "requests-unknown",
    "frames-missing",
    "frames-repeated",
    "frames-reordered",
    "frames-unreadable",
    "values-malformed",
}
