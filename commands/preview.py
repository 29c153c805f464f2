"""A web server for one folder on the loopback interface."""

from __future__ import annotations

import errno
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cbtrace.traces.errors import CbtraceError, declare
from cbtrace.traces.schema import Severity

_NAMES = ("127.0.0.1", "localhost")


class _Handler(SimpleHTTPRequestHandler):
    def send_head(self):  # type: ignore[no-untyped-def]  # returns an opened file or None, as the base class
        """Answer only to names of this machine: another name is a page elsewhere that reaches through the browser."""
        if self.headers.get("Host", "").rpartition(":")[0] not in _NAMES:
            self.send_error(403)
            return None
        return super().send_head()

    def end_headers(self) -> None:
        """Have the browser ask again each time: the folder may have been built anew."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""


def preview_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server for ``folder`` at 127.0.0.1, listening already. Port 0 takes a free one.

    Raises:
        CbtraceError: the port cannot be had.
    """
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(folder)))
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise CbtraceError(
            f"Port {port} {why}: choose another with --port, or let --port 0 take a free one.", slug="port-unavailable"
        ) from error


declare(
    "not-a-site",
    Severity.BROKEN,
    "The folder has no index.html, so it is no site that `cbtrace build` wrote.",
    "Build one with `cbtrace build RUN.cbt -o SITE`, and name that folder.",
)
declare(
    "port-unavailable",
    Severity.BROKEN,
    "Another program listens on the port, or the system does not allow it.",
    "Choose another port; 0 takes a free one.",
)
