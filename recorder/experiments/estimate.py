"""How long an experiment may take, before it is run."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.traces.experiment import Experiment

STARTUP_S = 8.0
"""Starting Python, importing PyTorch and Transformers and making a small engine takes about so long."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they rest on."""

    seconds: float
    basis: str


def estimate(experiment: Experiment, spans_s: dict[str, float], run_limit_s: float) -> Estimate:
    """Estimate how long the runs that are left take. ``spans_s``: from first to last arrival, by workload.

    From runs of the same experiment where there are any; else it is a lower bound, since nothing is known of the model
    yet: starting a process, and waiting for the last request to arrive.
    """
    left = [run for run in experiment.runs if run.status in ("planned", "running")]
    ended = [run.seconds for run in experiment.runs if run.status in ("done", "failed")]
    if ended:
        mean = sum(ended) / len(ended)
        return Estimate(mean * len(left), f"as the {len(ended)} runs so far, {mean:.1f} s each")
    workload_of = {variant.name: variant.workload for variant in experiment.variants}
    seconds = sum(STARTUP_S + spans_s.get(workload_of[run.variant], 0.0) for run in left)
    most = run_limit_s * len(left)
    return Estimate(
        seconds,
        f"at least: {STARTUP_S:g} s to start each process and the time its requests take to arrive; "
        f"generating comes on top, {most / 60:.0f} min at most by the plan's time limit",
    )
