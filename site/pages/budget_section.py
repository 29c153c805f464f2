"""The budgets of a run: the three that admission is held by, and the memory of the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.admission import admission_limits
from cbtrace.site.analysis.evidence import Evidence
from cbtrace.site.analysis.kv import KvBudget
from cbtrace.site.analysis.memory_budget import forecast, marks, memory_budget
from cbtrace.site.analysis.pieces import COLUMN, WAITS
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import AdmissionStop, Engine

BATCH_TERMS = ("input_output", "attention_mask", "logits_rows", "activation_peak", "kv_indices", "block_table")
"""Terms of the engine's memory model that grow with the tokens of a batch."""


@dataclass(frozen=True)
class LimitRow:
    """One of the budgets that hold admission: its size, how much was used, how long it limited, what more costs."""

    label: str
    setting: str
    size: str
    used: str
    limited: str
    """For how long, and as a share of the step time."""
    waited: str
    """How many requests waited for it, and for how long."""
    cost: str


@dataclass(frozen=True)
class MemoryRow:
    """One term of the GPU's memory: measured, and what the engine's own model says of it."""

    term: str
    label: str
    bytes: int
    measured: str
    predicted_bytes: int | None
    predicted: str
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


def limit_rows(evidence: Evidence, words: Words) -> list[LimitRow]:
    """The three budgets of the KV design."""
    kv, budget, engine = evidence.summary.kv, evidence.token_budget, evidence.engine
    if kv is None or engine is None:
        return []
    return [
        _input_row(evidence, budget, engine, words),
        _paged_row(evidence, kv, engine, words),
        _reserve_row(evidence, kv, words),
    ]


def _input_row(evidence: Evidence, budget: int | None, engine: Engine, words: Words) -> LimitRow:
    steps = evidence.trace.steps
    computed = steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    predicted = sum(engine.predicted_memory.get(term, 0) for term in BATCH_TERMS)
    cost = words("limit.cost.input_unknown")
    if budget and predicted:
        cost = words("limit.cost.input", bytes=formats.size(predicted / budget))
    used = formats.UNKNOWN
    if budget and len(computed):
        share = formats.percent(float(computed.mean()) / budget)
        used = words("limit.used.input", mean=share, most=formats.number(int(computed.max())))
    size = words("limit.size.input", tokens=formats.number(budget))
    limited = _limited(evidence, (AdmissionStop.TOKEN_BUDGET,), words)
    return LimitRow(words("limit.input"), "max_batch_tokens", size, used, *limited, cost)


def _paged_row(evidence: Evidence, kv: KvBudget, engine: Engine, words: Words) -> LimitRow:
    mean = None if kv.mean_used_bytes is None else kv.mean_used_bytes / kv.capacity_bytes
    used = words("limit.used.paged", mean=formats.percent(mean), most=formats.size(kv.peak_used_bytes))
    reasons = (AdmissionStop.KV_BLOCKS, AdmissionStop.BLOCKED_AFTER_OFFLOAD, AdmissionStop.CACHE_BUDGET)
    blocks = engine.resolved.get("num_blocks")
    known = isinstance(blocks, int) and not isinstance(blocks, bool) and blocks > 0
    unit = kv.capacity_bytes / blocks if known and isinstance(blocks, int) else kv.unit_bytes
    told = {"bytes": formats.size(unit), "unit": "block" if known else kv.unit_name}
    a_token = kv.capacity_bytes / kv.capacity_tokens if kv.capacity_tokens > 0 else None
    cost = words("limit.cost.paged", token=formats.size(a_token), **told)
    size = words("limit.size.paged", bytes=formats.size(kv.capacity_bytes), tokens=formats.number(kv.capacity_tokens))
    return LimitRow(words("limit.paged"), "num_blocks", size, used, *_limited(evidence, reasons, words), cost)


def _reserve_row(evidence: Evidence, kv: KvBudget, words: Words) -> LimitRow:
    steps = evidence.trace.steps
    used = formats.UNKNOWN
    if kv.margin_bytes and len(steps.index):
        inside = float((steps.kv_free < kv.margin_bytes).mean())
        used = words("limit.used.reserve", share=formats.percent(inside))
    limited = _limited(evidence, (AdmissionStop.SAFETY_MARGIN,), words)
    cost = words(
        "limit.cost.reserve",
        bytes=formats.size(kv.capacity_bytes / 100),
        tokens=formats.number(kv.capacity_tokens / 100),
    )
    size = words("limit.size.reserve", bytes=formats.size(kv.margin_bytes), share=formats.percent(kv.safety_margin))
    return LimitRow(words("limit.reserve"), "safety_margin", size, used, *limited, cost)


def _limited(evidence: Evidence, reasons: tuple[AdmissionStop, ...], words: Words) -> tuple[str, str]:
    """For how long admission was stopped for ``reasons``, and which requests waited for their first token by it."""
    share = sum(evidence.stop_share(reason) for reason in reasons)
    duration = sum(limit.duration_ns for limit in admission_limits(evidence.trace.steps) if limit.reason in reasons)
    waited = evidence.cuts.ttft.pieces[:, [COLUMN[WAITS[reason]] for reason in reasons]].sum(axis=1)
    whom = words(
        "limit.waited",
        count=formats.number(int((waited > 0).sum())),
        mean=formats.from_ns(int(waited[waited > 0].mean()) if waited.any() else 0),
    )
    return words("limit.limited_for", share=formats.percent(share), seconds=formats.seconds(duration / 1e9)), whom


def memory_section(trace: Trace, words: Words) -> MemorySection:
    """Measured terms that add up to the device, marks, and the engine's prediction."""
    budget = memory_budget(trace.memory)
    predicted = trace.engines[-1].predicted_memory if trace.engines else {}
    rows: list[MemoryRow] = []
    title = words("memory.title_none")
    if budget is not None:
        terms = [(term.name, term.bytes) for term in budget.terms] + [("unattributed", budget.unattributed)]
        rows = [
            MemoryRow(
                term=name,
                label=words(f"memory.{name}"),
                bytes=amount,
                measured=formats.signed_size(amount),
                predicted_bytes=forecast(name, predicted),
                predicted=formats.size(forecast(name, predicted)),
                share=formats.percent(amount / budget.device_total),
            )
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
    terms_told = [(words.or_key(f"predicted.{name}", name), formats.size(predicted[name])) for name in predicted]
    return MemorySection(title, rows, told, terms_told)
