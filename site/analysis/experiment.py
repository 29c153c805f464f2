"""An experiment as its page sees it: each variant with its runs, and each run with what its trace says.

Everything here is computed from ``experiment.json`` and one :class:`TracedRun` a trace, so that a page can be made
again without reading the traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.run_values import RUN_VALUES
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.traces.columns import Steps
from cbtrace.traces.experiment import Experiment, RunEntry, VariantEntry
from cbtrace.traces.predictions import Predictions


@dataclass(frozen=True)
class PassTokens:
    """Tokens that the forward passes of a run went through."""

    needed: int
    """Prompt tokens, recomputed ones and decodes of the requests that a pass served."""
    computed: int
    """The same with padding; the difference is padding."""


def pass_tokens(steps: Steps) -> PassTokens:
    """Count them over all steps of a trace."""
    needed = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    return PassTokens(int(needed.sum()), int(steps.padded_queries.sum()))


@dataclass(frozen=True)
class TracedRun:
    """A run of the site."""

    slug: str
    """Name of its page."""
    summary: RunSummary
    conditions: RunConditions
    tokens: PassTokens


@dataclass(frozen=True)
class ExperimentRun:
    """One run: what became of it, and what its trace says, if there is one."""

    entry: RunEntry
    traced: TracedRun | None

    @property
    def predicted(self) -> bool:
        """Whether its trace was calculated, so that it never counts as a run."""
        return self.traced is not None and self.traced.summary.predicted

    def value(self, key: str) -> float | None:
        """One of its run-level values; ``None`` is unknown."""
        return None if self.traced is None else RUN_VALUES[key].of(self.traced.summary)

    def resolved(self, setting: str) -> str | None:
        """What its engine worked with, as a text; ``None`` when no trace tells."""
        if self.traced is None:
            return None
        value = self.traced.conditions.resolved.get(setting)
        return self.traced.conditions.conditions.get(f"model.{setting}") if value in (None, "unset") else value


@dataclass(frozen=True)
class Variant:
    """One setting under test, with all of its runs."""

    entry: VariantEntry
    runs: list[ExperimentRun]

    @property
    def name(self) -> str:
        """Its name in the plan."""
        return self.entry.name

    @cached_property
    def done(self) -> list[ExperimentRun]:
        """Runs that went to their end and have a trace here, predicted ones too."""
        return [run for run in self.runs if run.entry.status == "done" and run.traced is not None]

    @cached_property
    def measured(self) -> list[ExperimentRun]:
        """The runs that count."""
        return [run for run in self.done if not run.predicted]

    @cached_property
    def failed(self) -> list[ExperimentRun]:
        """Runs that failed, but for those that somebody ended on purpose."""
        return [run for run in self.runs if run.entry.status == "failed" and run.entry.failure != "cancelled"]

    @cached_property
    def left(self) -> list[ExperimentRun]:
        """Runs that are still to come, or were under way when the file was written."""
        return [run for run in self.runs if run.entry.status in ("planned", "running")]

    @cached_property
    def skipped(self) -> list[ExperimentRun]:
        """Runs that the experiment left out, and says why."""
        return [run for run in self.runs if run.entry.status == "skipped"]

    def values(self, key: str) -> list[float]:
        """A run-level value over the runs that count; unknown ones are left out."""
        return [value for value in (run.value(key) for run in self.measured) if value is not None]

    def resolved(self, setting: str) -> list[str]:
        """What the engine of each run worked with, failed ones too; different values once each, in order."""
        return list(dict.fromkeys(value for value in (run.resolved(setting) for run in self.runs) if value is not None))

    @property
    def conditions(self) -> list[RunConditions]:
        """Conditions and settings of the runs that count."""
        return [run.traced.conditions for run in self.measured if run.traced is not None]

    @property
    def seconds(self) -> float:
        """How long one run takes, from the start of its process to its end: the mean of those that ended."""
        ended = [run.entry.seconds for run in self.runs if run.entry.seconds > 0]
        return sum(ended) / len(ended) if ended else 0.0


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment, joined with its traces."""

    experiment: Experiment
    variants: list[Variant]
    predictions: Predictions | None = None
    """Of settings that nobody ran. They are no runs."""
    unread_predictions: str = ""
    """Why there are none although a file of them is there; a sentence."""

    @cached_property
    def _by_name(self) -> dict[str, Variant]:
        return {variant.name: variant for variant in self.variants}

    @cached_property
    def baseline(self) -> Variant | None:
        """The variant that changes nothing."""
        return next((it for it in self.variants if not it.entry.based_on and it.entry.kind == "continuous"), None)

    def parent(self, variant: Variant) -> Variant | None:
        """The variant that this one changes."""
        return self._by_name.get(variant.entry.based_on)

    def rival(self, variant: Variant) -> Variant | None:
        """The variant that a verdict on this one compares with: the baseline if it served the same workload.

        Otherwise the nearest variant that this one was made from and that did; for static batching, the first
        continuous one that did. ``None`` when there is none, as for the baseline itself.
        """
        baseline, seen = self.baseline, {variant.name}
        if baseline is None or variant is baseline:
            return None
        if same_workload(baseline, variant):
            return baseline
        if variant.entry.kind == "static":
            return next((it for it in self.variants if same_workload(it, variant) and it.entry.kind != "static"), None)
        found = self.parent(variant)
        while found is not None and found.name not in seen and not same_workload(found, variant):
            seen.add(found.name)
            found = self.parent(found)
        return None if found is None or found.name in seen else found

    @property
    def left(self) -> int:
        """Runs that are still to come."""
        return sum(len(variant.left) for variant in self.variants)


def same_workload(one: Variant, other: Variant) -> bool:
    """Whether both served the same requests."""
    return one.entry.workload == other.entry.workload


def join(
    experiment: Experiment,
    traced: Mapping[str, TracedRun],
    predictions: Predictions | None = None,
    unread_predictions: str = "",
) -> ExperimentRuns:
    """Put an experiment and its traces together; ``traced`` by the id of the run.

    Runs of a variant that the file does not list are left out: the file was not written by cbtrace.
    """
    runs: dict[str, list[ExperimentRun]] = {variant.name: [] for variant in experiment.variants}
    for entry in experiment.runs:
        if entry.variant in runs:
            runs[entry.variant].append(ExperimentRun(entry, traced.get(entry.id)))
    variants = [Variant(entry, runs[entry.name]) for entry in experiment.variants]
    return ExperimentRuns(experiment, variants, predictions, unread_predictions)


def planned_text(value: Any) -> str:
    """A planned value, as traces and plans write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(planned_text(one) for one in value)
    return str(value)
