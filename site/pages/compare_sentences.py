"""What a comparison says in words and numbers: the same as the compare page's scripts, from the same texts."""

from __future__ import annotations

from collections.abc import Sequence

from cbtrace.site import formats
from cbtrace.site.analysis.comparability import Comparability
from cbtrace.site.analysis.comparison import ComparedValue, Headline
from cbtrace.site.analysis.noise import Judgement
from cbtrace.site.analysis.run_values import HEADLINE_KEYS, RUN_VALUES
from cbtrace.site.words import Words

GRAVE = ("several", "resolved", "unlike", "mixed", "predicted")
"""Kinds of a comparison that are a warning."""
MINUS = "\N{MINUS SIGN}"
NAMED = 8
"""Most conditions that a sentence names."""
UNKNOWN_NAMED = 6


# Numbers -------------------------------------------------------------------------------------------------------------


def amount(unit: str, value: float | None) -> str:
    """A value as text; the unit stands beside it, but for bytes and shares."""
    if value is None:
        return formats.UNKNOWN
    if unit == "bytes":
        return MINUS + formats.size(-value) if value < 0 else formats.size(value)
    if unit == "%":
        return f"{formats.number(100 * value)} %"
    return formats.number(value).replace("-", MINUS, 1) if value < 0 else formats.number(value)


def signed(unit: str, value: float | None) -> str:
    """A difference with its sign; zero has none."""
    if value is None:
        return formats.UNKNOWN
    return ("" if value == 0 else "+" if value > 0 else MINUS) + amount(unit, abs(value))


def with_unit(unit: str, shown: str) -> str:
    """The number with its unit, where it has not got it yet."""
    return f"{shown} {unit}" if unit not in ("", "bytes", "%") else shown


def percent(share: float | None) -> str:
    """A change as a share of A, with its sign."""
    if share is None:
        return formats.UNKNOWN
    size = abs(100 * share)
    if share == 0:
        return "0 %"
    return f"{'+' if share > 0 else MINUS}{'<0.1' if size < 0.05 else f'{size:.1f}'} %"


def value_label(key: str, words: Words) -> str:
    """``TTFT p95``."""
    value = RUN_VALUES[key]
    return f"{words(value.label_key)} {value.statistic}".strip()


# Sentences -----------------------------------------------------------------------------------------------------------


def kind_sentence(found: Comparability, words: Words) -> str:
    """Whether the sides can be compared."""
    changed = [setting.name for setting in found.settings if setting.role == "changed"]
    values = {
        "name": found.variables[0] if found.variables else "",
        "names": ", ".join(found.variables),
        "changed": changed[0] if changed else "",
        "followed": ", ".join(name for name in found.variables if name not in changed),
        "unlike": ", ".join(fact.name for fact in found.unlike[:NAMED]),
        "mixed": ", ".join([*(fact.name for fact in found.unlike[:NAMED]), *found.variables]),
        "categories": ", ".join(words(f"compare.js.category_{name}") for name in found.categories),
        "tags": ", ".join(tag.name for tag in found.tags),
    }
    return words(f"compare.js.kind_{found.kind}", **values)


def verdict_sentences(found: Comparability, words: Words) -> list[tuple[str, str]]:
    """All that is said before any number, each with its severity."""
    said = [("warning" if found.kind in GRAVE else "info", kind_sentence(found, words))]
    if found.kind == "unlike" and found.variables:
        said.append(("warning", words("compare.js.settings_too", names=", ".join(found.variables))))
    if found.unknown:
        names = ", ".join(fact.name for fact in found.unknown[:UNKNOWN_NAMED])
        said.append(("info", words("compare.js.unknown_conditions", count=len(found.unknown), names=names)))
    if found.apart:
        said.append(("warning", words("compare.js.apart")))
    if not found.whole:
        said.append(("warning", words("compare.js.not_whole_sides")))
    return said


def headline_sentence(headline: Headline, values: Sequence[ComparedValue], words: Words) -> str:
    """One sentence on the whole."""

    def labels(keys: Sequence[str]) -> str:
        return ", ".join(
            f"{value_label(value.value.key, words)} {percent(value.judgement.change)} "
            f"({words(f'compare.js.{value.direction}')})"
            for value in values
            if value.value.key in keys
        )

    by_reason = headline.word == "cannot_tell" or headline.why == "same_settings"
    key = f"compare.js.headline_{headline.why if by_reason else headline.word}"
    said = [words(key, better=labels(headline.better), worse=labels(headline.worse))]
    if headline.changed:
        said.append(words("compare.js.headline_changed", changed=labels(headline.changed)))
    if alone := _beyond_alone(headline, values):
        said.append(words("compare.js.headline_alone", alone=labels(alone)))
    return " ".join(said)


def _beyond_alone(headline: Headline, values: Sequence[ComparedValue]) -> list[str]:
    """Headline numbers that are beyond noise when each is judged alone, and not when all are judged together."""
    named = {*headline.better, *headline.worse, *headline.changed}
    return [
        value.value.key
        for value in values
        if value.value.key in HEADLINE_KEYS and value.judgement.why == "beyond_noise" and value.value.key not in named
    ]


def judged_text(judgement: Judgement, runs_a: int, runs_b: int, words: Words) -> str:
    """What is to be thought of a change, and why."""
    if judgement.why == "one_run" and runs_a == runs_b == 1:
        return words("compare.js.why_one_each")
    exact = f"compare.js.why_{judgement.why}_{judgement.word}"
    return words(exact if words.has(exact) else f"compare.js.why_{judgement.why}")
