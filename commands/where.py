"""The options that say where something is done: on this machine, or on a Ray cluster."""

from __future__ import annotations

import re
from typing import Annotated

import typer

OnOption = Annotated[
    str, typer.Option("--on", metavar="local|ray", help="Where to work: this machine, or a Ray cluster.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Head of the Ray cluster; by default the one this machine is part of, or one that is started here.",
        show_default=False,
    ),
]


def ray_wanted(on: str, address: str | None) -> bool:
    """Whether a Ray cluster is to be used.

    Raises:
        UsageError: there is no such place, or the address of a cluster is given and none is to be used.
    """
    from cbtrace.traces.errors import UsageError

    if on not in ("local", "ray"):
        raise UsageError(f"There is no place {on[:40]!r} to work: write --on local or --on ray.")
    if on == "local" and address is not None:
        raise UsageError("--address names a Ray cluster: add --on ray, or leave it out.")
    return on == "ray"


def is_url(named: str) -> bool:
    """Whether a name on the command line is a URL, and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]+:(//|:)", named, re.IGNORECASE) is not None
