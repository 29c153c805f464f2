"""Conditions for a gate in CI, such as ``ttft_ms.p95 > +5%``: parsed, and held against two sides.

Grammar (blanks are allowed between the parts)::

    condition = metric operator change
    metric    = a key of the JSON summary that is compared, such as ttft_ms.p95 or soft_resets
    operator  = ">" | ">=" | "<" | "<="
    change    = sign number [ unit ]
    sign      = "+" | "-"
    number    = digits [ "." digits ]
    unit      = "%" | "us" | "ms" | "s" | "B" | "kB" | "MB" | "GB" | "KiB" | "MiB" | "GiB"

The change is B less A: with ``%`` as a share of A, else in the metric's own unit or the one given. The sign is needed,
so that nobody takes ``> 5`` for a limit on B itself.

A condition *holds* when the whole interval of B's distance to the limit is beyond it, and *passes* when the whole
interval is on the other side. Otherwise one cannot tell.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cbtrace.site.analysis.comparability import Comparability
from cbtrace.site.analysis.comparison import MeasuredRun, values_of
from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEVEL, Judgement, judge
from cbtrace.site.analysis.run_values import RUN_VALUES, RunValue
from cbtrace.site.plain_text import plain
from cbtrace.traces.errors import UsageError, declare
from cbtrace.traces.schema import Severity

Operator = Literal[">", ">=", "<", "<="]
GateState = Literal["holds", "passes", "cannot_tell"]
GateWhy = Literal["interval", "unknown", "one_run", "few_runs", "same_settings", "mixed", "predicted", "unlike"]

UNITS: dict[str, dict[str, float]] = {
    "ms": {"us": 1e-3, "ms": 1.0, "s": 1e3},
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
    "bytes": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}
"""By the unit of a metric, the units that a change of it may have, and how much of the metric's unit each is."""
FEW_CONDITIONS = 2
"""As many conditions have 2.5 % each to fail by noise; more share one at 0.5 % each."""


@dataclass(frozen=True)
class Condition:
    """One parsed condition."""

    text: str
    value: RunValue
    operator: Operator
    amount: float
    """Change in the unit of the metric, or share of A."""
    relative: bool

    def limits(self, a: Sequence[float | None]) -> list[float | None]:
        """The values of A moved to where the limit is."""
        return [None if v is None else v * (1 + self.amount) if self.relative else v + self.amount for v in a]


@dataclass(frozen=True)
class GateResult:
    """What became of one condition."""

    condition: Condition
    state: GateState
    why: GateWhy
    beyond: Judgement
    """B against the limit: its ``difference`` is how far B is above it."""


def parse_condition(text: str) -> Condition:
    """Parse one condition.

    Raises:
        UsageError: it is not of the grammar; the message points at the character.
    """
    scanner = _Scanner(text)
    key = scanner.take(r"[A-Za-z_][\w.]*", "the name of a metric is expected, such as ttft_ms.p95")
    if key not in RUN_VALUES:
        raise scanner.error(_unknown_metric(key), back=len(key))
    operator = scanner.take(r">=|<=|>|<", "one of > >= < <= is expected")
    sign = scanner.take(r"[+-]", "a change with its sign is expected, such as +5% or -0.5: B less A")
    number = scanner.take(r"\d+(\.\d+)?", "a number is expected, such as 5 or 0.5")
    unit = scanner.take(r"%|[A-Za-z/]*", "")
    scanner.end()
    value = RUN_VALUES[key]
    scale = 0.01 if unit == "%" else 1.0 if unit in ("", value.unit) else UNITS.get(value.unit, {}).get(unit)
    if scale is None:
        known = ", ".join(["%", *UNITS.get(value.unit, [value.unit] if value.unit else [])])
        raise scanner.error(f"{key} does not come in {unit}: {known} can be given", back=len(unit))
    amount = float(f"{sign}{number}") * scale
    return Condition(text.strip(), value, operator, amount, unit == "%")  # type: ignore[arg-type]


class _Scanner:
    """Takes a text apart from left to right, and says where it is when something else is there than expected."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def take(self, pattern: str, expected: str) -> str:
        self._skip_blanks()
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            raise self.error(expected)
        self.at = found.end()
        return found.group()

    def end(self) -> None:
        self._skip_blanks()
        if self.at < len(self.text):
            raise self.error("nothing more is expected: write one condition in each --fail-if")

    def error(self, what: str, back: int = 0) -> UsageError:
        place = self.at - back
        there = f"at {_visible(self.text[place:])}" if place < len(self.text) else "at its end"
        return UsageError(
            f"--fail-if {_visible(self.text)}: character {place + 1}, {there}: {what}.", slug="bad-condition"
        )

    def _skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1


def _visible(text: str) -> str:
    return repr(plain(text, 60))


def _unknown_metric(key: str) -> str:
    statistics = [name for name in RUN_VALUES if name.startswith(f"{key}.")]
    near = statistics or difflib.get_close_matches(key, RUN_VALUES, n=3)
    hint = f"did you mean {', '.join(near)}" if near else f"known are {', '.join(RUN_VALUES)}"
    return f"there is no metric {key}: {hint}"


def hold_against(
    conditions: Sequence[Condition],
    a: Sequence[MeasuredRun],
    b: Sequence[MeasuredRun],
    comparability: Comparability,
) -> list[GateResult]:
    """Hold every condition against the runs of A and B."""
    level = LEVEL if len(conditions) <= FEW_CONDITIONS else HEADLINE_LEVEL
    return [_hold(condition, a, b, comparability, level) for condition in conditions]


def _hold(
    condition: Condition, a: Sequence[MeasuredRun], b: Sequence[MeasuredRun], comparability: Comparability, level: float
) -> GateResult:
    left, right = values_of(condition.value.key, a, b)
    beyond = judge(condition.limits(left), right, "neither", level)
    state, why = _state(condition.operator, beyond)
    if comparability.kind == "same" and state == "holds":
        # Repeats of one setting differ by noise. Something else may have changed, but then the traces must say so.
        return GateResult(condition, "cannot_tell", "same_settings", beyond)
    if comparability.kind in ("mixed", "predicted"):
        return GateResult(condition, "cannot_tell", comparability.kind, beyond)
    if comparability.kind != "same" and not comparability.attributable:
        return GateResult(condition, "cannot_tell", "unlike", beyond)
    return GateResult(condition, state, why, beyond)


_HOLDS: dict[Operator, Callable[[float, float], bool]] = {
    ">": lambda low, high: low > 0,
    ">=": lambda low, high: low >= 0,
    "<": lambda low, high: high < 0,
    "<=": lambda low, high: high <= 0,
}
_OPPOSITE: dict[Operator, Operator] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


def _state(operator: Operator, beyond: Judgement) -> tuple[GateState, GateWhy]:
    if beyond.why in ("unknown", "one_run", "few_runs") or beyond.low is None or beyond.high is None:
        return "cannot_tell", beyond.why  # type: ignore[return-value]
    if _HOLDS[operator](beyond.low, beyond.high):
        return "holds", "interval"
    return ("passes" if _HOLDS[_OPPOSITE[operator]](beyond.low, beyond.high) else "cannot_tell"), "interval"


def exit_code(results: Sequence[GateResult]) -> int:
    """0: every condition passes; 1: one holds beyond noise; 3: none does, but of one it cannot be told."""
    states = {result.state for result in results}
    return 1 if "holds" in states else 3 if "cannot_tell" in states else 0


declare(
    "bad-condition",
    Severity.BROKEN,
    "A condition of `--fail-if` is not of its grammar: a metric, a comparison, and a change with its sign.",
    "Write it as in `--fail-if 'ttft_ms.p95 > +5%'`; the message points at the character.",
)
