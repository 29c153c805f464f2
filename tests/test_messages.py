"""Every message has a slug, a cause and a remedy, and all of them are on a page of the site."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from cbtrace.commands.collect_messages import ROOMS, collected
from cbtrace.site.build import build_site
from cbtrace.site.messages import all_messages
from trace_builder import eventful

SLUG = r"[\"']([a-z0-9]+(?:-[a-z0-9]+)*)[\"']"
USES = [
    rf"\bslug(?:: str)?\s*=\s*{SLUG}",
    rf"\bnotice\(\s*{SLUG}",
    rf"\btell\(\s*{SLUG}",
    rf"_finding\(\s*{SLUG}",
    rf"\b_say\([^)]*,\s*{SLUG}\s*\)",
]


def sources() -> dict[str, str]:
    return {
        f"{room}/{path.name}": path.read_text(encoding="utf-8")
        for room in ROOMS
        for path in Path(str(files(room))).rglob("*.py")
    }


def test_the_collected_messages_are_those_that_are_declared() -> None:
    kept = (files("cbtrace.templates") / "messages.json").read_text(encoding="utf-8")
    assert kept == collected(), "run python -m cbtrace.commands.collect_messages"


def test_every_slug_that_is_used_is_explained() -> None:
    used = {
        (slug, name)
        for name, text in sources().items()
        for pattern in USES
        for slug in re.findall(pattern, text, re.DOTALL)
    }
    assert len(used) > 60
    assert sorted((slug, name) for slug, name in used if slug not in all_messages()) == []


@pytest.mark.parametrize("slug", list(all_messages()))
def test_cause_and_remedy_are_sentences(slug: str) -> None:
    message = all_messages()[slug]
    for text in (message.cause, message.remedy):
        assert (text[0].isupper() or text.startswith("cbtrace ")) and text.endswith(".") and len(text.split()) > 3
        assert text.count("`") % 2 == 0
    assert message.cause != message.remedy


def test_the_page_has_them_all_and_every_page_leads_there(tmp_path: Path) -> None:
    eventful(tmp_path / "run.cbt").close()
    build_site([tmp_path / "run.cbt"], tmp_path / "site")
    page = (tmp_path / "site" / "messages.html").read_text(encoding="utf-8")
    assert re.findall(r'<article class="definition" id="([a-z0-9-]+)"', page) == sorted(all_messages())
    assert "`" not in page.partition("<main")[2].partition("</main>")[0]
    for path in (tmp_path / "site").rglob("*.html"):
        link = re.search(r'<footer.*?href="([^"]+)"', path.read_text(encoding="utf-8"), re.DOTALL)
        assert link is not None
        assert (path.parent / link[1]).resolve() == (tmp_path / "site" / "messages.html").resolve()
