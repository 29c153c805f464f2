"""How long an experiment may take, before it is run and while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.traces.experiment import Experiment, RunEntry

LEFT = ("planned", "running")
"""Runs that are still to be done; ``running`` in a file whose runner is gone is to be repeated."""
STARTUP_S = 5.0
"""Starting Python, importing PyTorch and Transformers and making a small engine takes about so long."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, and what they rest on."""

    seconds: float
    basis: str


def runs_left(experiment: Experiment) -> list[RunEntry]:
    """The runs that are still to be done."""
    return [run for run in experiment.runs if run.status in LEFT]


def expected_s(experiment: Experiment, run: RunEntry) -> float | None:
    """The mean of the runs of the same variant so far; where there are none, of all runs; ``None`` before the first."""
    ended = [other for other in experiment.runs if other.status in ("done", "failed")]
    alike = [other.seconds for other in ended if other.variant == run.variant]
    seconds = alike or [other.seconds for other in ended]
    return sum(seconds) / len(seconds) if seconds else None


def longest_s(experiment: Experiment, run: RunEntry) -> float:
    """What a run takes at most, going by the runs of the same variant so far, or else by all; 0 before the first."""
    ended = [other for other in experiment.runs if other.status in ("done", "failed")]
    alike = [other.seconds for other in ended if other.variant == run.variant]
    return max(alike or [other.seconds for other in ended], default=0.0)


def remaining_s(experiment: Experiment) -> float | None:
    """How long the runs that are left take, as the runs so far let expect; ``None`` before the first."""
    expected = [expected_s(experiment, run) for run in runs_left(experiment)]
    known = [seconds for seconds in expected if seconds is not None]
    return sum(known) if len(known) == len(expected) else None


def estimate(experiment: Experiment, spans_s: dict[str, float], run_limit_s: float) -> Estimate:
    """Estimate how long the runs that are left take. ``spans_s``: from first to last arrival, by workload.

    From runs of the same experiment where there are any; else it is a lower bound, since nothing is known of the model
    yet: starting a process, and waiting for the last request to arrive.
    """
    left = runs_left(experiment)
    ended = sum(run.status in ("done", "failed") for run in experiment.runs)
    remaining = remaining_s(experiment)
    if ended and remaining is not None:
        return Estimate(remaining, f"as the {ended} runs so far, each variant as its own where it has any")
    workload_of = {variant.name: variant.workload for variant in experiment.variants}
    seconds = sum(STARTUP_S + spans_s.get(workload_of[run.variant], 0.0) for run in left)
    most = run_limit_s * len(left)
    return Estimate(
        seconds,
        f"at least: {STARTUP_S:g} s to start each process and the time its requests take to arrive; "
        f"generating comes on top, {most / 60:.0f} min at most by the plan's time limit",
    )
