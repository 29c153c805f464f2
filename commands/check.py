"""``cbtrace check``: whether traces are whole and agree with themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.traces.recovery import Finding
    from cbtrace.traces.schema import Severity

CHECK_SCHEMA = 1
"""Version of the JSON form: a key never changes its meaning under one number."""
_WARNINGS_ONLY = 3


def check(
    traces: Annotated[
        list[Path], typer.Argument(metavar="RUN.cbt...", help="Traces, or folders of traces.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check whether traces are whole and agree with themselves, and say what is lost or does not add up.

    Checked are the bytes, and what must hold in every recording: blocks and tokens are conserved, clocks run forward,
    every request ends once, and the pieces of every latency add up. What the recorder itself remarked is listed too.
    Of a run over several ranks, ranks that are missing and ranks that do not agree are told.

    \b
    Exit codes, for scripts:
      0  nothing worse than info
      1  data loss, or broken: something is missing or wrong
      2  the command line is wrong
      3  warnings, and nothing worse

    \b
    Examples:
      cbtrace check run.cbt
      cbtrace check experiments/ --json | jq '.traces[] | select(.severity == "broken")'
    """
    from cbtrace.commands.rank_findings import rank_findings
    from cbtrace.commands.trace_files import trace_files

    paths = trace_files(traces)
    of_ranks = rank_findings(paths)
    checked = [_check(path, of_ranks.get(path, [])) for path in paths]
    if as_json:
        typer.echo(json.dumps({"schema": CHECK_SCHEMA, "traces": [_json(each) for each in checked]}, indent=2))
    else:
        typer.echo("\n".join(line for each in checked for line in _lines(each)))
    raise typer.Exit(_exit_code(checked))


@dataclass(frozen=True)
class Checked:
    """One trace and what was found about it; ``status`` is empty when it could not be read at all."""

    path: Path
    status: str = ""
    format_version: int | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def severity(self) -> Severity | None:
        """The worst of the findings; None without any."""
        return max((finding.severity for finding in self.findings), default=None)


def _check(path: Path, of_ranks: list[Finding]) -> Checked:
    from cbtrace.site.analysis.cut_check import check_cuts
    from cbtrace.traces import TraceError, invariants, open_trace
    from cbtrace.traces.recovery import Finding
    from cbtrace.traces.schema import Severity

    try:
        trace = open_trace(path)
    except TraceError as error:
        return Checked(path, findings=[Finding(error.slug, Severity.BROKEN, "file", str(error))])
    remarks = [
        Finding(notice.slug, _severity(notice.severity), f"at {notice.t_ns / 1e9:.3f} s", notice.text)
        for notice in trace.notices
    ]
    findings = [*invariants.check(trace), *check_cuts(trace), *remarks, *of_ranks]
    return Checked(path, trace.recovery.status, trace.format_version, findings)


def _severity(number: int) -> Severity:
    """The severity of a remark; of a number that there is none for, a warning."""
    from cbtrace.traces.schema import Severity

    return Severity(number) if number in list(Severity) else Severity.WARNING


def _exit_code(checked: list[Checked]) -> int:
    from cbtrace.traces.schema import Severity

    worst = max((each.severity for each in checked if each.severity is not None), default=Severity.INFO)
    if worst >= Severity.DATA_LOSS:
        return 1
    return _WARNINGS_ONLY if worst == Severity.WARNING else 0


def _lines(checked: Checked) -> Iterator[str]:
    worst = checked.severity
    said = "sound" if worst is None else f"{len(checked.findings)} findings, the worst: {_word(worst)}"
    status = f" ({checked.status})" if checked.status else ""
    yield f"{plain(str(checked.path))}{status}: {said.replace('1 findings, the worst', '1 finding')}"
    for finding in checked.findings:
        where = "" if finding.place == "file" else f"{plain(finding.place)}: "
        yield f"  {_word(finding.severity):<10}{where}{plain(finding.meaning)} [{plain(finding.slug)}]"


def _json(checked: Checked) -> dict[str, Any]:
    return {
        "trace": str(checked.path),
        "format_version": checked.format_version,
        "status": checked.status or None,
        "severity": None if checked.severity is None else _key(checked.severity),
        "findings": [_finding_json(finding) for finding in checked.findings],
    }


def _finding_json(finding: Finding) -> dict[str, str | None]:
    from cbtrace.site.messages import all_messages

    message = all_messages().get(finding.slug)
    return {
        "slug": finding.slug,
        "severity": _key(finding.severity),
        "place": finding.place,
        "meaning": finding.meaning,
        "cause": message.cause if message else None,
        "remedy": message.remedy if message else None,
    }


def _key(severity: Severity) -> str:
    return severity.name.lower()


def _word(severity: Severity) -> str:
    return _key(severity).replace("_", " ")
