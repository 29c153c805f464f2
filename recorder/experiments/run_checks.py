"""Checks the answers of an experiment's runs: all complete, and the same as those of static batching."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cbtrace.recorder.experiments.correctness import Answers, answers_of, check_run, compare_with
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.stages import PlannedVariant
from cbtrace.traces.experiment import Experiment, RunEntry
from cbtrace.traces.reader import Trace, open_trace


class RunChecks:
    """Fills in ``correctness`` of the runs of one experiment, as their traces come in."""

    def __init__(
        self, experiment: Experiment, folder: Path, plan: Plan, variants: Mapping[str, PlannedVariant]
    ) -> None:
        self._experiment = experiment
        self._folder = folder
        self._plan = plan
        self._variants = variants
        self._answers: dict[str, Answers] = {}

    def check(self, run: RunEntry, trace: Trace) -> None:
        """Check the answers of a run, and again those of runs that had no reference before."""
        self._answers[run.id] = answers_of(trace)
        facts = self._experiment.workloads.get(self._variants[run.variant].workload, {})
        run.correctness = check_run(int(facts.get("workload.requests") or 0), self._answers[run.id], run.failure)
        for other in self._experiment.runs:
            if other.correctness is not None and not other.correctness.reference:
                self._compare(other)

    def _compare(self, run: RunEntry) -> None:
        correctness = run.correctness
        reference = self._reference(run)
        if correctness is None:
            return
        if self._plan.generation.do_sample:
            correctness.remark = "Tokens were not compared: they are sampled."
        elif self._variants[run.variant].kind == "static" and reference is None:
            correctness.remark = "Other runs of this workload are compared with this one."
        elif reference is None:
            correctness.remark = "Tokens were not compared: no run of static batching of this workload is done."
        else:
            compare_with(correctness, self._answers_of(run), reference.id, self._answers_of(reference))
            correctness.remark = self._excuse(run, reference) if correctness.equal < correctness.compared else ""

    def _reference(self, run: RunEntry) -> RunEntry | None:
        """The first finished run of static batching of the same workload, if possible of the same numbers; ``None``
        for that run itself."""
        variant = self._variants[run.variant]
        found = [
            other
            for other in self._experiment.runs
            if other.status == "done"
            and (static := self._variants[other.variant]).kind == "static"
            and static.workload == variant.workload
        ]
        alike = [other for other in found if self._variants[other.variant].dtype == variant.dtype]
        chosen = next(iter(alike or found), None)
        return None if chosen is run else chosen

    def _answers_of(self, run: RunEntry) -> Answers:
        if run.id not in self._answers:
            self._answers[run.id] = answers_of(open_trace(self._folder / run.trace))
        return self._answers[run.id]

    def _excuse(self, run: RunEntry, reference: RunEntry) -> str:
        """What may explain that answers differ, or why it is not known where; empty for neither."""
        variant, other = self._variants[run.variant], self._variants[reference.variant]
        dtype, other_dtype = variant.dtype or self._plan.model.dtype, other.dtype or self._plan.model.dtype
        remarks = []
        if dtype != other_dtype:
            remarks.append(f"The reference computes in {other_dtype}, this run in {dtype}.")
        elif dtype != "float32":
            remarks.append(
                f"In {dtype}, batches of other shapes round differently, and a near tie may fall the other way."
            )
        if not self._plan.token_ids:
            remarks.append("Where answers differ is not known: the plan stores no token ids.")
        return " ".join(remarks)
