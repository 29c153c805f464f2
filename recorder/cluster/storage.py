"""Files at a place that fsspec knows: ``s3://``, ``gs://``, a shared folder. Each appears whole or not at all.

Credentials are fsspec's own affair (its configuration, the environment, the cloud's). A URL with a password is refused:
the operating system and Ray keep command lines. What a URL holds before an ``@`` is never shown, and neither is what a
library says of an error, which may repeat it.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity

_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "hf", "memory"})
"""Protocols of stores in which an object appears when its upload is complete: there is nothing to rename."""


_PASSWORD = re.compile(r"://[^/@:]*:(?!\d+(?:/|$)).*@")
"""A user, a colon and something that is no port, and an ``@`` anywhere behind: passwords may hold any character."""


class StorageError(CbtraceError):
    """Something cannot be read from a storage, or written to it."""

    slug = "storage-failed"


def shown(url: str) -> str:
    """A URL for people to see: without user, password, and what follows a question mark."""
    return re.sub(r"://[^/]*@", "://***@", _PASSWORD.sub("://***@", url)).partition("?")[0]


class Storage:
    """A folder in a storage.

    Args:
        url: what fsspec calls it; a path without a protocol is a local folder.

    Raises:
        UsageError: fsspec, or its part for this protocol, is not installed; the protocol does not exist; or the URL
            holds a password.
    """

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        """Its URL, without credentials."""
        if _PASSWORD.search(url):
            raise UsageError(
                f"{self.shown} was given with a password: keep it in fsspec's configuration or in the environment, and "
                "name the URL without it.",
                slug="storage-password",
            )
        try:
            core = importlib.import_module("fsspec.core")
            self._fs, root = core.url_to_fs(url)
        except ImportError as error:
            raise UsageError(
                f"A package to reach {self.shown} is not installed ({error.name or 'its own part of fsspec'}): "
                "run pip install 'cbtrace[ray]', and what fsspec needs for this protocol, such as s3fs.",
                slug="storage-package",
            ) from error
        except Exception as error:
            raise UsageError(
                f"{self.shown} is no place that fsspec knows ({type(error).__name__}): write it as s3://BUCKET/FOLDER "
                "or as a folder.",
                slug="storage-unknown",
            ) from None
        self._root = str(root).rstrip("/")
        self._whole = url.partition(":")[0].lower() in _WHOLE

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def read(self, name: str) -> bytes | None:
        """The content of a file; ``None`` when there is none of that name.

        Raises:
            StorageError: it cannot be read.
        """
        with self._explained("read"):
            try:
                data: bytes = self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, data: bytes | Path) -> None:
        """Write a file: bytes, or what is in another file.

        Raises:
            StorageError: it cannot be written; what was there before still is.
        """
        path = self._path(name)
        aside = path if self._whole else f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.part"
        with self._explained("written"):
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                if isinstance(data, Path):
                    self._fs.put_file(str(data), aside)
                else:
                    self._fs.pipe_file(aside, data)
                if aside != path:
                    self._fs.mv(aside, path)
            except BaseException:
                if aside != path:
                    with contextlib.suppress(Exception):
                        self._fs.rm_file(aside)
                raise

    def fetch(self, name: str, path: Path) -> None:
        """Write the content of a file to a new local one.

        Raises:
            StorageError: it cannot be read.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        try:
            with self._explained("read"):
                self._fs.get_file(self._path(name), str(aside))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """The names of all files in it, at any depth, relative to it; those that would lead out of a folder left out.

        Raises:
            StorageError: it cannot be listed.
        """
        with self._explained("read"):
            self._fs.invalidate_cache()
            found = [str(path) for path in self._fs.find(self._root)]
        start = f"{self._root}/"
        names = [path.removeprefix(start) for path in found if path.startswith(start)]
        return sorted(name for name in names if _stays_inside(name))

    def check_writable(self) -> None:
        """Raise :class:`StorageError` unless a file can be written, read and removed there: better now than later."""
        self.write(".cbtrace-probe", b"")
        with self._explained("written"):
            self._fs.rm_file(self._path(".cbtrace-probe"))

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            reason = "no such file" if isinstance(error, FileNotFoundError) else reason
            raise StorageError(
                f"{self.shown} cannot be {what} ({reason.lower()[:80]}): see to its permissions and its space, and the "
                "same command goes on."
            ) from None


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


declare(
    "storage-failed",
    Severity.BROKEN,
    "A storage cannot be read or written: permissions, credentials, its space or the network.",
    "See to that, and run the same command again; what was finished is kept.",
)
declare(
    "storage-package",
    Severity.BROKEN,
    "A URL names a storage that needs a package which is not installed.",
    "Install fsspec (part of 'cbtrace[ray]') and what it needs for the protocol: s3fs for s3://, gcsfs for gs://.",
)
declare(
    "storage-password",
    Severity.BROKEN,
    "A URL on the command line holds a password, and command lines are seen and kept by others.",
    "Keep credentials where fsspec looks for them: its configuration, the environment, or the cloud's own.",
)
declare(
    "storage-unknown",
    Severity.BROKEN,
    "A URL names a protocol that fsspec does not know, or is not one.",
    "Write it as s3://BUCKET/FOLDER, or as a folder.",
)
