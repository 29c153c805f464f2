"""What a build remembers of each run, so that a later one does not read an unchanged trace again.

A record lies in the folder of the site, under a key of everything that its run's files depend on: the bytes and the
file name of the trace, and all that makes pages from it. It is written after the files it lists. A record that cannot
be read, or whose files are not all there, counts for nothing: the run is built again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from cbtrace.site.folder import RECORDS, OutputFolder
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.render import canonical_json
from cbtrace.site.run_files import RunRecord, RunSource

if TYPE_CHECKING:
    from importlib.abc import Traversable

_MAKERS = (("cbtrace.site", ".py"), ("cbtrace.traces", ".py"), ("cbtrace.templates", ""))
"""Packages whose files decide what a page looks like, and the ending of those files."""
_LIBRARIES = ("cbtrace", "altair", "jinja2", "msgspec", "numpy")


class StoredRecord(msgspec.Struct, frozen=True):
    """A record as it lies in the site."""

    record: RunRecord
    files: dict[str, int]
    """Size of each of the run's files, by path relative to the site."""


def maker_digest(chrome: Chrome) -> str:
    """A digest of all that run pages depend on beside the trace: programs, templates, words, language and title."""
    found = hashlib.sha256()
    for package, ending in _MAKERS:
        for name, data in _contents(files(package), ending):
            found.update(f"{package}/{name} {len(data)}\n".encode() + data)
    versions = {name: _version(name) for name in _LIBRARIES}
    site = {"title": chrome.title, "language": chrome.words.language, "assets": dict(chrome.assets)}
    found.update(canonical_json([versions, site]).encode())
    return found.hexdigest()


def _contents(folder: Traversable, ending: str, base: str = "") -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from _contents(item, ending, f"{base}{item.name}/")
        elif item.name.endswith(ending) and item.is_file():
            yield f"{base}{item.name}", item.read_bytes()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def record_path(maker: str, source: RunSource) -> str:
    """Where the record of a run lies, relative to the site."""
    key = canonical_json([maker, source.digest, source.path.name, source.copy, source.ranks_digest])
    return f"{RECORDS}{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def as_kept(record: RunRecord) -> RunRecord:
    """The record as a later build will read it, where 3 may be 3.0: all builds make pages of the very same values."""
    return msgspec.json.decode(msgspec.json.encode(record), type=RunRecord)


def record_text(record: RunRecord, sizes: Mapping[str, int]) -> str:
    """The text of a record's file."""
    return msgspec.json.encode(StoredRecord(record, dict(sizes)), order="deterministic").decode()


def kept_record(folder: OutputFolder, path: str) -> RunRecord | None:
    """The record at ``path``, if its run need not be built again: all files of the run are there, and stay."""
    try:
        data = (folder.out / path).read_bytes()
        stored = msgspec.json.decode(data, type=StoredRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    return stored.record if folder.keep(stored.files | {path: len(data)}) else None
