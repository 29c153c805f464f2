"""The single door to jinja2: everything escaped, the same bytes for the same data."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from cbtrace.site import formats
from cbtrace.site.render import canonical_json, data_script, environment, seen

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def all_seen(data: object) -> object:
    if isinstance(data, dict):
        return {key: all_seen(value) for key, value in data.items()}
    return [all_seen(value) for value in data] if isinstance(data, list) else seen(data)


@settings(deadline=None)
@given(JSON, st.text())
def test_a_data_script_holds_the_data_and_can_never_end_a_script(data: object, key: str) -> None:
    script = data_script(key, {"data": data, "bait": "</script><!--<script>"})
    assert "<" not in script
    assert script.isascii()
    arguments = json.loads(f"[{script.removeprefix('cbtrace.load(').removesuffix(');' + chr(10))}]")
    assert arguments == [key, {"data": all_seen(data), "bait": "</script><!--<script>"}]


@settings(deadline=None)
@given(st.text())
def test_what_can_be_seen_stays_and_what_cannot_is_replaced(text: str) -> None:
    shown = seen(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        hidden = unicodedata.category(before) == "Cc" and before not in "\t\n\r"
        hidden |= unicodedata.bidirectional(before) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        assert after == "\N{REPLACEMENT CHARACTER}" if hidden else after in (before, "\N{REPLACEMENT CHARACTER}")
        assert after == before or not before.isprintable()


def test_a_name_cannot_turn_the_direction_of_a_page() -> None:
    template = environment().from_string("{{ name }}|{{ name | safe }}")
    assert template.render(name="a\u202egnp.exe\x07") == "|".join(["a\ufffdgnp.exe\ufffd"] * 2)


def test_order_does_not_matter() -> None:
    assert canonical_json({"b": 1, "a": 2}) == canonical_json({"a": 2, "b": 1}) == '{"a":2,"b":1}'


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def test_templates_escape_and_miss_nothing_silently() -> None:
    template = environment().from_string("{{ name }}")
    assert template.render(name="<b>&\"'") == "&lt;b&gt;&amp;&#34;&#39;"
    with pytest.raises(UndefinedError):
        template.render()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0, "0"), (0.1234, "0.123"), (12.345, "12.3"), (1234.5, "1,234"), (7, "7"), (0.0000123, "1.2e-05")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), (-1, "—"), (0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (3 << 40, "3 TiB")]
)
def test_sizes(value: int | None, text: str) -> None:
    assert formats.size(value).replace("\N{NO-BREAK SPACE}", " ") == text


def test_an_instant_is_utc_and_an_impossible_one_unknown() -> None:
    assert formats.instant(1_700_000_000_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert formats.instant(10**30) == formats.UNKNOWN
