"""Why steps admitted no further waiting request, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site.analysis.window import step_durations
from cbtrace.traces.columns import Ints, Steps
from cbtrace.traces.schema import AdmissionStop


@dataclass(frozen=True)
class AdmissionLimit:
    """One reason for which admission stopped, over the steps that had it."""

    reason: AdmissionStop
    steps: int
    duration_ns: int
    """Sum of the durations of these steps."""


def admission_limits(steps: Steps) -> list[AdmissionLimit]:
    """The reasons that occur, longest first. Step time is as in the metric of that name."""
    durations = step_durations(steps)
    limits = [_limit(int(reason), durations[steps.stop == reason]) for reason in np.unique(steps.stop)]
    return sorted(limits, key=lambda limit: (-limit.duration_ns, limit.reason))


def _limit(reason: int, durations: Ints) -> AdmissionLimit:
    known = AdmissionStop(reason) if reason in AdmissionStop.__members__.values() else AdmissionStop.UNKNOWN
    return AdmissionLimit(known, len(durations), int(durations.sum()))
