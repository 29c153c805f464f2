"""Repeats: which runs of a site belong together, so that one side of a comparison can be several runs."""

from __future__ import annotations

import hashlib
from typing import Any

from cbtrace.site import formats
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

    Repeats are runs of the same variant of the same experiment, or runs whose fingerprint, settings and requests are
    all the same. A predicted run repeats nothing.
    """
    tags = trace.header.tags
    experiment, variant = tags.get("experiment", "").strip(), tags.get("variant", "").strip()
    if side["predicted"]:
        return None, ""
    if experiment and variant:
        return _digest(["experiment", experiment, variant]), f"{plain(experiment, 60)}: {plain(variant, 60)}"
    alike = [side[name] for name in ("requested", "resolved", "conditions")]
    return _digest(["alike", *alike, _sent(trace)]), side["name"]


def _sent(trace: Trace) -> list[list[Any]]:
    """The requests that were sent, whatever their order."""
    requests = trace.requests
    prompts = (digest.hex() for digest in requests.prompt_hash)
    sizes = (column.tolist() for column in (requests.prompt_tokens, requests.max_new_tokens))
    return sorted([prompt, *size] for prompt, *size in zip(prompts, *sizes, strict=True))


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:8]
