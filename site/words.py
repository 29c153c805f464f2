"""Every text of the site, by key and language. The texts are ``templates/words/<language>.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from cbtrace.traces.errors import UsageError

LANGUAGES = ("en", "ja")


@dataclass(frozen=True, eq=False)
class Words:
    """The texts of one language. Call it with a key, and with what fills the text's ``{places}``."""

    language: str
    texts: dict[str, str]

    def __call__(self, key: str, **values: object) -> str:
        """The text of ``key``. A missing key is a mistake of ours: ``KeyError``."""
        text = self.texts[key]
        return text.format(**values) if values else text

    def or_key(self, key: str, otherwise: str) -> str:
        """The text of ``key``, or ``otherwise`` for a name that a newer trace may bring."""
        return self.texts.get(key, otherwise)

    def has(self, key: str) -> bool:
        """Whether there is a text for ``key``."""
        return key in self.texts

    def starting(self, prefix: str) -> dict[str, str]:
        """All texts whose key starts with ``prefix``, sorted."""
        return {key: self.texts[key] for key in sorted(self.texts) if key.startswith(prefix)}


@lru_cache
def load_words(language: str = "en") -> Words:
    """Read the texts of ``language``, one of :data:`LANGUAGES`; another one is a ``UsageError``."""
    if language not in LANGUAGES:
        raise UsageError(f"There are no texts in {language!r}: choose one of {', '.join(LANGUAGES)}.")
    source = files("cbtrace.templates") / "words" / f"{language}.json"
    return Words(language, json.loads(source.read_text(encoding="utf-8")))
