"""``cbtrace build``: a site from traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def build(
    traces: Annotated[
        list[Path], typer.Argument(metavar="RUN.cbt...", help="Traces, or folders of traces.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="SITE", help="Folder to write the site in.", show_default=False)
    ],
    title: Annotated[str, typer.Option(help="Title of the site.")] = "Continuous batching runs",
) -> None:
    """Build a static site: a page for each run, and one that compares any two of them.

    The site needs no server and no network: open its index.html, or copy the folder to any web server.

    \b
    Examples:
      cbtrace build run.cbt -o site
      cbtrace build before.cbt after.cbt -o site --title "KV blocks: 64 or 96"
      cbtrace build experiments/ -o site
    """
    from cbtrace.commands.progress import progress_bar
    from cbtrace.commands.trace_files import trace_files
    from cbtrace.site.build import build_site

    files = trace_files(traces)
    with progress_bar("Building the site") as advance:
        build_site(files, output, title=title, progress=advance)
    typer.echo(f"Open {(output / 'index.html').absolute()}")
