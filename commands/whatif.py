"""``cbtrace whatif``: what recorded requests would have met with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.commands.whatif_limits import Limit
    from cbtrace.commands.whatif_study import Prediction, Study
    from cbtrace.traces.schema import Scalar


def whatif(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN.cbt [MORE.cbt...] | EXPERIMENT",
            help="Recording to change, and more that the times are learned from; or the folder of an experiment.",
            show_default=False,
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable.", show_default=False),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=A,B,C", help="Try each value; with several, each combination.", show_default=False
        ),
    ] = None,
    solve: Annotated[
        list[str] | None,
        typer.Option("--solve", metavar="LIMIT", help="Such as 'ttft_ms.p95 <= 800'; repeatable.", show_default=False),
    ] = None,
    maximize: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="What to order settings that are worth running by, instead of throughput_generated_tps.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Keep the predicted trace; when sweeping, a folder of them.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, with unrounded numbers.")] = False,
) -> None:
    """Predict other settings from a recording, without a GPU.

    The engine's own scheduler is replayed with the recorded requests; how long its steps take is learned from the
    recordings given, which must be of one model on one machine. First each recording is replayed with its own settings,
    which must give the schedule that was recorded. With several recordings, each is predicted from the others to see by
    how much predictions are off. A prediction says what to run next; it is never a measurement.

    Without --set and --sweep, settings around the recorded ones are tried, one change at a time. Of the folder of an
    experiment, the baseline's first run is changed, and all runs of its workload are learned from; the predictions are
    kept there, in predictions.json, and shown on the experiment's page.

    \b
    Examples:
      cbtrace whatif run.cbt
      cbtrace whatif experiment/ && cbtrace build experiment/ -o site
      cbtrace whatif run.cbt --set num_blocks=96 --set safety_margin=0.0
      cbtrace whatif run.cbt other.cbt --set max_batch_tokens=512 -o predicted.cbt
      cbtrace whatif run.cbt other.cbt third.cbt --sweep num_blocks=48,64,96,128
      cbtrace whatif run.cbt other.cbt --sweep num_blocks=48,64,96 --solve 'ttft_ms.p95 <= 800'
    """
    from cbtrace.commands.progress import progress_bar
    from cbtrace.commands.whatif_experiment import experiment_source, write_study
    from cbtrace.commands.whatif_limits import check_can_be_kept, metric, parse_limit, worth_running
    from cbtrace.commands.whatif_settings import combinations
    from cbtrace.commands.whatif_study import study
    from cbtrace.traces.errors import UsageError

    limits = [parse_limit(text) for text in solve or []]
    check_can_be_kept(limits)
    by = metric(maximize or "throughput_generated_tps", "--maximize").key
    source = experiment_source(traces)
    paths = traces if source is None else list(source.traces.values())
    changes = combinations(set_, sweep) if set_ or sweep else _around(paths[0])
    are_ordered = bool(limits) or len(changes) > 1
    if maximize and not are_ordered:
        raise UsageError(
            "--maximize orders several settings, and one is named: add --solve or --sweep, or leave it out."
        )
    outputs = _outputs(changes, output, is_folder=len(changes) > 1 or bool(sweep))
    with progress_bar("Predicting") as advance:
        found = study(paths, changes, outputs, overwrite, advance, leave_aside=source is not None)
    kept, replaced = (None, "") if source is None else write_study(found, source)
    if replaced:
        typer.echo(plain(replaced), err=True)
    worth = worth_running(found, limits, by) if are_ordered else None
    if as_json:
        told = found.as_json() | ({} if worth is None else {"worth_running": [each.changes for each in worth]})
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
    else:
        _print(found, limits, by, worth, kept)
    if all(prediction.refused for prediction in found.predictions):
        raise typer.Exit(1)


def _around(path: Path) -> list[dict[str, Scalar]]:
    """Changes to try when none is named."""
    from cbtrace.recorder.whatif.neighbours import neighbours
    from cbtrace.recorder.whatif.replayable import check_replayable
    from cbtrace.traces import open_trace
    from cbtrace.traces.errors import UsageError

    trace = open_trace(path)
    check_replayable(trace)
    found = neighbours(trace)
    if not found:
        raise UsageError("Nothing is to be changed: name a setting with --set KEY=VALUE or --sweep KEY=A,B,C.")
    return found


def _outputs(changes: list[dict[str, Scalar]], output: Path | None, *, is_folder: bool) -> list[Path | None]:
    """Where each prediction goes; None is nowhere."""
    from cbtrace.commands.output_file import writing

    if output is None or not is_folder:
        return [output] * len(changes)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    return [output / f"{'_'.join(f'{key}-{value}' for key, value in change.items())}.cbt" for change in changes]


def _print(found: Study, limits: list[Limit], maximize: str, worth: list[Prediction] | None, kept: Path | None) -> None:
    from cbtrace.commands.whatif_table import how_sure, lines, next_lines

    told = [*lines(found), *(next_lines(found, limits, maximize, worth) if worth is not None else ())]
    told += ["", *how_sure(found, kept)]
    typer.echo("\n".join(plain(line) for line in told))
