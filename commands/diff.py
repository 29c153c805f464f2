"""``cbtrace diff``: B against A, and a gate for CI."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cbtrace.site.diff import Diff


class Format(str, Enum):
    """How the comparison is written."""

    text = "text"
    json = "json"
    markdown = "markdown"


def diff(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B | A... vs B...", help="Traces, or folders of repeats; A is the baseline.", show_default=False
        ),
    ],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if", metavar="CONDITION", help="Such as 'ttft_ms.p95 > +5%'; repeatable.", show_default=False
        ),
    ] = None,
    experiment: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A and B are names of variants of this experiment.", show_default=False),
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="How to write it; by the ending of the file, else text.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a file; .html makes a page.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show numbers that are equal in both, too.")] = False,
) -> None:
    """Compare B with A: first whether they can be compared, then whether B is correct, then what is faster or slower.

    Each side is a trace, or several repeats of one setting: a folder, or names on both sides of "vs". A difference is
    called better or worse only where repeats show that it is more than noise: two runs a side and six in all at least.

    A condition is METRIC OPERATOR CHANGE: a key of the JSON summary, one of > >= < <=, and B less A with its sign, in
    per cent of A or in the metric's unit ("+5%", "-0.5", "+20ms", "+1GiB").

    \b
    Exit codes:
      0  compared; no condition holds
      1  a condition holds beyond noise
      2  the command line is wrong
      3  no condition holds beyond noise, but of one it cannot be told

    \b
    Examples:
      cbtrace diff before.cbt after.cbt
      cbtrace diff baseline/ candidate/ --fail-if 'ttft_ms.p95 > +5%' --fail-if 'soft_resets > +0'
      cbtrace diff a1.cbt a2.cbt a3.cbt vs b1.cbt b2.cbt b3.cbt --format markdown -o comment.md
      cbtrace diff --experiment experiment baseline num_blocks=64
      cbtrace diff baseline/ candidate/ -o diff.html
    """
    from cbtrace.commands.diff_sides import two_sides, variant_sides
    from cbtrace.commands.progress import progress_bar
    from cbtrace.site.analysis.gate import exit_code, parse_condition
    from cbtrace.site.diff import diff_traces

    conditions = [parse_condition(text) for text in fail_if or []]
    a, b = two_sides(sides) if experiment is None else variant_sides(experiment, sides)
    if output is not None:
        _check_output(output, format_, [*a, *b], overwrite)
    with progress_bar("Comparing") as advance:
        found = diff_traces(a, b, conditions, advance)
    if output is None:
        _print(found, format_ or Format.text, every=all_)
    else:
        if _is_page(output, format_):
            _write_page(a, b, output)
        else:
            _write(found, format_ or _ENDINGS.get(output.suffix.lower(), Format.text), output, every=all_)
        _tell(found, output)
    raise typer.Exit(exit_code(found.gates))


_ENDINGS = {".json": Format.json, ".md": Format.markdown}


def _is_page(output: Path, format_: Format | None) -> bool:
    return format_ is None and output.suffix.lower() in (".html", ".htm")


def _check_output(output: Path, format_: Format | None, sources: list[Path], overwrite: bool) -> None:
    """Refuse before anything is read. A page looks for itself whether what is there is another one of its kind."""
    from cbtrace.commands.output_file import check_not_input
    from cbtrace.traces.errors import TraceExistsError

    for source in sources:
        check_not_input(source, output)
    if output.exists() and not overwrite and not _is_page(output, format_):
        raise TraceExistsError(f"{output} exists already: choose another name, or replace it with --overwrite.")


def _print(found: Diff, format_: Format, *, every: bool) -> None:
    from cbtrace.commands.diff_text import print_diff

    if format_ is Format.text:
        print_diff(found, every=every)
    else:
        typer.echo(_document(found, format_), nl=False)


def _write(found: Diff, format_: Format, output: Path, *, every: bool) -> None:
    from cbtrace.commands.diff_text import print_diff
    from cbtrace.commands.output_file import writing
    from cbtrace.traces.export.new_file import new_file

    with writing(output), new_file(output, overwrite=True) as file:
        if format_ is Format.text:
            print_diff(found, every=every, file=file)
        else:
            file.write(_document(found, format_))


def _write_page(a: list[Path], b: list[Path], output: Path) -> None:
    from cbtrace.site.single_comparison import build_single_comparison

    build_single_comparison(a, b, output)


def _tell(found: Diff, output: Path) -> None:
    """Print the verdict and the conditions, which a log should show."""
    from cbtrace.commands.diff_sentences import gate, headline

    typer.echo("\n".join(said.text for said in (headline(found.comparison), *map(gate, found.gates))))
    typer.echo(f"Wrote {output}")


def _document(found: Diff, format_: Format) -> str:
    if format_ is Format.markdown:
        from cbtrace.commands.diff_markdown import diff_markdown

        return diff_markdown(found)
    from cbtrace.site.diff_json import diff_json

    return json.dumps(diff_json(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
