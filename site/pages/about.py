"""What cbtrace did and did not measure."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site.pages.chrome import Chrome

SECTIONS = ("measured", "notmeasured", "reading", "privacy", "offline")


@dataclass(frozen=True)
class AboutSection:
    """A heading and its paragraphs."""

    id: str
    title: str
    paragraphs: list[str]


def about_page(chrome: Chrome) -> str:
    """The page as HTML."""
    words = chrome.words
    sections = []
    for name in SECTIONS:
        texts = words.starting(f"about.{name}.")
        paragraphs = [text for key, text in texts.items() if not key.endswith(".title")]
        sections.append(AboutSection(name, words(f"about.{name}.title"), paragraphs))
    return chrome.page("about.html", "about", sections=sections)
