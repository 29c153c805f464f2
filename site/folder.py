"""The output folder. Nothing in it that cbtrace did not write is ever changed or deleted.

All that cbtrace remembers of a site is in the folder ``.cbtrace-site``:

``files``
    every file of the site, a path a line. A name is in the list before the file is in the folder, and a build that was
    ended half way leaves both: the next one knows its own.
``runs/``
    what :mod:`~cbtrace.site.records` stores of each run.
``lock``
    held while a build runs: a second one waits for it.
``new/``
    files that are not in their place yet. Every file is written there and then renamed, so that nobody ever sees a part
    of one.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType

from filelock import FileLock, Timeout

from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity

STATE = ".cbtrace-site"
FILES = f"{STATE}/files"
RECORDS = f"{STATE}/runs/"
_TITLE = "# Files of this folder that cbtrace wrote. A later build replaces and removes these, and no others.\n"


class OutputFolderError(UsageError):
    """The output folder cannot be used; nothing of others in it was changed."""

    slug = "output-not-ours"


class OutputWriteError(CbtraceError):
    """Writing the site failed. Runs that were finished are kept, and the list of runs is as it was before."""

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
    """A site being written. Use as a context: leaving it normally removes files of ours that this build did not name.

    ``waiting`` is called when another build holds the folder, before this one waits for it.

    Raises:
        OutputFolderError: ``out`` is a file, or a folder with content that is not a site of ours.
        OutputWriteError: something could not be written.
    """

    def __init__(self, out: Path, waiting: Callable[[], None] | None = None) -> None:
        self.out = out.resolve()
        self.files: dict[str, int] = {}
        """Size of each file of the site as this build leaves it, by path relative to the site."""
        self._waiting = waiting
        self._made = self._first = False
        self._ours: set[str] = set()
        self._checked: set[Path] = set()
        self._lock = FileLock(self.out / STATE / "lock")

    def __enter__(self) -> OutputFolder:
        _refuse_what_is_not_ours(self.out)
        with explained(self.out):
            self._made = not self.out.exists()
            (self.out / STATE).mkdir(parents=True, exist_ok=True)
            self._take_lock()
        try:
            with explained(self.out):
                self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _take_lock(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            if self._waiting is not None:
                self._waiting()
            self._lock.acquire()

    def _begin(self) -> None:
        """Take over what an earlier build left, whether it came to its end or not."""
        self._first = not (self.out / FILES).exists()
        self._ours = _listed(self.out)
        if not self._first:
            self._write_list(self._ours)  # the last line may have been cut
        shutil.rmtree(self.new, ignore_errors=True)
        self.new.mkdir(parents=True)

    @property
    def new(self) -> Path:
        """Where files lie that are not in their place yet."""
        return self.out / STATE / "new"

    def put(self, texts: Mapping[str, str]) -> None:
        """Write files, given by path relative to the site with ``/``."""
        with explained(self.out):
            sizes = write_texts(self.new, texts)
        self.take(self.new, sizes)

    def take(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """Move files from ``folder`` to their places, in this order; what is there already stays untouched."""
        added = [name for name in sizes if name not in self._ours]
        for name in sizes:
            self._check(name)
        with explained(self.out):
            self._list(added)
            for name in sizes:
                place, made = self.out / name, folder / name
                if name in self._ours and place.is_file() and filecmp.cmp(made, place, shallow=False):
                    made.unlink()
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                made.replace(place)
        self._ours.update(added)
        self.files.update(sizes)

    def keep(self, sizes: Mapping[str, int]) -> bool:
        """Whether files of an earlier build are all there, of these sizes. If so they stay, as part of this site."""
        if not self._ours.issuperset(sizes):
            return False
        for name, size in sizes.items():
            self._check(name)
            try:
                if (self.out / name).stat().st_size != size:
                    return False
            except OSError:
                return False
        self.files.update(sizes)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with explained(self.out):
                shutil.rmtree(self.new, ignore_errors=True)
                if kind is None:
                    self._finish()
                elif self._first and not any(name.startswith(RECORDS) for name in self._ours):
                    self._undo()
        finally:
            self._lock.release()

    def _finish(self) -> None:
        """Remove what the site does not need any more, and list what it has."""
        self._remove(self._ours - self.files.keys())
        self._write_list(self.files)

    def _undo(self) -> None:
        """Leave nothing of a site of which not one run was finished."""
        self._remove(self._ours)
        shutil.rmtree(self.out / STATE)
        if self._made:
            self.out.rmdir()

    def _remove(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._check(name)
            (self.out / name).unlink(missing_ok=True)
            self._remove_empty((self.out / name).parent)

    def _write_list(self, names: Iterable[str]) -> None:
        aside = self.out / f"{FILES}.new"
        aside.write_text(_TITLE + "".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
        aside.replace(self.out / FILES)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.out:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _list(self, names: list[str]) -> None:
        """Note names of files that are about to be written."""
        path = self.out / FILES
        with path.open("a", encoding="utf-8") as listed:
            if listed.tell() == 0:
                listed.write(_TITLE)
            listed.writelines(f"{name}\n" for name in names)

    def _check(self, name: str) -> None:
        """Refuse to touch a file of others, or one outside the folder."""
        place = self.out / name
        if name not in self._ours and os.path.lexists(place):
            raise OutputFolderError(
                f"{self.out.name}/{name} is not ours, and the site needs a file of that name: move it away."
            )
        if place.parent not in self._checked:
            if not _inside(name) or not place.parent.resolve().is_relative_to(self.out):
                raise OutputFolderError(
                    f"{self.out.name}/{name} leads out of the folder through a link: remove the link."
                )
            self._checked.add(place.parent)


def write_texts(folder: Path, texts: Mapping[str, str]) -> dict[str, int]:
    """Write files below ``folder``; return their sizes in bytes."""
    sizes = {}
    for name, text in texts.items():
        data = text.encode("utf-8", "backslashreplace")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sizes[name] = len(data)
    return sizes


def _refuse_what_is_not_ours(out: Path) -> None:
    """Raise unless the folder is new, empty, or holds a site of ours."""
    with explained(out):
        if out.exists() and not out.is_dir():
            raise OutputFolderError(f"{out.name} is a file: name a folder for the site.")
        if not out.exists() or all(path.name == STATE for path in out.iterdir()):
            return
        _listed(out, required=True)


def _listed(out: Path, *, required: bool = False) -> set[str]:
    """The files of the site in ``out``, as far as they were listed whole."""
    try:
        title, *lines = (out / FILES).read_text(encoding="utf-8").splitlines(keepends=True)
        if title != _TITLE:
            raise ValueError(title)
    except FileNotFoundError:
        if not required:
            return set()
        title, lines = "", []
    except ValueError:
        title, lines = "", []
    if not title:
        raise OutputFolderError(
            f"{out.name} is not empty and is not a site that cbtrace built: name a new folder, or an earlier site."
        )
    return {line[:-1] for line in lines if line.endswith("\n") and _inside(line[:-1])}


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


@contextlib.contextmanager
def explained(out: Path) -> Iterator[None]:
    """Turn an operating system's error into a sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise OutputWriteError(
            f"The site cannot be written to {out.name} ({reason}): check the space and the permissions there."
        ) from error
