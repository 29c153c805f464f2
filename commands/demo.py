"""``cbtrace demo``: three small real runs, and the site that compares them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cbtrace.site.analysis.summary import RunSummary


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the traces and the site.")
    ] = Path("cbtrace-demo"),
) -> None:
    """Record three small runs on this machine and build a site from them: no download, no GPU needed.

    A tiny model with random weights answers the same requests under three settings: sized automatically, with few KV
    blocks, and with few batch tokens. The runs are real, and so are their times and soft resets. Beside them the site
    shows recordings of an NVIDIA H200 that come with cbtrace.

    \b
    Examples:
      cbtrace demo
      cbtrace demo -o /tmp/demo
    """
    import cbtrace.traces
    from cbtrace.commands.progress import progress_bar
    from cbtrace.recorder.demo import record_demo
    from cbtrace.site.build import build_site

    traces = _folder(output / "traces")
    with progress_bar("Recording") as advance:
        files = record_demo(traces, advance)
    with progress_bar("Building the site") as advance:
        samples = sorted((Path(cbtrace.traces.__file__).parent / "samples").glob("*.cbt"))
        built = build_site(
            [*files, *samples], output / "site", title="cbtrace demo", jobs=os.cpu_count() or 1, progress=advance
        )
    automatic, few_blocks, *_ = built.runs
    index = built.out / "index.html"
    sides = f"a={Path(automatic.page).parent.name}&b={Path(few_blocks.page).parent.name}"
    typer.echo(f"Open {index}\n  or {index.as_uri()}")
    typer.echo(f"The two compared below: {(built.out / 'compare.html').as_uri()}#{sides}")
    others = len(built.runs) - len(files)
    typer.echo(f"Beside your {len(files)} runs: {others} recordings on NVIDIA H200s that come with cbtrace.")
    typer.echo(what_it_shows(automatic.summary, few_blocks.summary))


def what_it_shows(automatic: RunSummary, few_blocks: RunSummary) -> str:
    """Say in one sentence how a small KV cache compares with the automatic one, from the two traces."""
    from cbtrace.site.formats import number, size

    tight, roomy = few_blocks.kv, automatic.kv
    return (
        f"With a KV cache of {size(tight.capacity_bytes if tight else None)} instead of "
        f"{size(roomy.capacity_bytes if roomy else None)}, the same {few_blocks.requests.finished} requests went "
        f"through {few_blocks.soft_resets} soft resets instead of {automatic.soft_resets} and computed "
        f"{number(few_blocks.prompt_tokens_recomputed)} tokens again; p95 of the time to first token is "
        f"{number(few_blocks.ttft_ms.p95)} ms instead of {number(automatic.ttft_ms.p95)} ms, and generation ran at "
        f"{number(few_blocks.throughput_generated_tps)} instead of {number(automatic.throughput_generated_tps)} "
        "tokens/s (one run of each: small differences may be noise)."
    )


def _folder(path: Path) -> Path:
    from cbtrace.traces.errors import CbtraceError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CbtraceError(
            f"{path} cannot be made ({error.strerror}): choose another folder with -o.", slug="output-unwritable"
        ) from error
    return path
