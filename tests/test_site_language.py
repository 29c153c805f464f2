"""A site in Japanese is in Japanese: no text of the pages, and none that scripts show, is the English one."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cbtrace.site.build import build_site
from cbtrace.site.words import load_words
from site_runs import busy_run, troubled_run
from trace_builder import eventful

VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
SHOWN = ("title", "aria-label", "alt", "placeholder")
LONG = 12
"""Characters from which an English text cannot stand in another one by chance."""


class Texts(HTMLParser):
    """What a page says, but for parts that are marked as English."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._languages = ["ja"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        language = values.get("lang") or self._languages[-1]
        if tag not in VOID:
            self._languages.append(language)
        if language == "ja":
            self.texts += [str(values[name]) for name in values if name in SHOWN or name.startswith("data-text-")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self._languages.pop()

    def handle_data(self, data: str) -> None:
        if self._languages[-1] == "ja":
            self.texts.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    busy_run(folder / "a.cbt", "a", stall_step=20, tags={"experiment": "x"})
    troubled_run(folder / "b.cbt", "b")
    eventful(folder / "c.cbt").close()
    (folder / "d.cbt").write_text("no trace")
    return build_site(sorted(folder.glob("*.cbt")), folder / "site", language="ja").out


def english() -> dict[str, str]:
    """English texts that differ in Japanese, by key, as far as they are known before anything is filled in."""
    japanese = load_words("ja")
    found = {}
    for key, text in load_words("en").texts.items():
        longest = max(re.split(r"\{[^}]*\}", text), key=len).strip()
        if len(longest) >= LONG and longest not in japanese.texts[key] and " " in longest:
            found[key] = longest
    return found


def test_no_page_says_anything_in_english(site: Path) -> None:
    assert len(english()) > 300
    for path in site.rglob("*.html"):
        page = Texts()
        page.feed(path.read_text(encoding="utf-8"))
        said = "\n".join(page.texts)
        assert "日本" in said or len(re.findall(r"[ぁ-ん]", said)) > 20, path
        assert {key: text for key, text in english().items() if text in said} == {}, path


def test_no_data_of_a_page_says_anything_in_english(site: Path) -> None:
    for path in [*site.glob("runs/*/*.js"), *site.glob("assets/runs.*.js"), *site.glob("assets/specs.*.js")]:
        said = path.read_text(encoding="utf-8")
        assert {key: text for key, text in english().items() if f'"{text}' in said} == {}, path


def test_the_check_would_notice(site: Path) -> None:
    other = build_site([site.parent / "a.cbt"], site.parent / "en", language="en").out
    page = Texts()
    page.feed((other / "index.html").read_text(encoding="utf-8").replace('lang="en"', ""))
    assert any(text in "\n".join(page.texts) for text in english().values())
