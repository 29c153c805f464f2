"""All messages of cbtrace by slug, those of rooms that the site does not import included.

They are declared where they are used, and collected into ``templates/messages.json`` by
``python -m cbtrace.commands.collect_messages``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from cbtrace.traces.errors import Message
from cbtrace.traces.schema import Severity


@cache
def all_messages() -> dict[str, Message]:
    """The messages, ordered by slug."""
    listed = json.loads((files("cbtrace.templates") / "messages.json").read_text(encoding="utf-8"))
    return {
        slug: Message(slug, Severity[of["severity"].upper()], of["cause"], of["remedy"]) for slug, of in listed.items()
    }
