"""The budgets of a run: KV cache, the three that admission is held by, and the memory of the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.site import formats
from cbtrace.site.analysis.evidence import Evidence
from cbtrace.site.analysis.kv import KvBudget
from cbtrace.site.analysis.memory_budget import marks, memory_budget
from cbtrace.site.analysis.slack import block_slack
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, Engine

BATCH_TERMS = ("input_output", "attention_mask", "logits_rows", "activation_peak", "kv_indices", "block_table")
"""Terms of the engine's memory model that grow with the tokens of a batch."""


@dataclass(frozen=True)
class KvRow:
    """One amount of the KV budget."""

    label: str
    bytes: float | None
    units: float | None
    share: float | None


@dataclass(frozen=True)
class KvSection:
    """The KV budget."""

    title: str
    unit: str
    rows: list[KvRow]
    groups: list[str]
    slack: str


@dataclass(frozen=True)
class LimitRow:
    """One of the budgets that hold admission: its size, how much was used, how long it limited, what more costs."""

    label: str
    setting: str
    size: str
    used: str
    limited: str
    cost: str


@dataclass(frozen=True)
class MemoryRow:
    """One term of the GPU's memory: measured, and what the engine predicted."""

    label: str
    measured: str
    share: str


@dataclass(frozen=True)
class MarkText:
    """Memory at one mark."""

    label: str
    allocated: str
    reserved: str
    device: str
    host: str


@dataclass(frozen=True)
class MemorySection:
    """The memory budget."""

    title: str
    rows: list[MemoryRow]
    marks: list[MarkText]
    predicted: list[tuple[str, str]]


def kv_section(trace: Trace, kv: KvBudget | None, words: Words) -> KvSection:
    """The KV budget as a table."""
    if kv is None or not kv.capacity_bytes:
        return KvSection(words("kv.title_none"), "", [], [], "")
    amounts = (
        ("capacity", kv.capacity_bytes),
        ("peak_used", kv.peak_used_bytes),
        ("mean_used", kv.mean_used_bytes),
        ("peak_cached", kv.peak_cached_bytes),
        ("min_free", kv.min_free_bytes),
        ("margin", kv.margin_bytes),
        ("reserved", kv.reserved_bytes),
    )
    rows = [
        KvRow(
            words(f"kv.row.{name}"),
            amount,
            None if amount is None or not kv.unit_bytes else amount / kv.unit_bytes,
            None if amount is None else amount / kv.capacity_bytes,
        )
        for name, amount in amounts
    ]
    used = None if kv.peak_used_bytes is None else kv.peak_used_bytes / kv.capacity_bytes
    title = words("kv.title", tokens=formats.number(kv.capacity_tokens), share=formats.percent(used))
    engine = trace.engines[-1]
    return KvSection(title, kv.unit_name, rows, _groups(trace, engine, words), _slack(trace, engine, words))


def _groups(trace: Trace, engine: Engine, words: Words) -> list[str]:
    """A hybrid model's groups of layers, with the fewest free blocks of each in any step."""
    groups = engine.kv.groups
    if len(groups) < 2:
        return []
    counts = [rows for rows in trace.kv_groups().values() if len(rows) == len(groups)]
    least = np.stack(counts)[:, :, 0].min(axis=0).tolist() if counts else []
    told = []
    for place, group in enumerate(groups):
        text = words(
            f"kv.group.{'window' if group.window >= 0 else 'full'}",
            name=group.name,
            layers=group.layers,
            block=formats.size(group.block_bytes),
            tokens=group.tokens_per_block,
            window=group.window,
        )
        told.append(f"{text} {words('kv.group.free', free=formats.number(least[place]))}" if least else text)
    return told


def _slack(trace: Trace, engine: Engine, words: Words) -> str:
    slack = block_slack(engine, trace.steps, trace.requests)
    if slack is None:
        return words("kv.slack_unknown")
    return words(
        "kv.slack",
        size=formats.size(slack.mean_bytes),
        share=formats.percent(slack.mean_share),
        known=formats.number(slack.known_steps),
        steps=formats.number(slack.steps),
    )


def limit_rows(evidence: Evidence, words: Words) -> list[LimitRow]:
    """The three budgets of the KV design."""
    kv, budget, engine = evidence.summary.kv, evidence.token_budget, evidence.engine
    if kv is None or engine is None:
        return []
    return [
        _input_row(evidence, budget, engine, words),
        _paged_row(evidence, kv, words),
        _reserve_row(evidence, kv, words),
    ]


def _input_row(evidence: Evidence, budget: int | None, engine: Engine, words: Words) -> LimitRow:
    steps = evidence.trace.steps
    computed = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    predicted = sum(engine.predicted_memory.get(term, 0) for term in BATCH_TERMS)
    cost = formats.UNKNOWN
    if budget and predicted:
        cost = words("limit.cost.input", bytes=formats.size(predicted / budget))
    used = formats.UNKNOWN
    if budget and len(computed):
        share = formats.percent(float(computed.mean()) / budget)
        used = words("limit.used.input", mean=share, most=formats.number(int(computed.max())))
    stopped = evidence.stop_share(AdmissionStop.TOKEN_BUDGET)
    size = words("limit.size.input", tokens=formats.number(budget))
    return LimitRow(words("limit.input"), "max_batch_tokens", size, used, formats.percent(stopped), cost)


def _paged_row(evidence: Evidence, kv: KvBudget, words: Words) -> LimitRow:
    mean = None if kv.mean_used_bytes is None else kv.mean_used_bytes / kv.capacity_bytes
    used = words("limit.used.paged", mean=formats.percent(mean), most=formats.size(kv.peak_used_bytes))
    stopped = sum(
        evidence.stop_share(reason)
        for reason in (AdmissionStop.KV_BLOCKS, AdmissionStop.BLOCKED_AFTER_OFFLOAD, AdmissionStop.CACHE_BUDGET)
    )
    cost = words("limit.cost.paged", bytes=formats.size(kv.unit_bytes), unit=kv.unit_name)
    size = formats.size(kv.capacity_bytes)
    return LimitRow(words("limit.paged"), "num_blocks", size, used, formats.percent(stopped), cost)


def _reserve_row(evidence: Evidence, kv: KvBudget, words: Words) -> LimitRow:
    steps = evidence.trace.steps
    used = formats.UNKNOWN
    if kv.margin_bytes and len(steps.index):
        inside = float((steps.kv_free < kv.margin_bytes).mean())
        used = words("limit.used.reserve", share=formats.percent(inside))
    stopped = formats.percent(evidence.stop_share(AdmissionStop.SAFETY_MARGIN))
    cost = words("limit.cost.reserve", bytes=formats.size(kv.capacity_bytes / 100))
    size = formats.size(kv.margin_bytes)
    return LimitRow(words("limit.reserve"), "safety_margin", size, used, stopped, cost)


def memory_section(trace: Trace, words: Words) -> MemorySection:
    """Measured terms that add up to the device, marks, and the engine's prediction."""
    budget = memory_budget(trace.memory)
    rows: list[MemoryRow] = []
    title = words("memory.title_none")
    if budget is not None:
        terms = [(term.name, term.bytes) for term in budget.terms] + [("unattributed", budget.unattributed)]
        rows = [
            MemoryRow(words(f"memory.{name}"), signed_size(amount), formats.percent(amount / budget.device_total))
            for name, amount in [*terms, ("total", budget.device_total)]
        ]
        free = next(term.bytes for term in budget.terms if term.name == "free")
        title = words("memory.title", share=formats.percent(1 - free / budget.device_total))
    told = [
        MarkText(
            words.or_key(f"mark_name.{mark.mark}", mark.mark),
            *(formats.size(amount) for amount in (mark.allocated, mark.reserved, mark.device_used, mark.host_rss)),
        )
        for mark in marks(trace.memory)
    ]
    predicted = trace.engines[-1].predicted_memory if trace.engines else {}
    terms_told = [(words.or_key(f"predicted.{name}", name), formats.size(predicted[name])) for name in predicted]
    return MemorySection(title, rows, told, terms_told)


def signed_size(amount: int) -> str:
    """Bytes that may be negative: memory that was given back."""
    return formats.size(amount) if amount >= 0 else f"\N{MINUS SIGN}{formats.size(-amount)}"
