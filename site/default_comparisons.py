"""Comparisons that are made with a site: the baseline of each experiment against each of its variants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cbtrace.site.experiment_files import FoundExperiment
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.pages.compare import DefaultComparison, comparison_page, comparison_path
from cbtrace.site.plain_text import plain
from cbtrace.site.run_files import RunRecord
from cbtrace.traces.experiment import VariantEntry


@dataclass(frozen=True)
class _Pair:
    """Two sides, and what their comparison is called."""

    label: str
    a: list[RunRecord]
    b: list[RunRecord]


def default_comparisons(
    chrome: Chrome, found: Iterable[FoundExperiment], records: Mapping[Path, RunRecord], runs_script: str
) -> tuple[list[DefaultComparison], dict[str, str]]:
    """Make them; return where each is, and the texts of the pages by path relative to the site."""
    comparisons, texts = [], {}
    for pair in (pair for experiment in found for pair in _pairs(chrome, experiment, records)):
        page = comparison_path([run.slug for run in pair.a], [run.slug for run in pair.b])
        sides = ([run.side for run in side] for side in (pair.a, pair.b))
        texts[page] = comparison_page(chrome, runs_script, pair.label, *sides)
        comparisons.append(DefaultComparison(pair.label, page))
    return comparisons, texts


def _pairs(chrome: Chrome, found: FoundExperiment, records: Mapping[Path, RunRecord]) -> list[_Pair]:
    variants = found.experiment.variants
    baseline = next((it for it in variants if not it.based_on and it.kind == "continuous"), None)
    if baseline is None:
        return []
    a = _runs(baseline, found, records)
    others = [(it, _runs(it, found, records)) for it in variants if it is not baseline]
    name = plain(found.experiment.name, 100)
    return [_Pair(_label(chrome, name, baseline, variant), a, b) for variant, b in others if a and b]


def _label(chrome: Chrome, experiment: str, baseline: VariantEntry, variant: VariantEntry) -> str:
    names = {"a": plain(baseline.name, 100), "b": plain(variant.name, 100)}
    return chrome.words("compare.of", experiment=experiment, **names)


def _runs(variant: VariantEntry, found: FoundExperiment, records: Mapping[Path, RunRecord]) -> list[RunRecord]:
    """The runs of a variant that went to their end and have a page."""
    paths = (
        found.traces.get(run.id)
        for run in found.experiment.runs
        if run.variant == variant.name and run.status == "done"
    )
    return [records[path] for path in paths if path is not None and path in records]
