"""Workloads: what is sent to an engine and when, the same from one seed every time.

>>> spec = SyntheticSpec(requests=8, prompt_tokens=Uniform(low=16, high=64), new_tokens=Fixed(tokens=32))
>>> workload = build_workload(spec, seed=1, vocabulary=512)
>>> [len(request.prompt) for request in workload.requests]
[52, 33, 55, 35, 27, 26, 35, 33]
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from cbtrace.recorder.experiments.arrivals import LONGEST_S, NS_PER_S, Arrivals, AtOnce, draw_instants
from cbtrace.recorder.experiments.lengths import MOST_TOKENS, Lengths, Tokens, check_lengths, draw_lengths
from cbtrace.recorder.experiments.prefixes import SharedPrefix, assign_groups
from cbtrace.recorder.experiments.prompts import Encode, random_source, random_tokens, read_prompts
from cbtrace.recorder.experiments.replay import MOONCAKE_BLOCK_TOKENS, Layout, RecordedRequest, read_recorded
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.traces.schema import Facts

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Scale = Annotated[float, Meta(gt=0, le=1_000_000)]


class SyntheticSpec(Struct, tag_field="kind", tag="synthetic", forbid_unknown_fields=True, frozen=True):
    """Random token ids of drawn lengths."""

    requests: Count
    prompt_tokens: Lengths
    new_tokens: Lengths
    """Generation limit of each request."""
    arrivals: Arrivals = AtOnce()
    prefix: SharedPrefix | None = None


class PromptsSpec(Struct, tag_field="kind", tag="prompts", forbid_unknown_fields=True, frozen=True):
    """Prompts from a JSONL file: a line is ``{"text": ...}`` or ``{"tokens": [...]}``, perhaps with ``new_tokens``."""

    file: str
    new_tokens: Lengths
    """Generation limit of the requests whose line has none."""
    requests: Count | None = None
    """Use the first so many; all by default."""
    arrivals: Arrivals = AtOnce()


class ReplaySpec(Struct, tag_field="kind", tag="replay", forbid_unknown_fields=True, frozen=True):
    """Arrivals and lengths of a recorded trace; the prompts are random token ids."""

    file: str
    layout: Layout | None = None
    """Told by the file itself if not given."""
    requests: Count | None = None
    """Use the first so many; all by default."""
    speed: Scale = 1.0
    """2 replays twice as fast."""
    length_scale: Scale = 1.0
    """Multiplies prompt lengths, generation limits and prefix blocks, so that a small model can serve them."""
    max_prompt_tokens: Tokens | None = None
    """Cuts longer prompts, after scaling."""
    max_new_tokens: Tokens | None = None


WorkloadSpec = SyntheticSpec | PromptsSpec | ReplaySpec


@dataclass(frozen=True)
class PlannedRequest:
    """One request as it is to be sent."""

    id: str
    prompt: list[int]
    new_tokens: int
    at_ns: int
    """Nanoseconds after the start of the workload."""
    prefix_group: int = -1
    prefix_tokens: int = 0
    """Tokens of its prompt that are those of its group."""


@dataclass(frozen=True)
class Workload:
    """Requests in the order they are sent, and what the trace is told of them."""

    name: str
    requests: tuple[PlannedRequest, ...]
    at_once: bool
    """All are queued before the engine's first step."""
    facts: Facts

    @property
    def span_ns(self) -> int:
        """From the first planned instant to the last."""
        return self.requests[-1].at_ns if self.requests else 0

    def first(self, count: int) -> Workload:
        """The first requests, all at once: what an engine is warmed up with."""
        return Workload(self.name, self.requests[:count], True, {})


def check_workload(spec: WorkloadSpec) -> None:
    """Raise :class:`SpecError` for what the types cannot tell. Reads no files."""
    for name in ("prompt_tokens", "new_tokens"):
        lengths = getattr(spec, name, None)
        if lengths is not None:
            try:
                check_lengths(lengths)
            except SpecError as error:
                raise error.under(name) from None


def build_workload(
    spec: WorkloadSpec,
    *,
    seed: int,
    vocabulary: int,
    folder: Path = Path(),
    encode: Encode | None = None,
    name: str = "workload",
) -> Workload:
    """Work out every request. Equal arguments and files give equal workloads, on every machine.

    Args:
        spec: what to send.
        seed: all that is random follows from it; each part has its own numbers, so that changing one part (the
            arrivals, say) leaves the others as they are.
        vocabulary: token ids are below it.
        folder: what file names in the specification are relative to.
        encode: the tokenizer for prompts given as text.
        name: how reports call the workload.

    Raises:
        SpecError: a file is missing or cannot be used.
    """
    check_workload(spec)
    if isinstance(spec, SyntheticSpec):
        requests = _synthetic(spec, seed, vocabulary, folder)
    elif isinstance(spec, PromptsSpec):
        requests = _from_prompts(spec, seed, vocabulary, folder, encode)
    else:
        requests = _replayed(spec, seed, vocabulary, folder)
    at_once = isinstance(getattr(spec, "arrivals", None), AtOnce)
    return Workload(name, tuple(requests), at_once, _facts(spec, name, seed, requests))


def _synthetic(spec: SyntheticSpec, seed: int, vocabulary: int, folder: Path) -> list[PlannedRequest]:
    count = spec.requests
    prompt_tokens = _lengths(spec.prompt_tokens, "prompt_tokens", count, seed, folder)
    new_tokens = _lengths(spec.new_tokens, "new_tokens", count, seed, folder)
    instants = draw_instants(spec.arrivals, count, random_source(seed, "arrivals"))
    groups = assign_groups(spec.prefix, count, random_source(seed, "prefix"))
    prefixes = _prefixes(spec.prefix, set(groups), seed, vocabulary)
    requests = []
    for number, (length, limit, at_ns, group) in enumerate(
        zip(prompt_tokens, new_tokens, instants, groups, strict=True)
    ):
        shared = prefixes[group][: length - 1] if group >= 0 else []
        own = random_tokens(length - len(shared), vocabulary, random_source(seed, "prompt", number))
        requests.append(PlannedRequest(_id(number), [*shared, *own], limit, at_ns, group, len(shared)))
    return requests


def _prefixes(prefix: SharedPrefix | None, groups: set[int], seed: int, vocabulary: int) -> dict[int, list[int]]:
    """The common prefix of each group that has requests."""
    if prefix is None:
        return {}
    sources = {group: random_source(seed, "prefix", group) for group in groups if group >= 0}
    return {group: random_tokens(prefix.tokens, vocabulary, source) for group, source in sources.items()}


def _lengths(lengths: Lengths, name: str, count: int, seed: int, folder: Path) -> list[int]:
    try:
        return draw_lengths(lengths, count, random_source(seed, name), folder)
    except SpecError as error:
        raise error.under(name) from error


def _from_prompts(
    spec: PromptsSpec, seed: int, vocabulary: int, folder: Path, encode: Encode | None
) -> list[PlannedRequest]:
    prompts = read_prompts(spec.file, folder, spec.requests, vocabulary, encode)
    limits = _lengths(spec.new_tokens, "new_tokens", len(prompts), seed, folder)
    instants = draw_instants(spec.arrivals, len(prompts), random_source(seed, "arrivals"))
    return [
        PlannedRequest(_id(number), tokens, limit if own is None else own, at_ns)
        for number, ((tokens, own), limit, at_ns) in enumerate(zip(prompts, limits, instants, strict=True))
    ]


def _replayed(spec: ReplaySpec, seed: int, vocabulary: int, folder: Path) -> list[PlannedRequest]:
    recorded = read_recorded(spec.file, folder, spec.layout, spec.requests)
    _check_recorded(recorded, spec)
    start = recorded[0].at_ns
    block_tokens = max(1, round(MOONCAKE_BLOCK_TOKENS * spec.length_scale))
    blocks: dict[int, list[int]] = {}
    requests = []
    for number, request in enumerate(recorded):
        for block in request.blocks:
            if block not in blocks:
                blocks[block] = random_tokens(block_tokens, vocabulary, random_source(seed, "block", block))
        length = _scaled(request.prompt_tokens, spec.length_scale, spec.max_prompt_tokens)
        prompt = [token for block in request.blocks for token in blocks[block]][:length]
        prompt += random_tokens(length - len(prompt), vocabulary, random_source(seed, "prompt", number))
        limit = _scaled(request.new_tokens, spec.length_scale, spec.max_new_tokens)
        requests.append(PlannedRequest(_id(number), prompt, limit, round((request.at_ns - start) / spec.speed)))
    return _with_prefixes(requests, recorded, block_tokens)


def _check_recorded(recorded: list[RecordedRequest], spec: ReplaySpec) -> None:
    """Refuse what no engine could be sent: requests of more than a year, or longer than any context."""
    if (recorded[-1].at_ns - recorded[0].at_ns) / NS_PER_S / spec.speed > LONGEST_S:
        raise SpecError("The last request would arrive after more than a year: raise speed.", at=("speed",))
    longest = {
        "max_prompt_tokens": max(request.prompt_tokens for request in recorded),
        "max_new_tokens": max(request.new_tokens for request in recorded),
    }
    for name, tokens in longest.items():
        if tokens * spec.length_scale > MOST_TOKENS and getattr(spec, name) is None:
            raise SpecError(
                f"A request would have more than {MOST_TOKENS} tokens: lower length_scale, or give {name}.",
                at=("length_scale",),
            )


def _with_prefixes(
    requests: list[PlannedRequest], recorded: list[RecordedRequest], block_tokens: int
) -> list[PlannedRequest]:
    """Note how much of each prompt begins another one too: leading blocks that another request has as well."""
    users = Counter(chain for request in recorded for chain in _chains(request.blocks))
    noted = []
    for planned, request in zip(requests, recorded, strict=True):
        shared = sum(users[chain] > 1 for chain in _chains(request.blocks))
        tokens = min(shared * block_tokens, len(planned.prompt))
        group = request.blocks[0] if tokens else -1
        noted.append(PlannedRequest(planned.id, planned.prompt, planned.new_tokens, planned.at_ns, group, tokens))
    return noted


def _chains(blocks: tuple[int, ...]) -> Iterator[int]:
    """For each block, a number that tells it together with all blocks before it."""
    chain = 0
    for block in blocks:
        chain = hash((chain, block))
        yield chain


def _scaled(tokens: int, scale: float, most: int | None) -> int:
    scaled = max(1, round(tokens * scale))
    return scaled if most is None else min(scaled, most)


def _id(number: int) -> str:
    return f"r{number:05d}"


def _facts(spec: WorkloadSpec, name: str, seed: int, requests: list[PlannedRequest]) -> Facts:
    """What the trace is told: enough to see whether two runs had the same workload, and no file path."""
    parts = describe_spec(spec)
    return {
        "workload.name": name,
        "workload.seed": seed,
        **{f"workload.{key}": value for key, value in parts.items()},
        "workload.requests": len(requests),
        "workload.prompt_tokens_total": sum(len(request.prompt) for request in requests),
        "workload.new_tokens_total": sum(request.new_tokens for request in requests),
        "workload.prefix_tokens_total": sum(request.prefix_tokens for request in requests),
        "workload.span_s": (requests[-1].at_ns if requests else 0) / NS_PER_S,
        "workload.digest": _digest(requests),
    }


def describe_spec(spec: WorkloadSpec) -> dict[str, str]:
    """Each part of a specification in a few words. Of files only the name is told, not where they lie."""
    words = {"kind": type(spec).__struct_config__.tag}
    for field in spec.__struct_fields__:
        value = getattr(spec, field)
        if field != "requests" and value is not None:
            words[field] = _in_words(field, value)
    return {key: str(value) for key, value in words.items()}


def _in_words(field: str, value: object) -> str:
    if isinstance(value, Struct):
        parts = ", ".join(
            f"{name}={_in_words(name, getattr(value, name))}"
            for name in value.__struct_fields__
            if getattr(value, name) is not None
        )
        tag = value.__struct_config__.tag or field
        return f"{tag}({parts})" if parts else str(tag)
    return Path(value).name if field == "file" and isinstance(value, str) else str(value)


def _digest(requests: list[PlannedRequest]) -> str:
    """Tells whether two workloads are the same to the token and the nanosecond."""
    state = hashlib.blake2b(digest_size=8)
    for request in requests:
        head = np.array([request.at_ns, request.new_tokens, len(request.prompt)], dtype="<i8")
        state.update(head.tobytes() + np.array(request.prompt, dtype="<i8").tobytes())
    return state.hexdigest()
