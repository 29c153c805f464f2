"""The page of definitions, from the catalogue of metrics."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.site.analysis.catalogue import GROUPS, RANK_METRICS, Metric, MetricGroup
from cbtrace.site.pages.chrome import Chrome
from cbtrace.site.words import Words

TERMS = (
    "step",
    "prefill",
    "decode",
    "admission",
    "token_budget",
    "cache_budget",
    "block",
    "safety_margin",
    "soft_reset",
    "offload",
    "prefix_hit",
    "wasted",
    "goodput",
)


@dataclass(frozen=True)
class Definition:
    """One metric in words."""

    id: str
    label: str
    unit: str
    formula: str
    scope: str
    direction: str


@dataclass(frozen=True)
class DefinitionGroup:
    """Metrics under one heading."""

    id: str
    label: str
    metrics: list[Definition]


@dataclass(frozen=True)
class Term:
    """A word of the field and its meaning."""

    id: str
    label: str
    text: str


def metrics_page(chrome: Chrome) -> str:
    """The page as HTML."""
    words = chrome.words
    groups = [
        DefinitionGroup(group.id, words(f"group.{group.id}"), [_definition(m, words) for m in group.metrics])
        for group in (*GROUPS, MetricGroup("ranks", RANK_METRICS))
    ]
    terms = [Term(term, words(f"term.{term}.label"), words(f"term.{term}.text")) for term in TERMS]
    return chrome.page("metrics.html", "metrics", groups=groups, terms=terms)


def _definition(metric: Metric, words: Words) -> Definition:
    name = f"metric.{metric.id}"
    return Definition(
        metric.id,
        words(f"{name}.label"),
        metric.unit,
        words(f"{name}.formula"),
        words(f"{name}.scope"),
        words(f"metrics.better.{metric.better}"),
    )
