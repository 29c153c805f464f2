"""What a comparison says, in sentences: the same for the terminal and for markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cbtrace.commands.diff_numbers import Tone, label, share, signed
from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.site.analysis.comparability import Comparability, ComparedFact
    from cbtrace.site.analysis.compared_settings import ComparedSetting
    from cbtrace.site.analysis.comparison import Comparison
    from cbtrace.site.analysis.gate import GateResult
    from cbtrace.site.analysis.outputs import Ended, Outputs
    from cbtrace.site.diff import Diff

_NAMED = 4
"""Most differing conditions that a sentence names."""
_CATEGORIES = {
    "generation": "generation settings",
    "version": "versions",
    "batching": "static and continuous batching",
}
_HALF_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True)
class Said:
    """One sentence, or a few that belong together, and how it is meant."""

    tone: Tone
    text: str


# The verdict ---------------------------------------------------------------------------------------------------------


def headline(comparison: Comparison) -> Said:
    """The verdict on the whole."""
    found = comparison.headline
    better, worse = _named(comparison, found.better), _named(comparison, found.worse)
    drift = " It may be drift: the sides were not recorded in turn." if comparison.comparability.apart else ""
    if found.word == "better":
        return Said("good", f"B is better: {better}. No other headline number is worse beyond noise.{drift}")
    if found.word == "worse":
        return Said("bad", f"B is worse: {worse}. No other headline number is better beyond noise.{drift}")
    if found.word == "better_and_worse":
        return Said("warning", f"B is better and worse. Better: {better}. Worse: {worse}.{drift}")
    if found.word == "within_noise":
        return Said("plain", _within_noise(found.why))
    return Said("warning", f"Cannot tell{_cannot_tell(comparison)}")


def _named(comparison: Comparison, keys: Sequence[str]) -> str:
    by_key = {it.value.key: it for it in comparison.values}
    return ", ".join(
        f"{label(by_key[key].value)} {share(by_key[key].judgement.change)} ({by_key[key].direction})" for key in keys
    )


def _within_noise(why: str) -> str:
    if why == "same_settings":
        return "Same settings: the difference is run-to-run noise."
    return "Within noise: every headline number differs by less than single runs of one setting do."


def _cannot_tell(comparison: Comparison) -> str:
    why, one = comparison.headline.why, comparison.values[0]
    if why == "one_run":
        each = "one run each" if len(one.a) == len(one.b) == 1 else f"{len(one.a)} and {len(one.b)} runs"
        return f" from {each}: it takes two runs a side and six in all. Record repeats."
    if why == "few_runs":
        return f" from {len(one.a)} and {len(one.b)} runs: it takes two runs a side and six in all. Record repeats."
    if why == "unanswered":
        return ": the side whose numbers look better left more of its requests unanswered, and these are in no latency."
    if why == "unlike":
        return ": the sides did not do the same work."
    if why == "mixed":
        return ": the runs of one side are not repeats of one setting."
    if why == "predicted":
        return ": a predicted run never enters a verdict."
    return (
        ": no headline number differs beyond noise, and there is too much noise, or there are too few runs, to call "
        "all of the differences small."
    )


# Comparability -------------------------------------------------------------------------------------------------------


def comparability(found: Comparability) -> Iterator[Said]:
    """What the sides differ by, before any number."""
    yield _kind(found)
    if found.kind in ("unlike", "predicted", "mixed"):
        if found.unlike:
            yield Said("warning", f"Conditions that differ: {_facts(found.unlike)}.")
        variables = [setting for setting in found.settings if setting.variable]
        if variables:
            yield Said("warning", f"Settings that differ: {_settings(variables)}.")
    if found.tags and found.kind != "declared":
        yield Said("plain", f"Tags that differ: {_tags(found)}.")
    if found.unknown:
        yield Said(
            "plain",
            f"{len(found.unknown)} conditions are not known on both sides and may differ: {_few(found.unknown)}.",
        )
    if found.apart:
        yield Said(
            "warning",
            "All runs of one side were recorded before the first of the other: a slow change of the machine would look "
            "like a difference. Record the sides in turn.",
        )
    if not found.whole:
        yield Said("warning", "Not everything that was recorded could be read: cbtrace check says what is missing.")


def _kind(found: Comparability) -> Said:
    by_role = {role: [s for s in found.settings if s.role == role] for role in ("changed", "followed")}
    changed, followed = by_role["changed"], by_role["followed"]
    if found.kind == "same":
        return Said(
            "plain",
            "Same conditions, same settings: these are repeats. If something else has changed, such as the code, say "
            "so with a tag when recording (--tag commit=...).",
        )
    if found.kind == "declared":
        return Said("plain", f"Same conditions and settings; the tags say what differs: {_tags(found)}.")
    if found.kind == "one":
        return Said("plain", f"Same conditions, one setting differs: {_settings([*changed, *followed])}.")
    if found.kind == "resolved":
        return Said(
            "warning",
            f"One setting was changed, {_settings(changed)}, and the engine resolved others differently too: "
            f"{_settings(followed)}. The effect is that of all of them together.",
        )
    if found.kind == "several":
        count = len(changed) + len(followed)
        return Said(
            "warning",
            f"{count} settings differ: {_settings([*changed, *followed])}. An effect cannot be attributed to one.",
        )
    if found.kind == "mixed":
        return Said(
            "warning",
            "Not repeats: the runs of a side differ among themselves. Compare one setting a side (of an experiment: "
            "--experiment).",
        )
    if found.kind == "predicted":
        return Said("warning", "At least one run is predicted, not measured.")
    return Said(
        "warning",
        f"Unlike runs ({', '.join(_CATEGORIES.get(it, it) for it in found.categories)}): the changes below are not the "
        "effect of a setting.",
    )


def _facts(facts: Sequence[ComparedFact]) -> str:
    named = [f"{plain(fact.name)} {_change(fact.a, fact.b)}" for fact in facts[:_NAMED]]
    return "; ".join(named) + _further(len(facts) - _NAMED)


def _few(facts: Sequence[ComparedFact]) -> str:
    return ", ".join(plain(fact.name) for fact in facts[:_NAMED]) + _further(len(facts) - _NAMED)


def _settings(found: Sequence[ComparedSetting]) -> str:
    return "; ".join(f"{plain(it.name)} {_change(*_effective(it))}" for it in found)


def _effective(setting: ComparedSetting) -> tuple[str | None, str | None]:
    """As resolved, or as asked for where the trace does not say what became of it."""
    if setting.resolved_a is None or setting.resolved_b is None:
        return setting.requested_a, setting.requested_b
    return setting.resolved_a, setting.resolved_b


def _tags(found: Comparability) -> str:
    return "; ".join(f"{plain(tag.name)} {_change(tag.a, tag.b)}" for tag in found.tags)


def _change(a: str | None, b: str | None) -> str:
    return f"{plain(a or '(none)')} -> {plain(b or '(none)')}"


def _further(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


# Correctness ---------------------------------------------------------------------------------------------------------


def correctness(diff: Diff) -> Iterator[Said]:
    """What did not complete, and where outputs differ."""
    found = diff.correctness
    for side, ended, runs in (("A", found.ended_a, diff.a), ("B", found.ended_b, diff.b)):
        yield _ended(side, ended)
        if ended.died:
            of = ", ".join(map(_short, ended.died_of[:_NAMED]))
            yield Said("bad", f"{side}: the engine of {ended.died} of {len(runs)} runs ended by an error ({of}).")
    if found.outputs_a is not None and found.outputs_a.state == "compared" and found.outputs_a.differing:
        yield Said(
            "warning",
            f"Outputs of A's own repeats: {found.outputs_a.differing} of {found.outputs_a.pairs} pairs of requests "
            "differ, without any change.",
        )
    dtypes = {run.measured.conditions.conditions.get("model.dtype") for run in (*diff.a, *diff.b)}
    yield from _outputs(found.outputs_b, half=dtypes <= set(_HALF_PRECISION))


def _ended(side: str, ended: Ended) -> Said:
    if ended.complete == ended.requests:
        return Said("plain", f"{side}: all {ended.requests} requests are complete.")
    parts = [
        f"{count} {word}"
        for count, word in (
            (ended.failed, "failed"),
            (ended.cancelled, "cancelled"),
            (ended.running, "unfinished"),
            (ended.empty, "without a token"),
        )
        if count
    ]
    errors = f" ({', '.join(_short(error) for error in ended.errors[:_NAMED])})" if ended.errors else ""
    tone: Tone = "bad" if ended.failed else "warning"
    return Said(
        tone, f"{side}: {ended.complete} of {ended.requests} requests are complete; {', '.join(parts)}{errors}."
    )


def _outputs(found: Outputs, *, half: bool) -> Iterator[Said]:
    if found.state == "sampled":
        yield Said("plain", "Outputs are not compared: sampling was on.")
        return
    if found.state == "unpaired":
        yield Said("warning", "Outputs cannot be compared: no request of A has a complete partner in B.")
        return
    if found.state == "unknown":
        yield Said("plain", "Outputs cannot be compared: the traces hold neither their tokens nor their hashes.")
        return
    known = found.pairs - found.unknown
    aside = f" {found.unknown} more are not known." if found.unknown else ""
    alone = f" {found.unpaired} requests are on one side only." if found.unpaired else ""
    if not found.differing:
        yield Said("plain", f"Outputs: the same tokens in all {known} pairs of requests.{aside}{alone}")
        return
    why = " In half precision, batches of another shape round differently." if half else ""
    yield Said(
        "warning" if half else "bad",
        f"Outputs: other tokens in {found.differing} of {known} pairs of requests, first at {_first(found)}.{why}"
        f"{aside}{alone}",
    )


def _first(found: Outputs) -> str:
    first = found.differences[0]
    where = f"request {_short(first.request)}"
    if first.position < 0:
        return f"{where} (only hashes are known)"
    return f"{where}, token {first.position} ({_token(first.expected)} in A, {_token(first.found)} in B)"


def _short(text: str) -> str:
    from cbtrace.site.plain_text import plain as bounded

    return bounded(text, 60)


def _token(token: int) -> str:
    return "none" if token < 0 else str(token)


# Gates ---------------------------------------------------------------------------------------------------------------


def gate(result: GateResult) -> Said:
    """What became of one condition."""
    text, value = plain(result.condition.text), result.condition.value
    beyond = result.beyond
    if result.state == "holds":
        return Said("bad", f"FAIL  {text}: holds beyond noise.")
    if result.state == "passes":
        return Said("good", f"pass  {text}: does not hold.")
    reasons = {
        "unknown": "the number is not known on both sides",
        "one_run": "one run a side shows no noise",
        "few_runs": "it takes two runs a side and six in all",
        "same_settings": "the runs are repeats of one setting; tag what else has changed (--tag commit=...)",
        "mixed": "the runs of a side are not repeats of one setting",
        "predicted": "a predicted run never enters a verdict",
        "unlike": "the sides differ in hardware or in their work",
    }
    if result.why in reasons or beyond.low is None or beyond.high is None:
        return Said("warning", f"?     {text}: cannot tell, {reasons.get(result.why, 'the noise is not known')}.")
    low, high = signed(value, beyond.low), signed(value, beyond.high, unit=True)
    return Said("warning", f"?     {text}: cannot tell, B is {low} to {high} from the limit.")
