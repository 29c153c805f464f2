"""The numbers of a comparison as texts, for the terminal and for markdown; single ones as the compare page has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cbtrace.site.analysis.comparison import ComparedValue
    from cbtrace.site.analysis.noise import Judgement

Tone = Literal["good", "bad", "warning", "plain"]
"""How something is meant."""
_SAID_BY_LABEL = ("bytes", "%", "tokens", "steps")


def unit_of(compared: ComparedValue) -> str:
    """The unit to show beside a label; empty where the label or the value has it."""
    return "" if compared.value.unit in _SAID_BY_LABEL else compared.value.unit


def interval(compared: ComparedValue) -> str:
    """The interval of a change: as shares of A where they exist, else in the metric's unit; empty when unknown."""
    from cbtrace.site.pages.compare_sentences import percent, signed

    found = compared.judgement
    if found.low is None or found.high is None:
        return ""
    low, high = found.relative(found.low), found.relative(found.high)
    if low is None or high is None:
        return f"{signed(compared.value.unit, found.low)} to {signed(compared.value.unit, found.high)}"
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


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
