"""Repeats: which runs of a site belong together, so that one side of a comparison can be several runs."""

from __future__ import annotations

import hashlib
from typing import Any

from cbtrace.site import formats
from cbtrace.site.analysis.comparability import CATEGORIES, NO_CONDITION
from cbtrace.site.analysis.summary import RunSummary
from cbtrace.site.pages.labels import run_name
from cbtrace.site.plain_text import plain
from cbtrace.site.render import canonical_json
from cbtrace.traces.reader import Trace


def compare_entry(trace: Trace, summary: RunSummary, side: dict[str, Any], src: str) -> dict[str, Any]:
    """One run in the list that the compare page chooses from. ``src`` is where its ``side`` lies."""
    key, label = _group(trace, side)
    return {
        "slug": side["slug"],
        "label": _label(trace, summary),
        "src": src,
        "group": key,
        "group_label": label,
    }


def _label(trace: Trace, summary: RunSummary) -> str:
    """What a run is called where one of many is chosen: two runs may have the same name."""
    name, source = plain(run_name(trace, summary), 80), plain(trace.path.name, 80)
    return f"{name} ({source}, {formats.instant(trace.header.wall_ns)})"


def _group(trace: Trace, side: dict[str, Any]) -> tuple[str | None, str]:
    """What repeats of a run share, as a short name, and what they are called together.

    Repeats are runs of the same variant of the same experiment, or runs that were asked for the same settings under the
    same conditions and were sent the same requests. A predicted run repeats nothing, nor does one whose requests are
    not known.
    """
    experiment, variant = (trace.header.tags.get(name, "").strip() for name in ("experiment", "variant"))
    if side["predicted"]:
        return None, ""
    if experiment and variant:
        return _digest(["experiment", experiment, variant]), f"{plain(experiment, 60)}: {plain(variant, 60)}"
    conditions = {name: value for name, value in side["conditions"].items() if _counts(name)}
    if conditions.get("workload.digest") is None and conditions.get("requests.sent") is None:
        return None, ""
    tags = {name: value for name, value in side["tags"].items() if name != "repeat"}
    return _digest(["alike", side["requested"], conditions, tags]), side["name"]


def _counts(name: str) -> bool:
    """Whether a condition must be the same in repeats."""
    category = next((category for start, category in CATEGORIES if name.startswith(start)), "")
    return category not in NO_CONDITION


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:8]
