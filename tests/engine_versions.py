"""What differs between the engines of the tested Transformers, and what does not: exact, with the reason.

``docs/engine-versions.md`` shows :func:`table`, and a test compares the two. To write it anew:

    PYTHONPATH=tests python -m engine_versions
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbtrace.traces import Trace
from cbtrace.traces.schema import AdmissionStop, EventKind
from engines import Case, prompts
from test_recorder_scenarios import SHARED, SOFT_RESETS

DOCUMENT = Path(__file__).parent.parent / "docs" / "engine-versions.md"
GENERATIONS = ("5.14.1 and 5.17.0", "5.20.2 and 5.24.0")

Figure = Callable[[Trace], Any]


def steps(trace: Trace) -> int:
    return len(trace.steps.index)


def soft_resets(trace: Trace) -> str:
    rows = trace.events.kind == EventKind.SOFT_RESET
    return (
        ", ".join(trace.requests.id[request].removeprefix("req_") for request in trace.events.request[rows]) or "none"
    )


def recomputed(trace: Trace) -> str:
    return f"{trace.requests.recomputed.sum()}, {trace.requests.recompute_saved.sum()}"


def evicted(trace: Trace) -> str:
    return ", ".join(map(str, trace.events.blocks[trace.events.kind == EventKind.CACHE_EVICTION])) or "none"


def prefix_hits(trace: Trace) -> str:
    return ", ".join(map(str, sorted(trace.requests.prefix_hit.tolist())))


def capacity(trace: Trace) -> int:
    return trace.engines[0].kv.capacity_units * trace.engines[0].kv.unit_bytes


def layers(trace: Trace) -> str:
    return " + ".join(str(group.layers) for group in trace.engines[0].kv.groups)


def stops(trace: Trace) -> str:
    counts = Counter(AdmissionStop(stop).name.lower().replace("_", " ") for stop in trace.steps.stop.tolist())
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@dataclass(frozen=True)
class Scenario:
    """A workload whose schedule is the same each time, and what its trace must say. A figure with one value is the same
    in every version; one with two is told for each generation of the engine."""

    name: str
    model: str
    case: Case
    figures: dict[tuple[str, Figure], tuple[Any, ...]]
    reason: str = ""
    """Why generations differ; empty when they do not."""


SCENARIOS = (
    Scenario(
        "8 requests, too few blocks (14 of 16 tokens)",
        "llama",
        SOFT_RESETS,
        {
            ("steps", steps): (120, 94),
            ("soft resets, by request", soft_resets): ("5, 2, 3, 7, 0, 5, 6", "0, 5, 2, 7, 6, 5, 7"),
            ("tokens recomputed, spared by the prefix cache", recomputed): ("192, 32", "224, 0"),
            ("cached blocks given up at once", evicted): ("none", "7, 4, 4, 3, 4"),
        },
        "Until 5.17, blocks that hold a reusable prefix count as free, and those of a request that is put off become "
        "such blocks. Since 5.20 they are not free, those of a request that is put off are not kept, and all "
        "cached blocks are given up when the safety margin is missed.",
    ),
    Scenario(
        "the same without a safety margin",
        "llama",
        Case(SOFT_RESETS.inputs, settings=SOFT_RESETS.settings | {"safety_margin": 0.0}),
        {
            ("steps", steps): (94, 131),
            ("soft resets, by request", soft_resets): ("0, 5, 2, 7, 6, 5, 7", "0, 5, 2, 7, 6"),
            ("cached blocks given up at once", evicted): ("none", "11, 6"),
        },
        "Since 5.20, all cached blocks are given up before any request is put off, and if that is enough, none is.",
    ),
    Scenario(
        "one prompt of 48 tokens (3 whole blocks), twice among others",
        "llama",
        Case(
            [[9] * 48, [9] * 48, *prompts(4, 40, 60)],
            new_tokens=24,
            settings={"num_blocks": 12, "max_requests_per_batch": 2},
        ),
        {("prefix hits in tokens", prefix_hits): ("0, 0, 0, 0, 0, 47", "0, 0, 0, 0, 0, 32")},
        "Until 5.17, all whole blocks of a prompt are matched and its last token is computed again. Since 5.20, the "
        "block of the last token is never matched.",
    ),
    Scenario(
        "a model with 4 sliding-window layers and 2 others, 60 blocks",
        "gemma2",
        Case(prompts(5, 10, 60), new_tokens=24, settings={"num_blocks": 60}),
        {
            ("bytes of the KV cache", capacity): (491_520, 1_474_560),
            ("layers of each KV group", layers): ("2 + 2 + 2", "4 + 2"),
            ("steps", steps): (26,),
        },
        "Until 5.17, a block holds tokens of one group, and groups have equally many layers. Since 5.20, the number of "
        "blocks is one of the whole model: compare bytes, never numbers of blocks.",
    ),
    Scenario(
        "8 requests, safety margin of 0.6",
        "llama",
        Case(prompts(8, 30, 40), new_tokens=8, settings={"num_blocks": 24, "safety_margin": 0.6}),
        {
            ("why admission stopped, in steps", stops): (
                "nothing waiting 8, safety margin 13, token budget 3",
                "nothing waiting 15, safety margin 6, token budget 3",
            )
        },
        "Until 5.17, the margin is compared before each request with what is free then. Since 5.20, it is compared "
        "once, before the first.",
    ),
    Scenario(
        "6 requests, room for all",
        "llama",
        Case(prompts(6, 5, 100), new_tokens=20),
        {
            ("steps", steps): (25,),
            ("why admission stopped, in steps", stops): ("nothing waiting 21, token budget 4",),
        },
    ),
    Scenario(
        "3 prompts longer than a batch",
        "llama",
        Case(prompts(3, 150, 200), new_tokens=4),
        {
            ("steps", steps): (12,),
            ("why admission stopped, in steps", stops): ("nothing waiting 7, token budget 5",),
        },
    ),
    Scenario(
        "6 prompts with 40 tokens in common, 2 at a time",
        "llama",
        Case(SHARED, new_tokens=8, settings={"max_requests_per_batch": 2}),
        {
            ("steps", steps): (25,),
            ("prefix hits in tokens", prefix_hits): ("0, 0, 32, 32, 32, 32",),
            ("why admission stopped, in steps", stops): ("nothing waiting 8, request cap 16, token budget 1",),
        },
    ),
    Scenario(
        "6 requests, prefill first",
        "llama",
        Case(prompts(6, 30, 90), new_tokens=10, settings={"scheduler_type": "prefill_first"}),
        {
            ("steps", steps): (15,),
            ("why admission stopped, in steps", stops): ("nothing waiting 11, token budget 4",),
        },
    ),
)


def table() -> str:
    """The tables of ``docs/engine-versions.md``."""
    lines = [f"| scenario | figure | {GENERATIONS[0]} | {GENERATIONS[1]} |", "|---|---|---|---|"]
    same = ["| scenario | figure | all versions |", "|---|---|---|"]
    reasons = []
    for scenario in SCENARIOS:
        for (figure, _), values in scenario.figures.items():
            cells = " | ".join(f"{value:,}" if isinstance(value, int) else value for value in values)
            (lines if len(values) == 2 else same).append(f"| {scenario.name} | {figure} | {cells} |")
        if scenario.reason:
            reasons.append(f"- *{scenario.name[0].upper()}{scenario.name[1:]}*: {scenario.reason}")
    return "\n".join(["## What differs", "", *lines, "", *reasons, "", "## What is the same", "", *same, ""])


def _write() -> None:
    head, _, _ = DOCUMENT.read_text(encoding="utf-8").partition("## What differs")
    DOCUMENT.write_text(head + table(), encoding="utf-8")


if __name__ == "__main__":
    _write()
