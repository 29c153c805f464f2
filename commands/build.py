"""``cbtrace build``: a site from traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from cbtrace.commands.plain_text import plain
from cbtrace.commands.where import AddressOption, OnOption, is_url, ray_wanted

if TYPE_CHECKING:
    from cbtrace.site.build import BuildReport
    from cbtrace.site.run_builds import Builder


def build(
    traces: Annotated[
        list[str],
        typer.Argument(metavar="RUN.cbt...", help="Traces, or folders of traces; URLs as well.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="SITE", help="Folder to write the site in.", show_default=False)
    ],
    title: Annotated[str, typer.Option(help="Title of the site.", show_default=False)] = "",
    lang: Annotated[str, typer.Option(help="Language of the pages: en or ja.")] = "en",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Processes that build pages; 0 is one for each core.")
    ] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Build every run, even those that have not changed.")] = False,
    single_file: Annotated[
        bool, typer.Option("--single-file", help="Write one run as one HTML file instead of a folder.")
    ] = False,
    on: OnOption = "local",
    address: AddressOption = None,
) -> None:
    """Build a static site: a page for each run, and one that compares any two of them.

    The site needs no server and no network: open its index.html, or copy the folder to any web server. Into the folder
    of an earlier site only what has changed is written. The ranks of a tensor-parallel run are one run. A trace that
    cannot be read is named here and on the index, the others are built, and the exit code is 1.

    \b
    Examples:
      cbtrace build run.cbt -o site
      cbtrace build before.cbt after.cbt -o site --title "KV blocks: 64 or 96"
      cbtrace build experiments/ -o site --jobs 8
      cbtrace build run.cbt --single-file -o run.html
      cbtrace build s3://bucket/experiment -o site --on ray
    """
    from cbtrace.commands.progress import progress_bar
    from cbtrace.commands.trace_files import trace_files
    from cbtrace.site.build import build_site

    on_ray = ray_wanted(on, address)
    with ExitStack() as stack:
        files = trace_files(_local(traces, stack))
        if single_file:
            _build_single_file(files, output, title, lang)
            return
        builder = _on_cluster(stack, address) if on_ray else None
        report = build_site(
            files,
            output,
            title=title or None,
            language=lang,
            jobs=jobs or _cores(),
            builder=builder,
            fresh=fresh,
            progress=stack.enter_context(progress_bar("Building the site")),
            waiting=_waiting,
        )
    for failed in report.failed:
        typer.echo(f"cbtrace: {plain(failed.text)} [{failed.slug}]", err=True)
    typer.echo(_counted(report))
    typer.echo(f"Open {(output / 'index.html').absolute()}")
    if report.failed:
        raise typer.Exit(1)


def _local(traces: list[str], stack: ExitStack) -> Iterator[Path]:
    """The paths that were named, and where those are that were named by URL, as long as the stack is open."""
    for named in traces:
        if is_url(named):
            from cbtrace.commands.stored_traces import fetched

            yield fetched(named, Path(stack.enter_context(TemporaryDirectory(prefix="cbtrace-"))))
        else:
            yield Path(named)


def _on_cluster(stack: ExitStack, address: str | None) -> Builder:
    """What builds runs on a cluster; this process is connected to it as long as the stack is open."""
    from cbtrace.commands.ray_builds import ray_builds
    from cbtrace.recorder.cluster.connection import connected

    stack.enter_context(connected(address))
    return ray_builds(lambda text: typer.echo(plain(text), err=True))


def _build_single_file(files: list[Path], output: Path, title: str, lang: str) -> None:
    from cbtrace.commands.output_file import check_not_input
    from cbtrace.site.single_run import build_single_run

    for file in files:
        check_not_input(file, output)
    build_single_run(files[0], output, ranks=files[1:], title=title or None, language=lang)
    typer.echo(f"Open {output.absolute()}")


def _counted(report: BuildReport) -> str:
    kept = sum(run.kept for run in report.runs)
    parts = [f"{len(report.runs) - kept} built", f"{kept} unchanged"]
    if report.failed:
        parts.append(f"{len(report.failed)} left out")
    joined = f" Traces joined as further ranks: {report.joined}." if report.joined else ""
    return f"Runs: {', '.join(parts)}.{joined}"


def _waiting() -> None:
    typer.echo("Another build writes to this folder: waiting for its end.", err=True)


def _cores() -> int:
    """The cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
