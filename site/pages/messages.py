"""The page of all messages: what each slug means, what leads to it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site.messages import all_messages
from cbtrace.site.pages.chrome import Chrome


@dataclass(frozen=True)
class MessageEntry:
    """One message as it is shown. Cause and remedy are pieces of text, alternately plain and code."""

    slug: str
    severity: str
    cause: list[str]
    remedy: list[str]


def messages_page(chrome: Chrome) -> str:
    """The page as HTML."""
    entries = [
        MessageEntry(
            slug=message.slug,
            severity=chrome.words(f"severity.{message.severity.name}"),
            cause=message.cause.split("`"),
            remedy=message.remedy.split("`"),
        )
        for message in all_messages().values()
    ]
    return chrome.page("messages.html", "messages", entries=entries)
