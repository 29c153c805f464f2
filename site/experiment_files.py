"""Everything a site holds of one experiment: its page, and the data of its charts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cbtrace.site import formats
from cbtrace.site.analysis.experiment import TracedRun, join
from cbtrace.site.analysis.experiment_stages import stage_results
from cbtrace.site.analysis.experiment_verdict import verdicts
from cbtrace.site.assets import hashed_name
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.experiment import experiment_page, experiment_view
from cbtrace.site.pages.experiment_charts import chart_data
from cbtrace.site.pages.index import ExperimentEntry
from cbtrace.site.plain_text import distinct
from cbtrace.site.render import data_script
from cbtrace.site.run_files import RunRecord
from cbtrace.traces.experiment import EXPERIMENT_FILE, Experiment, ExperimentError, read_experiment
from cbtrace.traces.predictions import PREDICTIONS_FILE, Predictions, PredictionsError, read_predictions

LONGEST = 300
"""Characters of a name or a text that are shown."""


@dataclass(frozen=True)
class FoundExperiment:
    """An experiment whose traces are among those of a site."""

    experiment: Experiment
    traces: dict[str, Path]
    """By the id of the run, those of its traces that the site shows."""
    predictions: Predictions | None = None
    unread_predictions: str = ""
    """Why there are none although a file of them is there."""


@dataclass(frozen=True)
class UnreadExperiment:
    """An ``experiment.json`` that has no page, and why."""

    path: Path
    text: str
    """One sentence."""
    slug: str


def find_experiments(paths: Iterable[Path]) -> list[FoundExperiment | UnreadExperiment]:
    """The experiments that the traces belong to: their files lie in the folder of a trace, or in the one above."""
    known = {path.resolve(): path for path in paths}
    folders = dict.fromkeys(folder for path in known for folder in (path.parent.parent, path.parent))
    return [found for found in (_find(folder, known) for folder in folders) if found is not None]


def _find(folder: Path, known: Mapping[Path, Path]) -> FoundExperiment | UnreadExperiment | None:
    try:
        experiment = read_experiment(folder)
    except ExperimentError as error:
        path = folder / EXPERIMENT_FILE
        return UnreadExperiment(path, str(error).replace(str(path), f"{folder.name}/{path.name}"), error.slug)
    if experiment is None:
        return None
    traces = {run.id: (folder / run.trace).resolve() for run in experiment.runs if run.trace}
    ours = {run: known[path] for run, path in traces.items() if path in known}
    if not ours:
        return None
    try:
        return FoundExperiment(experiment, ours, read_predictions(folder))
    except PredictionsError as error:
        path = folder / PREDICTIONS_FILE
        return FoundExperiment(experiment, ours, None, str(error).replace(str(path), f"{folder.name}/{path.name}"))


def experiment_files(
    chrome: Chrome, found: FoundExperiment, records: Mapping[Path, RunRecord], taken: set[str]
) -> tuple[ExperimentEntry, dict[str, str]]:
    """Make the page; return what the index says of it, and the texts of its files by path relative to the site.

    ``records`` are the runs of the site by the path of their trace; ``taken`` are names of experiments, and gets one.
    """
    shown = {run: records[path] for run, path in found.traces.items() if path in records}
    traced = {
        distinct(run, LONGEST): TracedRun(it.slug, it.summary, it.conditions, it.tokens) for run, it in shown.items()
    }
    runs = join(_seen(found.experiment), traced, _seen_predictions(found.predictions), found.unread_predictions)
    judged = verdicts(runs)
    results = stage_results(runs, judged)
    slug = _slug(found.experiment.name, taken)
    base, key = f"experiments/{slug}", f"{slug}/experiment"
    script = data_script(key, chart_data(runs, results, chrome.words))
    script_name = hashed_name("charts.js", script)
    view = experiment_view(runs, judged, results, _facts(found.experiment, list(shown.values())), chrome.words)
    texts = {
        f"{base}/{script_name}": script,
        f"{base}/index.html": experiment_page(chrome, view, script_name, key),
    }
    entry = ExperimentEntry(
        name=view.name,
        page=f"{base}/index.html",
        done=sum(run.status == "done" for run in found.experiment.runs),
        runs=len(found.experiment.runs),
        adopted=[verdict.variant.name for verdict in judged if verdict.word == "adopt"],
    )
    return entry, texts


def _seen(experiment: Experiment) -> Experiment:
    """The experiment with every text as a reader can see it, of bounded length; equal texts stay equal."""
    return msgspec.convert(_plain(msgspec.to_builtins(experiment)), Experiment)


def _seen_predictions(predictions: Predictions | None) -> Predictions | None:
    return None if predictions is None else msgspec.convert(_plain(msgspec.to_builtins(predictions)), Predictions)


def _plain(data: Any) -> Any:
    if isinstance(data, str):
        return distinct(data, LONGEST)
    if isinstance(data, list):
        return [_plain(item) for item in data]
    if isinstance(data, dict):
        return {_plain(key): _plain(value) for key, value in data.items()}
    return data


def _facts(experiment: Experiment, records: list[RunRecord]) -> list[tuple[str, str]]:
    conditions = experiment.conditions
    counted = sum(run.status == "done" for run in experiment.runs)
    failed = sum(run.status == "failed" for run in experiment.runs)
    facts = [
        ("model", records[0].row.model if records else formats.UNKNOWN),
        ("device", records[0].row.device if records else formats.UNKNOWN),
        ("transformers", formats.fact(conditions.get("software.transformers"))),
        ("runs", f"{counted} / {len(experiment.runs)}"),
    ]
    return [*facts, ("failed", str(failed))] if failed else facts


def _slug(name: str, taken: set[str]) -> str:
    """A name for the folder: of ASCII letters, digits and dashes, never two alike. Adds it to ``taken``."""
    ascii_name = unicodedata.normalize("NFKD", name[:200]).encode("ascii", "ignore").decode().lower()
    base = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:40].strip("-") or "experiment"
    slug, number = base, 2
    while slug in taken:
        slug, number = f"{base}-{number}", number + 1
    taken.add(slug)
    return slug
