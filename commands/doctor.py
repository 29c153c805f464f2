"""``cbtrace doctor``: whether recording works here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cbtrace.recorder.doctor import Report


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check whether recording works with the Transformers that is installed here.

    A tiny model with random weights runs on the CPU, once without and once with a recording: some seconds, nothing is
    downloaded. The verdict is one of: verified, works but unverified version, not usable; with the last, the exit code
    is 1.

    \b
    Examples:
      cbtrace doctor
      cbtrace doctor --json | jq .verdict
    """
    from cbtrace.commands.progress import progress_bar
    from cbtrace.recorder.doctor import examine

    with progress_bar("Running a tiny model"):
        report = examine()
    typer.echo(json.dumps(_json(report), indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(report)))
    if not report.usable:
        raise typer.Exit(1)


def _json(report: Report) -> dict[str, object]:
    from msgspec import to_builtins

    return {"usable": report.usable, **to_builtins(report)}


def _lines(report: Report) -> Iterator[str]:
    yield f"{'verdict':<14}{report.verdict.value}"
    yield f"{'':<14}{report.reason}"
    yield f"{'what to do':<14}{report.remedy}"
    yield ""
    for name, version in report.versions.items():
        yield f"{name.replace('_', ' '):<14}{'unknown' if version is None else version}"
    yield f"{'GPU':<14}{_gpu(report)}"
    for number, check in enumerate(report.checks):
        if number == 0:
            yield ""
        outcome = "passed" if check.passed else "failed" if check.vital else "differs"
        yield f"{check.name:<14}{outcome:<9}{check.detail}"


def _gpu(report: Report) -> str:
    gpu = report.gpu
    if gpu.get("name") is None:
        return "unknown"
    if gpu["name"] == "none":
        return "none: recordings have neither GPU time nor GPU memory"
    return f"{gpu['name']}, {gpu.get('count')} visible"
