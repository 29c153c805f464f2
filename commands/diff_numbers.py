"""The numbers of a comparison as texts: the same for the terminal and for markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cbtrace.site.analysis.comparison import ComparedValue
    from cbtrace.site.analysis.noise import Judgement
    from cbtrace.site.analysis.run_values import RunValue

Tone = Literal["good", "bad", "warning", "plain"]
"""How something is meant."""
_SAID_BY_LABEL = ("tokens", "steps")


def label(value: RunValue) -> str:
    """``TTFT p95``."""
    from cbtrace.site.words import load_words

    return f"{load_words()(value.label_key)} {value.statistic}".strip()


def amount(value: RunValue, number: float | None, *, unit: bool = False) -> str:
    """A value as text; with its unit where asked for or where the unit is chosen by size."""
    from cbtrace.site import formats

    if value.unit == "bytes":
        return formats.size(number)
    if value.unit == "%":
        return formats.percent(number)
    return f"{formats.number(number)} {unit_of(value)}".strip() if unit else formats.number(number)


def unit_of(value: RunValue) -> str:
    """The unit to show beside a label; empty where the label or the value has it."""
    return "" if value.unit in ("bytes", "%", *_SAID_BY_LABEL) else value.unit


def signed(value: RunValue, number: float | None, *, unit: bool = False) -> str:
    """A difference with its sign; empty when it is unknown."""
    if number is None:
        return ""
    return ("-" if number < 0 else "+" if number > 0 else "") + amount(value, abs(number), unit=unit)


def share(number: float | None) -> str:
    """A change as a share of A, with its sign: ``+10.0 %``; empty when it is unknown."""
    return "" if number is None else f"{100 * number:+.1f} %"


def interval(compared: ComparedValue) -> str:
    """The interval of a change: as shares of A where they exist, else in the metric's unit; empty when unknown."""
    found = compared.judgement
    if found.low is None or found.high is None:
        return ""
    low, high = found.relative(found.low), found.relative(found.high)
    if low is None or high is None:
        return f"{signed(compared.value, found.low)} to {signed(compared.value, found.high)}"
    return f"{100 * low:+.1f} to {100 * high:+.1f} %"


def verdict_word(found: Judgement) -> str:
    """The verdict on one number, as a reader sees it."""
    return {
        "better": "better",
        "worse": "worse",
        "changed": "beyond noise",
        "within_noise": "equal" if found.why == "equal" else "within noise",
        "cannot_tell": "cannot tell",
    }[found.word]


def verdict_tone(found: Judgement) -> Tone:
    """How a verdict is meant."""
    tones: dict[str, Tone] = {"better": "good", "worse": "bad", "changed": "warning"}
    return tones.get(found.word, "plain")
