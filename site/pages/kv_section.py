"""The KV cache of a run: its budget, the slack inside its blocks, and how it divides between groups of layers."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site import formats
from cbtrace.site.analysis.kv import KvBudget, time_weighted_mean
from cbtrace.site.analysis.kv_groups import KvByGroup
from cbtrace.site.analysis.slack import block_slack
from cbtrace.site.words import Words
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import Engine


@dataclass(frozen=True)
class KvRow:
    """One amount of the KV budget."""

    label: str
    bytes: float | None
    units: float | None
    share: float | None


@dataclass(frozen=True)
class GroupRow:
    """One group of layers of a hybrid model, or what positions do not explain."""

    name: str
    layers: str
    window: str
    block: str
    mean: str
    most: str
    share: str
    cached: str
    stranded: str


@dataclass(frozen=True)
class KvSection:
    """The KV budget."""

    title: str
    unit: str
    rows: list[KvRow]
    groups: list[GroupRow]
    groups_text: str
    slack: str


def kv_section(trace: Trace, kv: KvBudget | None, groups: KvByGroup | None, words: Words) -> KvSection:
    """The KV budget as a table."""
    if kv is None or not kv.capacity_bytes:
        return KvSection(words("kv.title_none"), "", [], [], "", "")
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
    numbers = {"tokens": formats.number(kv.capacity_tokens), "share": formats.percent(used)}
    title = words("kv.title", **numbers) if groups is None else words("kv.title_hybrid", **numbers)
    told = "" if groups is None else words("kv.groups_text", share=formats.percent(groups.explained))
    return KvSection(
        title=title,
        unit=kv.unit_name,
        rows=rows,
        groups=[] if groups is None else _group_rows(trace, groups, words),
        groups_text=told,
        slack=_slack(trace, trace.engines[-1], groups, words),
    )


def _group_rows(trace: Trace, by_group: KvByGroup, words: Words) -> list[GroupRow]:
    at = trace.steps.scheduled_ns
    parts = [*by_group.used, by_group.unexplained]
    means = [time_weighted_mean(part, at) for part in parts]
    total = sum(means)
    shares = [formats.percent(mean / total if total > 0 else None) for mean in means]
    rows = [
        GroupRow(
            name=group.name,
            layers=formats.number(group.layers),
            window=formats.number(group.window) if group.window >= 0 else words("kv.no_window"),
            block=words("kv.block", bytes=formats.size(group.block_bytes), tokens=group.tokens_per_block),
            mean=formats.size(means[i]),
            most=formats.size(int(by_group.used[i].max())),
            share=shares[i],
            cached=formats.size(int(by_group.cached[i].max())),
            stranded=formats.size(int(by_group.stranded[i].max())),
        )
        for i, group in enumerate(by_group.groups)
    ]
    if by_group.unexplained.any():
        mean, most = (formats.signed_size(round(value)) for value in (means[-1], by_group.unexplained.max()))
        dash = formats.UNKNOWN
        rows.append(GroupRow(words("kv.unexplained"), dash, dash, dash, mean, most, shares[-1], dash, dash))
    return rows


def _slack(trace: Trace, engine: Engine, groups: KvByGroup | None, words: Words) -> str:
    slack = groups.slack if groups is not None else block_slack(engine, trace.steps, trace.requests)
    if slack is None:
        return words("kv.slack_unknown")
    return words(
        "kv.slack",
        size=formats.size(slack.mean_bytes),
        share=formats.percent(slack.mean_share),
        known=formats.number(slack.known_steps),
        steps=formats.number(slack.steps),
    )
