"""A change between two variants in words: its size, its direction, its interval and its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.experiment_effects import Effect
from cbtrace.site.analysis.experiment_slos import FAILURES, Slo
from cbtrace.site.analysis.noise import LEAST_RUNS
from cbtrace.site.analysis.run_values import RUN_VALUES, RunValue
from cbtrace.site.pages.headline import metric_text, shown_unit
from cbtrace.site.words import Words


@dataclass(frozen=True)
class EffectCell:
    """One number of a variant, beside how it differs from its rival's."""

    value: str
    change: str
    """Its size and direction; empty where there is nothing to compare with."""
    interval: str
    word: str
    """The verdict."""
    judgement: str
    """The key of the verdict, for the style."""


def value_label(key: str, words: Words) -> str:
    """What a run-level value is called: *TTFT p95*."""
    value = RUN_VALUES[key]
    label = words(value.label_key)
    return f"{label} {value.statistic}" if value.statistic else label


def value_unit(key: str) -> str:
    """Its unit, to stand beside its name; empty where the number carries it."""
    return shown_unit(RUN_VALUES[key].metric)


def value_text(key: str, amount: float | None) -> str:
    """A run-level value, without its unit."""
    return metric_text(amount, RUN_VALUES[key].metric)


def with_unit(key: str, amount: float | None) -> str:
    """A run-level value with its unit."""
    unit = value_unit(key)
    return f"{value_text(key, amount)}\N{NO-BREAK SPACE}{unit}" if unit else value_text(key, amount)


def effect_cell(effect: Effect, words: Words, *, alone: bool = False) -> EffectCell:
    """The cell of a table; ``alone`` leaves the change out, for the rival itself."""
    found = effect.judgement
    known = found.difference is not None and not alone
    return EffectCell(
        value=value_text(effect.key, found.mean_b),
        change=f"{signed_share(effect)} {direction(effect, words)}" if known else "",
        interval=interval_text(effect, words) if known else "",
        word=words(f"experiment.word.{found.word}") if known else "",
        judgement=found.word if known else "unknown",
    )


def change_text(effect: Effect, words: Words) -> str:
    """A change as part of a sentence: *+12 % faster*, with its interval."""
    interval = interval_text(effect, words)
    text = f"{signed_share(effect)} {direction(effect, words)}"
    return f"{text} ({interval})" if interval else text


def direction(effect: Effect, words: Words) -> str:
    """``faster``, ``slower``, ``less``, ... in the reader's language."""
    return words(f"compare.js.{effect.value.direction(effect.judgement.difference or 0.0)}")


def signed_share(effect: Effect) -> str:
    """The change as a share of the rival's mean; in the metric's unit where that is zero."""
    found = effect.judgement
    return _signed(found.change) if found.change is not None else _signed_amount(effect.value, found.difference)


def interval_text(effect: Effect, words: Words) -> str:
    """The interval of the change; empty where there is none, or where too few runs make it wider than any change."""
    found = effect.judgement
    if found.low is None or found.high is None or found.runs_a + found.runs_b < LEAST_RUNS:
        return ""
    low, high = found.relative(found.low), found.relative(found.high)
    if low is None or high is None:
        ends = [_signed_amount(effect.value, end) for end in (found.low, found.high)]
    else:
        ends = [_signed(end) for end in (low, high)]
    return words("experiment.interval", low=ends[0], high=ends[1])


def _signed(share: float) -> str:
    return f"{_sign(share)}{formats.percent(abs(share))}"


def _signed_amount(value: RunValue, amount: float | None) -> str:
    if amount is None:
        return formats.UNKNOWN
    return f"{_sign(amount)}{with_unit(value.key, abs(amount))}"


def _sign(amount: float) -> str:
    return "+" if amount > 0 else "\N{MINUS SIGN}" if amount < 0 else "\N{PLUS-MINUS SIGN}"


def slo_label(slo: Slo, words: Words) -> str:
    """What an SLO limits."""
    return words("experiment.slo.failures") if slo.metric == FAILURES else value_label(slo.metric, words)


def slo_amount(slo: Slo, amount: float | None) -> str:
    """A value or a limit of an SLO, with its unit."""
    return formats.number(amount) if slo.metric == FAILURES else with_unit(slo.metric, amount)
