"""Limits that a setting must keep, such as ``ttft_ms.p95 <= 800``, and which settings keep them.

Grammar (blanks are allowed between the parts)::

    limit  = metric operator number [ unit ]
    metric = a key of the JSON summary, such as ttft_ms.p95 or soft_resets

with the operators and units of the conditions of ``cbtrace diff`` (:mod:`cbtrace.site.analysis.gate`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cbtrace.commands.whatif_study import COUNTS
from cbtrace.traces.errors import UsageError

if TYPE_CHECKING:
    from cbtrace.commands.whatif_study import Prediction, Study, Values
    from cbtrace.site.analysis.run_values import RunValue

_LIMIT = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Limit:
    """One parsed limit; ``bound`` is in the metric's own unit."""

    text: str
    key: str
    operator: str
    bound: float

    def is_kept(self, values: Values, off: float = 0.0) -> bool:
        """Whether the numbers keep it, also if this one were off by so much. One that is not known keeps no limit."""
        value = values.get(self.key)
        if value is None:
            return False
        if self.operator == "<":
            return value + off < self.bound
        if self.operator == "<=":
            return value + off <= self.bound
        return value - off > self.bound if self.operator == ">" else value - off >= self.bound


def parse_limit(text: str) -> Limit:
    """Parse one limit.

    Raises:
        UsageError: it is not of the grammar, or its metric or unit is not known.
    """
    from cbtrace.site.analysis.gate import UNITS

    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UsageError(f"--solve {text!r} is not METRIC OPERATOR NUMBER, as in 'ttft_ms.p95 <= 800'.")
    key, operator, number, unit = found.groups()
    own = metric(key, "--solve").unit
    scale = 1.0 if unit in ("", own) else UNITS.get(own, {}).get(unit)
    if scale is None:
        raise UsageError(f"--solve {text!r}: {key} does not come in {unit}.")
    return Limit(text.strip(), key, operator, float(number) * scale)


def check_can_be_kept(limits: Sequence[Limit]) -> None:
    """Refuse limits that no number can keep together.

    Raises:
        UsageError: there are two such.
    """
    for low, high in itertools.product(limits, limits):
        if low.key == high.key and low.operator.startswith(">") and high.operator.startswith("<"):
            is_open = "=" not in low.operator or "=" not in high.operator
            if low.bound > high.bound or (low.bound == high.bound and is_open):
                raise UsageError(f"--solve: no setting can keep both {low.text!r} and {high.text!r}.")


def metric(key: str, option: str) -> RunValue:
    """The metric of a key of the JSON summary.

    Raises:
        UsageError: there is none.
    """
    from cbtrace.site.analysis.run_values import RUN_VALUES

    if key not in RUN_VALUES:
        raise UsageError(f"{option}: there is no metric {key}; known are {', '.join(RUN_VALUES)}.")
    return RUN_VALUES[key]


def worth_running(found: Study, limits: Sequence[Limit], maximize: str) -> list[Prediction]:
    """The predictions that keep every limit, the largest of ``maximize`` first. Without limits, those that have more of
    it than the recording's own settings."""
    kept = [
        prediction
        for prediction in found.predictions
        if prediction.values is not None
        and all(limit.is_kept(prediction.values) for limit in limits)
        and (limits or (found.gain(prediction, maximize) or 0) > 0)
    ]
    return sorted(kept, key=lambda prediction: -((prediction.values or {}).get(maximize) or 0.0))


def may_miss(found: Study, prediction: Prediction, limits: Sequence[Limit]) -> list[Limit]:
    """The limits that a prediction keeps, and would not if it were off by the largest error; all of them when the error
    is not known."""
    values, missed = prediction.values or {}, []
    for limit in limits:
        error, value = found.error(limit.key), values.get(limit.key)
        off = None if error is None or value is None else error if limit.key in COUNTS else error * value
        if off is None or not limit.is_kept(values, off):
            missed.append(limit)
    return missed
