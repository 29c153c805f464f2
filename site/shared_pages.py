"""The pages of a site that are not of one run, made anew by every build from the records of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cbtrace.site.assets import hashed_name
from cbtrace.site.default_comparisons import default_comparisons
from cbtrace.site.experiment_files import FoundExperiment, UnreadExperiment, experiment_files, find_experiments
from cbtrace.site.folder import OutputFolder
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare import compare_page
from cbtrace.site.pages.compare_data import catalogue_data
from cbtrace.site.pages.explaining import explaining_pages
from cbtrace.site.pages.index import ExperimentEntry, UnreadTrace, index_page
from cbtrace.site.render import data_script
from cbtrace.site.run_builds import FailedRun
from cbtrace.site.run_files import RunRecord


def put_shared_pages(
    folder: OutputFolder, chrome: Chrome, records: Mapping[Path, RunRecord], failed: Sequence[FailedRun]
) -> list[FailedRun]:
    """Put the pages of experiments, those that compare, those that explain, and the index, which is the last.

    ``records`` are the runs by the paths of their traces, in the order of the index. Returns the experiments that
    cannot be read; they are named on the index as the ``failed`` traces are.
    """
    runs = list(records.values())
    found = find_experiments(records)
    unread = [FailedRun(it.path, it.text, it.slug) for it in found if isinstance(it, UnreadExperiment)]
    whole = [it for it in found if isinstance(it, FoundExperiment)]
    experiments = _put_experiments(folder, chrome, whole, records)
    choices = _put_choices(folder, chrome, runs)
    defaults, texts = default_comparisons(chrome, whole, records, choices)
    pages = {
        "compare.html": compare_page(chrome, choices, defaults),
        **explaining_pages(chrome),
        "index.html": index_page(chrome, [run.row for run in runs], experiments, _named([*failed, *unread])),
    }
    folder.put(texts | pages)
    return unread


def _put_experiments(
    folder: OutputFolder, chrome: Chrome, experiments: Iterable[FoundExperiment], records: Mapping[Path, RunRecord]
) -> list[ExperimentEntry]:
    """Build the pages of the experiments that the runs belong to; return what the index says of them."""
    taken: set[str] = set()
    entries = []
    for found in experiments:
        entry, texts = experiment_files(chrome, found, records, taken)
        folder.put(texts)
        entries.append(entry)
    return entries


def _put_choices(folder: OutputFolder, chrome: Chrome, records: Sequence[RunRecord]) -> str:
    """Put the list of runs that the compare page chooses from; return its path relative to the site."""
    text = data_script("runs", {"runs": [record.entry for record in records]} | catalogue_data(chrome.words))
    path = f"assets/{hashed_name('runs.js', text)}"
    folder.put({path: text})
    return path


def _named(failed: Iterable[FailedRun]) -> list[UnreadTrace]:
    """What the index says of traces without a page. It names files only: folders of a machine are nobody's business."""
    return [UnreadTrace(it.source.name, it.text.replace(str(it.source), it.source.name), it.slug) for it in failed]
