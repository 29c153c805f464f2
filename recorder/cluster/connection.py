"""Joins a Ray cluster, or starts one on this machine, and says in a sentence why that does not work."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from cbtrace.recorder.cluster.storage import shown
from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity

_CONNECT_S = 5.0
_JOIN_S = 30.0
_TRIAL = """
import json, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
    sys.exit(1)
"""


class ClusterError(CbtraceError):
    """The cluster cannot be used."""

    slug = "cluster-unreachable"


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Be connected to the cluster at ``address`` while the block runs.

    ``address`` is ``HOST:PORT`` of its head, or ``auto``; without one it is ``RAY_ADDRESS``, or else a cluster that
    this machine is part of. Where there is none of these, one is started on this machine, and stopped at the end.

    Raises:
        UsageError: Ray is not installed, or the address cannot be one.
        ClusterError: there is no cluster at the address, this machine is not part of it, or it has another version.
    """
    ray = ray_library()
    where = address or os.environ.get("RAY_ADDRESS") or None
    if where is not None:
        _check(where)
    _quiet(ray)
    # The cluster that is started here is of no concern to anybody else.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", include_dashboard=None if where else False)
    except Exception as error:
        raise _explained(type(error).__name__, str(error), where) from error
    try:
        yield
    finally:
        ray.shutdown()


def ray_library() -> Any:
    """Ray.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            "Ray is not installed here: run pip install 'cbtrace[ray]', or leave out --on ray.", slug="ray-missing"
        ) from error


def _check(where: str) -> None:
    """Raise unless this machine can join the cluster there.

    That is tried in another process: where something else answers, Ray waits for minutes and does not heed Ctrl-C.
    """
    host, _, port = where.rpartition(":")
    if where != "auto":
        if "://" in where or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise UsageError(
                f"{shown(where)[:200]!r} is no address of a cluster: write HOST:PORT as ray start printed it, or auto. "
                "From outside a cluster, let ray job submit run this command in it.",
                slug="cluster-address",
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, UnicodeError) as error:
            raise _nobody(where, (getattr(error, "strerror", None) or "there is no such name").lower()) from error
    try:
        tried = subprocess.run([sys.executable, "-c", _TRIAL, where], capture_output=True, timeout=_JOIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _nobody(where, f"nothing there answered as a cluster does within {_JOIN_S:g} s") from error
    if tried.returncode:
        said = [line for line in tried.stdout.splitlines() if line.startswith(b'["')] or [b'["no message", ""]']
        raise _explained(*msgspec.json.decode(said[-1], type=tuple[str, str]), where)


def _nobody(where: str, reason: str) -> ClusterError:
    return ClusterError(
        f"No Ray cluster answers at {where} ({reason}): check the address that ray start printed, and that it runs."
    )


def _explained(kind: str, text: str, where: str | None) -> ClusterError:
    """What an error of Ray's means. Its own text names folders of this machine, so that little of it is repeated."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if text.startswith("Version mismatch") and len(versions) == 2:
        (ray, python), (our_ray, our_python) = versions
        return ClusterError(
            f"The cluster has Ray {ray} with Python {python}, and this command Ray {our_ray} with Python {our_python}: "
            "install the same versions on both.",
            slug="cluster-version",
        )
    if kind == "AuthenticationError":
        return ClusterError(
            "The cluster wants a token, and this machine has none or another one: put the cluster's into "
            "~/.ray/auth_token, as the documentation of Ray says.",
            slug="cluster-token",
        )
    if where is None or where == "auto":
        return ClusterError(
            f"There is no Ray cluster on this machine to join ({kind}): start one with ray start, or leave out "
            "--address."
        )
    return ClusterError(
        f"The cluster at {where} answers, and this machine cannot join it ({kind}): run the command on a machine of "
        "the cluster, or let ray job submit run it there."
    )


def _quiet(ray: Any) -> None:
    """Keep Ray from printing dozens of lines from the log of every machine that is lost: we say it in one. There is no
    public switch for them."""
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = False


declare(
    "ray-missing",
    Severity.BROKEN,
    "Something is to run on a Ray cluster, and Ray is not installed here.",
    "Run pip install 'cbtrace[ray]', or leave out --on ray.",
)
declare(
    "cluster-address",
    Severity.BROKEN,
    "The address of a cluster is not HOST:PORT, or names a way to connect that is not supported (ray://).",
    "Write HOST:PORT as ray start printed it. From outside a cluster, use ray job submit.",
)
declare(
    "cluster-unreachable",
    Severity.BROKEN,
    "There is no Ray cluster at the address, or this machine is not part of it.",
    "Check that it runs, and run the command on one of its machines.",
)
declare(
    "cluster-token",
    Severity.BROKEN,
    "The Ray cluster lets nobody in without its token, and it is not the one of this machine.",
    "Put the cluster's token into ~/.ray/auth_token, or name its file in RAY_AUTH_TOKEN_PATH.",
)
declare(
    "cluster-version",
    Severity.BROKEN,
    "The cluster has another version of Ray, Python or cbtrace than this command.",
    "Install the same versions on all machines.",
)
