"""Every text that code and templates ask for is there, and no text is there for nothing."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cbtrace.site.analysis.catalogue import GROUPS, METRICS
from cbtrace.site.words import LANGUAGES, load_words
from cbtrace.traces.schema import AdmissionStop, EventKind, Severity

SITE = Path(str(files("cbtrace.site")))
TEMPLATES = Path(str(files("cbtrace.templates")))


def asked_literally() -> set[str]:
    """Keys that are written out in full where they are used."""
    python = [path.read_text() for path in SITE.rglob("*.py")]
    templates = [path.read_text() for path in TEMPLATES.rglob("*.html")]
    return {key for text in python for key in re.findall(r"words\(\s*[\"']([\w.]+)[\"']", text)} | {
        key for text in templates for key in re.findall(r"\bt\('([\w.]+)'[,)]", text)
    }


def prefixes() -> set[str]:
    """Beginnings of keys that are put together at run time."""
    texts = [path.read_text() for path in [*SITE.rglob("*.py"), *TEMPLATES.rglob("*.html")]]
    patterns = (r"f\"([\w.]+\.)\{", r"\bt\('([\w.]+[._])' ~", r"starting\(f?\"([\w.]+\.)", r"f\"([\w.]+_)\{")
    found = {match for text in texts for pattern in patterns for match in re.findall(pattern, text)}
    return found | {"timeline.reduction", "events.text_", "recording."}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_missing(language: str) -> None:
    words = load_words(language)
    missing = sorted(key for key in asked_literally() if not words.has(key))
    assert missing == []
    for kind in EventKind:
        assert words(f"event.{kind.name}")
    for stop in AdmissionStop:
        assert words(f"stop.{stop.name}")
    for severity in Severity:
        assert words(f"severity.{severity.name}")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_metric_is_defined(language: str) -> None:
    words = load_words(language)
    for group in GROUPS:
        assert words(f"group.{group.id}")
    for metric in METRICS:
        for part in ("label", "formula", "scope"):
            assert words(f"metric.{metric}.{part}")


def test_no_text_is_left_over() -> None:
    used, started = asked_literally(), tuple(prefixes())
    assert [key for key in load_words().texts if key not in used and not key.startswith(started)] == []


def test_texts_of_scripts_are_all_asked_for() -> None:
    scripts = "\n".join(path.read_text() for path in (TEMPLATES / "assets").glob("*.js"))
    put_together = tuple(re.findall(r"`(\w+_)\$\{", scripts))
    for key in load_words().starting("compare.js."):
        name = key.removeprefix("compare.js.")
        directions = {"equal", "faster", "slower", "fewer", "more", "less"}
        asked = f"words.{name}" in scripts or f'"{name}"' in scripts or name in directions
        assert asked or name.startswith(put_together), key


def test_all_languages_have_the_same_keys_and_places() -> None:
    first, *others = (load_words(language).texts for language in LANGUAGES)
    for texts in others:
        assert texts.keys() == first.keys()
        for key, text in first.items():
            assert sorted(re.findall(r"\{(\w+)\}", text)) == sorted(re.findall(r"\{(\w+)\}", texts[key])), key


def test_japanese_texts_are_japanese_but_for_terms_of_the_field() -> None:
    english, japanese = load_words("en").texts, load_words("ja").texts
    same = {japanese[key].strip() for key, text in english.items() if text == japanese[key]}
    terms = {
        "∞", "TTFT", "TPOT", "E2E", "ms", "soft reset", "offload", "fork", "prefill", "decode", "prefix hit",
        "KV cache", "safety margin", "Transformers", "logits", "OOM", "E2E, ms", "TTFT, ms",
        "goodput", "{limit} ms: {share}",
    }  # fmt: skip
    assert same - terms == set()


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        load_words()("no.such.key")
