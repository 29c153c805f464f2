"""One thing to do next in an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

from cbtrace.site.analysis.experiment import Variant
from cbtrace.site.analysis.experiment_slos import Slo


@dataclass(frozen=True)
class Change:
    """A setting that a variant changed in the one that it was made from."""

    setting: str
    before: str
    """Empty when it is not known."""
    after: str


Numbers = dict[str, int | float | str]
"""What a sentence is filled with: numbers, and names."""


@dataclass(frozen=True)
class Step:
    """One thing to do. What it takes is an estimate, by the time that runs took so far."""

    rule: str
    variant: Variant | None = None
    numbers: Numbers = field(default_factory=dict)
    seconds: float | None = None
    """Of running; ``None`` where nothing is to be run, or nothing is known."""
    changes: tuple[Change, ...] = ()
    key: str = ""
    """The run-level value that it is about."""
    slo: Slo | None = None
