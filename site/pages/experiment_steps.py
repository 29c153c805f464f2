"""What to run next, in sentences."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment_step import Change, Step
from cbtrace.site.pages.experiment_effects import slo_label, value_label
from cbtrace.site.words import Words


@dataclass(frozen=True)
class StepRow:
    """One thing to do."""

    rule: str
    text: str
    advice: str
    """What a failure of this kind or in this phase points to; empty where there is nothing to add."""


def step_row(step: Step, words: Words) -> StepRow:
    """A step with its advice."""
    advice = ""
    kind, phase = step.numbers.get("kind"), step.numbers.get("phase")
    if step.rule in ("put_back", "failed_as_is"):
        by_kind = f"experiment.advice.{kind}"
        advice = words(by_kind) if words.has(by_kind) else words(f"experiment.advice.{phase}")
    elif step.rule == "burst":
        advice = words("experiment.advice.burst")
    return StepRow(step.rule, step_text(step, words), advice)


def step_text(step: Step, words: Words) -> str:
    """The sentence of a step, with what it takes."""
    return _text(f"experiment.next.{step.rule}", step, words)


def settle_text(step: Step, words: Words) -> str:
    """The same in short, beside the verdict that it would settle."""
    return _text(f"experiment.settle.{step.rule}", step, words)


def _text(key: str, step: Step, words: Words) -> str:
    values: dict[str, object] = {name: _number(value) for name, value in step.numbers.items()}
    for name in ("kind", "phase"):
        if name in values:
            values[name] = words(f"failure.{name}.{values[name]}")
    if "scatter" in step.numbers:
        values["scatter"] = formats.percent(float(step.numbers["scatter"]))
    if step.changes:
        values["changes"] = "; ".join(_change_back(change, words) for change in step.changes)
    if step.key:
        values["label"] = value_label(step.key, words)
    if step.slo is not None:
        values["slo"] = slo_label(step.slo, words)
    variant = step.variant.name if step.variant is not None else ""
    text = words(key, variant=variant, **values)
    return f"{text} {words('experiment.price', time=duration(step.seconds, words))}" if step.seconds else text


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else formats.number(value)


def _change_back(change: Change, words: Words) -> str:
    values = {"setting": change.setting, "before": change.before or formats.UNKNOWN, "after": change.after}
    return words("experiment.change_back", **values)


def duration(seconds: float, words: Words) -> str:
    """About how long: seconds, minutes or hours."""
    if seconds < 90:
        return words("experiment.about_seconds", count=formats.number(max(1, round(seconds))))
    if seconds < 5400:
        return words("experiment.about_minutes", count=formats.number(round(seconds / 60)))
    return words("experiment.about_hours", count=formats.number(round(seconds / 3600, 1)))
