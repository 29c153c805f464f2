"""What a comparison says, in sentences: the same for the terminal and for markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cbtrace.commands.diff_numbers import Tone
from cbtrace.commands.plain_text import plain

if TYPE_CHECKING:
    from cbtrace.site.analysis.comparability import Comparability
    from cbtrace.site.analysis.compared_settings import ComparedSetting
    from cbtrace.site.analysis.comparison import Comparison
    from cbtrace.site.analysis.gate import GateResult
    from cbtrace.site.analysis.outputs import Ended, Outputs
    from cbtrace.site.diff import Diff

_NAMED = 8
"""Most changes that a line names."""
_HALF_PRECISION = ("bfloat16", "float16")


@dataclass(frozen=True)
class Said:
    """One sentence, or a few that belong together, and how it is meant."""

    tone: Tone
    text: str


# The verdict and what the sides differ by: in the words of the compare page ----------------------------------------


def headline(comparison: Comparison) -> Said:
    """The verdict on the whole."""
    from cbtrace.site.pages.compare_sentences import headline_sentence
    from cbtrace.site.words import load_words

    found = comparison.headline
    tones: dict[str, Tone] = {"better": "good", "worse": "bad", "within_noise": "plain"}
    text = headline_sentence(found, comparison.values, load_words())
    if comparison.comparability.apart and found.why == "numbers" and found.word != "within_noise":
        text += " It may be drift: the sides were not recorded in turn."
    return Said(tones.get(found.word, "warning"), text)


def comparability(found: Comparability) -> Iterator[Said]:
    """What the sides differ by, before any number."""
    from cbtrace.site.pages.compare_sentences import verdict_sentences
    from cbtrace.site.words import load_words

    for severity, text in verdict_sentences(found, load_words()):
        yield Said("warning" if severity == "warning" else "plain", plain(text))
    if found.kind == "same":
        yield Said(
            "plain",
            "If something else has changed, such as the code, say so with a tag when recording (--tag commit=...).",
        )
    if found.kind == "mixed":
        yield Said("plain", "Name one setting a side; of an experiment, its variants (--experiment).")
    yield from _listed("Settings", [_setting(it) for it in found.settings if it.variable])
    yield from _listed("Conditions", [f"{it.name} {_change(it.a, it.b)}" for it in found.unlike])
    yield from _listed("Tags", [f"{it.name} {_change(it.a, it.b)}" for it in found.tags])


def _listed(what: str, changes: list[str]) -> Iterator[Said]:
    if changes:
        further = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
        yield Said("plain", f"{what} that differ: {plain('; '.join(changes[:_NAMED]))}{further}")


def _setting(setting: ComparedSetting) -> str:
    """As resolved, or as asked for where the trace does not say what became of it."""
    known = setting.resolved_a is not None and setting.resolved_b is not None
    a, b = (setting.resolved_a, setting.resolved_b) if known else (setting.requested_a, setting.requested_b)
    return f"{setting.name} {_change(a, b)}"


def _change(a: str | None, b: str | None) -> str:
    return f"{a or '(none)'} -> {b or '(none)'}"


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
    from cbtrace.site.pages.compare_sentences import signed, with_unit

    text, unit = plain(result.condition.text), result.condition.value.unit
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
    low, high = signed(unit, beyond.low), with_unit(unit, signed(unit, beyond.high))
    return Said("warning", f"?     {text}: cannot tell, B is {low} to {high} from the limit.")
