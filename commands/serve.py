"""``cbtrace serve``: look at a site through a local web server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="Folder that cbtrace build wrote.", show_default=False)],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
) -> None:
    """Show a site at http://127.0.0.1, to this machine only, until Ctrl-C.

    A site opens from disk as well; this is for browsers that cannot reach the disk, for one through an ssh tunnel.

    \b
    Examples:
      cbtrace serve site
      cbtrace serve site --port 0
    """
    from cbtrace.commands.preview import preview_server
    from cbtrace.traces.errors import UsageError

    if not (site / "index.html").is_file():
        raise UsageError(f"{site} is not a site: name a folder that cbtrace build wrote.", slug="not-a-site")
    try:
        with preview_server(site, port) as server:
            typer.echo(f"Serving {site} at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
            server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("")
