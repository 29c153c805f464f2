"""Collects the messages that the rooms declare, for ``templates/messages.json``.

``python -m cbtrace.commands.collect_messages`` writes the file. It imports every module of cbtrace, so it needs PyTorch
and Transformers; whoever builds a site does not.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from importlib.resources import files
from pathlib import Path

from cbtrace.traces.errors import catalogue

ROOMS = ("cbtrace.traces", "cbtrace.recorder", "cbtrace.site", "cbtrace.commands")
_NOT_MODULES = ("cbtrace.recorder.bootstrap.sitecustomize",)
"""It is run by Python itself, in recorded programs, and imports the next module of its name."""


def collected() -> str:
    """Return what the file should hold."""
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, f"{room}."):
            if module.name not in _NOT_MODULES:
                importlib.import_module(module.name)
    messages = {
        message.slug: {"severity": message.severity.name.lower(), "cause": message.cause, "remedy": message.remedy}
        for message in catalogue()
    }
    return json.dumps(messages, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(str(files("cbtrace.templates") / "messages.json")).write_text(collected(), encoding="utf-8")
