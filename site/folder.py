"""The output folder: written aside, then swapped in. Nothing that cbtrace did not write is ever deleted.

The marker file ``.cbtrace-site.json`` names every file of the site, so that a later build knows which are its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType

from cbtrace.site.render import canonical_json
from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity

MARKER = ".cbtrace-site.json"


class OutputFolderError(UsageError):
    """The output folder cannot be used; nothing in it was changed."""

    slug = "output-not-ours"


class OutputWriteError(CbtraceError):
    """Writing the site failed; the folder is as it was before."""

    slug = "output-unwritable"


declare(
    "output-not-ours",
    Severity.BROKEN,
    "The output folder holds files that cbtrace did not write.",
    "Name a new or empty folder, or one that an earlier build made.",
)
declare(
    "output-unwritable",
    Severity.BROKEN,
    "The site could not be written.",
    "Check the space on the disk and the permissions of the folder that holds the output.",
)


class OutputFolder:
    """A site being written. Use as a context: leaving it normally swaps the site in, an error leaves nothing behind.

    Raises:
        OutputFolderError: ``out`` is a file, or a folder with content that is not a site of ours.
        OutputWriteError: something could not be written.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        self.files: dict[str, int] = {}
        """Size of each file written so far, by path relative to the site."""
        self._known = _known_files(self.out)
        self._aside: Path | None = None

    def __enter__(self) -> OutputFolder:
        with _explained(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._aside = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.", suffix=".new", dir=self.out.parent))
        return self

    def write(self, name: str, text: str) -> str:
        """Write one file; return ``name``, its path relative to the site with ``/``."""
        data = text.encode("utf-8", "backslashreplace")
        with _explained(self.out):
            path = self._new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.files[name] = len(data)
        return name

    @property
    def _new(self) -> Path:
        if self._aside is None:
            raise RuntimeError("an OutputFolder is written to inside its context")
        return self._aside

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.write(MARKER, canonical_json({"files": sorted([*self.files, MARKER])}) + "\n")
                with _explained(self.out):
                    self._swap_in()
        finally:
            shutil.rmtree(self._new, ignore_errors=True)

    def _swap_in(self) -> None:
        """Put the new site in place. Files in the old folder that were not ours move over to the new one."""
        self._new.chmod(0o777 & ~_umask())
        if not self.out.exists():
            self._new.rename(self.out)
            return
        foreign = sorted(_foreign_files(self.out, self._known))
        for name in foreign:
            if name in self.files or (self._new / name).exists():
                raise OutputFolderError(
                    f"{self.out.name}/{name} is not ours, and the site needs a file of that name: move it away."
                )
        old = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.", suffix=".old", dir=self.out.parent))
        old.rmdir()
        self.out.rename(old)
        try:
            self._new.rename(self.out)
        except OSError:
            old.rename(self.out)
            raise
        for name in foreign:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            (old / name).rename(self.out / name)
        shutil.rmtree(old, ignore_errors=True)


def _known_files(out: Path) -> frozenset[str]:
    """The files of the site in ``out``; empty for a folder that is new or empty."""
    if not out.exists():
        return frozenset()
    if not out.is_dir():
        raise OutputFolderError(f"{out.name} is a file: name a folder for the site.")
    with _explained(out):
        if not any(out.iterdir()):
            return frozenset()
    try:
        listed = json.loads((out / MARKER).read_bytes())["files"]
        names = {name for name in listed if isinstance(name, str) and _inside(name)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputFolderError(
            f"{out.name} is not empty and is not a site that cbtrace built: name a new folder, or an earlier site."
        ) from error
    return frozenset(names)


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _foreign_files(out: Path, known: frozenset[str]) -> list[str]:
    """Files and links in ``out`` that are not of the site, as paths relative to it."""
    found = []
    for folder, subfolders, files in os.walk(out):
        links = [name for name in subfolders if (Path(folder) / name).is_symlink()]
        for name in [*files, *links]:
            relative = (Path(folder) / name).relative_to(out).as_posix()
            if relative not in known:
                found.append(relative)
    return found


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Turn an operating system's error into a sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise OutputWriteError(
            f"The site cannot be written to {out.name} ({reason}): check the space and the permissions there."
        ) from error
