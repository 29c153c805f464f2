"""The versions of Transformers that cbtrace is tested on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TESTED = ("5.14.1", "5.17.0", "5.20.2", "5.24.0")
"""Every test of the version matrix passes on these. Others are tried, and said to be unverified."""


def is_verified() -> tuple[str, bool]:
    """Return the installed version of Transformers and whether it is one of :data:`TESTED`."""
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return "unknown", False
    return installed, installed in TESTED
