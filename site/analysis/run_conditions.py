"""What a run says of itself that a comparison must look at, as texts under names that all versions share.

A *condition* is what a fair comparison holds fixed; a *setting* is what it may change. ``None`` is unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.conditions import UNSET, conditions
from cbtrace.site.plain_text import distinct, plain
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import Facts, Header, Scalar

Texts = Mapping[str, str | None]

STATIC = "static"
"""The adapter of static batching; all others record an engine of continuous batching."""
RENAMED = {"block_size": "page_size"}
"""Settings that Transformers 5.20 renamed: the same quantity under two names."""
OF_A_RANK = ("parameters", "parameter_bytes", "weights_sample")
"""Facts of a model that are those of a rank's own part where the model is split: they say nothing of the whole."""
LAUNCH = ("environment.RANK", "environment.LOCAL_RANK", "environment.WORLD_SIZE")
"""What a launcher tells its processes: the conditions named ``ranks`` say it for all launchers alike."""
SAID_TWICE = ("scheduler",)
"""The class of the scheduler, which ``scheduler_type`` tells already."""
_LONGEST = 200


@dataclass(frozen=True)
class RunConditions:
    """One run. All values are texts, as a reader sees them and the browser compares them."""

    requested: Texts
    """Settings as asked for; ``unset`` was left to the engine."""
    resolved: Texts
    """Settings as the engine worked with them."""
    conditions: Texts
    """Fingerprint, model, generation, what was sent, and how it was batched."""
    tags: Mapping[str, str]
    predicted: bool
    whole: bool
    """Everything that was recorded was read."""
    recorded_ns: int = 0
    """Wall clock at the start of the recording."""


def run_conditions(trace: Trace) -> RunConditions:
    """Take them from a trace; of its engines the last, which its numbers come from too."""
    engine = trace.engines[-1] if trace.engines else None
    facts: dict[str, Scalar] = {fact.name: fact.value for fact in conditions(trace.header, engine)}
    facts["requests.sent"] = _sent(trace)
    facts = _by_ranks(facts, trace.header)
    facts |= {name: normal(facts[name]) for name, normal in _NORMAL.items() if name in facts}
    if engine is not None:
        facts["batching"] = "static" if engine.adapter == STATIC else "continuous"
    return RunConditions(
        requested=_texts(_renamed(engine.requested)) if engine else {},
        resolved=_texts(_renamed(engine.resolved)) if engine else {},
        conditions=_texts(facts),
        tags={plain(key, 80): distinct(value, _LONGEST) for key, value in sorted(trace.header.tags.items())},
        predicted=trace.header.predicted,
        whole=trace.recovery.whole,
        recorded_ns=trace.header.wall_ns,
    )


def _by_ranks(facts: dict[str, Scalar], header: Header) -> dict[str, Scalar]:
    """The facts with those of the launch under names of their own, and those of a part of the model, too: such parts
    can be compared with their like, and not with a model that is whole or split otherwise."""
    world = header.world_size if header.world_size > 0 else None
    split = facts.pop("model.tensor_parallel", None)
    split = 1 if world == 1 else split
    kept = {name: value for name, value in facts.items() if name not in LAUNCH}
    if split != 1:
        for name in OF_A_RANK:
            if f"model.{name}" in kept:
                kept[f"model.part.{name}"] = kept.pop(f"model.{name}")
    rank = header.rank if world is not None else None
    return kept | {"ranks.world_size": world, "ranks.tensor_parallel": split, "ranks.rank": rank}


def _sent(trace: Trace) -> str | None:
    """A digest of the requests that were sent, in any order; ``None`` where some or their prompts are not known."""
    requests = trace.requests
    if not trace.recovery.whole or not len(requests.id) or not all(requests.prompt_hash):
        return None
    sizes = zip(requests.prompt_hash, requests.prompt_tokens.tolist(), requests.max_new_tokens.tolist(), strict=True)
    rows = sorted(f"{prompt.hex()} {tokens} {limit}" for prompt, tokens, limit in sizes)
    return f"{len(rows)} requests [{hashlib.sha256(chr(10).join(rows).encode()).hexdigest()[:12]}]"


def _whole_gib(value: Scalar) -> Scalar:
    """Machines that are alike differ by some pages, which their kernels keep for themselves."""
    return f"{round(value / 2**30)} GiB" if isinstance(value, int) else value


def _attention(value: Scalar) -> Scalar:
    """Up to Transformers 5.17 the engine puts this before the name of the attention that it calls."""
    return value.removeprefix("paged|") if isinstance(value, str) else value


_NORMAL = {"hardware.ram_bytes": _whole_gib, "model.attention": _attention}
"""Conditions that are compared in another form than the one they are recorded in."""


def _renamed(facts: Facts) -> Facts:
    kept = {name: value for name, value in facts.items() if name not in RENAMED and name not in SAID_TWICE}
    for old, new in RENAMED.items():
        if old in facts and kept.get(new) in (None, UNSET):
            kept[new] = facts[old]
    return kept


def _texts(facts: Facts) -> dict[str, str | None]:
    return {plain(name, 80): _text(facts[name]) for name in sorted(facts)}


def _text(value: Scalar) -> str | None:
    return None if value is None else distinct(formats.fact(value), _LONGEST)
