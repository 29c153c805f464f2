"""How failures of runs are told apart: by kind, and by the phase they happened in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cbtrace.site.analysis.experiment import ExperimentRun

PHASES = {
    "start": "before",
    "import": "before",
    "workload": "before",
    "recording": "before",
    "model load": "model_load",
    "engine creation": "cache_creation",
    "cache creation": "cache_creation",
    "input creation": "cache_creation",
    "warm-up requests": "warm_up",
    "warm-up": "warm_up",
    "prefill": "prefill",
    "decode growth": "decode_growth",
}
"""Phases as runs name them, and as they are told apart. What is not named was somewhere in the generation."""
BEFORE = "before"
"""No setting of the engine has been at work: the failure says nothing of the variant."""


def phase_of(run: ExperimentRun) -> str:
    """The phase of a failure: a value of :data:`PHASES`, or ``generation``."""
    return PHASES.get(run.entry.phase, "generation")


def kind_of(run: ExperimentRun) -> str:
    """The kind of a failure."""
    return run.entry.failure or "error"


def usual_failure(runs: Sequence[ExperimentRun]) -> tuple[str, str]:
    """The kind and phase that most of some failed runs came to; of equals the first."""
    return Counter((kind_of(run), phase_of(run)) for run in runs).most_common(1)[0][0]
