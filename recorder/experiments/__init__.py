"""Experiments: the same workload under one changed setting at a time, each run in a process of its own.

For a loop of one's own: build a workload, run it on a manager, get the trace.

>>> spec = SyntheticSpec(requests=8, prompt_tokens=Uniform(low=16, high=64), new_tokens=Fixed(tokens=32))
>>> workload = build_workload(spec, seed=1, vocabulary=model.config.vocab_size)
>>> outcome = run_workload(manager, workload, "run.cbt", name="64 blocks")
"""

from cbtrace.recorder.experiments.arrivals import AtOnce, Bursts, Constant, Gamma, Poisson
from cbtrace.recorder.experiments.continuous import Outcome, run_workload
from cbtrace.recorder.experiments.lengths import Empirical, Fixed, LogNormal, Percentiles, Uniform
from cbtrace.recorder.experiments.prefixes import SharedPrefix
from cbtrace.recorder.experiments.static import run_static
from cbtrace.recorder.experiments.workload import (
    PlannedRequest,
    PromptsSpec,
    ReplaySpec,
    SyntheticSpec,
    Workload,
    build_workload,
)

__all__ = [
    "AtOnce",
    "Bursts",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "LogNormal",
    "Outcome",
    "Percentiles",
    "PlannedRequest",
    "Poisson",
    "PromptsSpec",
    "ReplaySpec",
    "SharedPrefix",
    "SyntheticSpec",
    "Uniform",
    "Workload",
    "build_workload",
    "run_static",
    "run_workload",
]
