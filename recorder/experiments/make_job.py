"""What the process of a run is told to do, from the plan and the variant."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cbtrace.recorder.experiments.job import Job
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.stages import PlannedVariant
from cbtrace.traces.experiment import RunEntry
from cbtrace.traces.schema import Scalar


def make_job(plan: Plan, run: RunEntry, variant: PlannedVariant, resolved: Mapping[str, Scalar]) -> Job:
    """The job of a run, but for where its files are and under which conditions it may run.

    ``resolved`` is what the engine of the baseline resolved its settings to.
    """
    model = plan.model
    changes = {"dtype": variant.dtype or model.dtype, "attention": variant.attention or model.attention}
    return Job(
        trace="",
        name=f"{run.variant} #{run.repeat}",
        tags=_tags(plan, run, variant),
        plan_folder="",
        model=msgspec.structs.replace(model, **changes),
        generation=plan.generation,
        workload=plan.workload_named(variant.workload),
        workload_name=variant.workload,
        seed=plan.seed,
        settings=variant.resolved_settings(resolved),
        kind=variant.kind,
        batch_size=variant.batch_size or 1,
        batch_by=variant.batch_by,
        warmup_requests=plan.warmup_requests,
        token_ids=plan.token_ids,
    )


def _tags(plan: Plan, run: RunEntry, variant: PlannedVariant) -> dict[str, str]:
    changes = ", ".join(f"{name}={value}" for name, value in variant.changes)
    return {
        "experiment": plan.name,
        "stage": str(run.stage),
        "variant": run.variant,
        "repeat": str(run.repeat),
        "workload": variant.workload,
        "batching": variant.kind,
        "based_on": variant.based_on,
        "changes": changes,
        "pinned": ", ".join(variant.pinned),
    }
