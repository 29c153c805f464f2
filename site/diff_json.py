"""The JSON form of a comparison, described key by key in ``docs/diff.md``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cbtrace.site.analysis.comparability import Comparability
from cbtrace.site.analysis.comparison import ComparedValue
from cbtrace.site.analysis.gate import GateResult
from cbtrace.site.analysis.noise import HEADLINE_LEVEL, LEVEL, Judgement
from cbtrace.site.diff import Diff, DiffRun

DIFF_SCHEMA = 1
"""A key never changes its meaning under one number; keys may be added."""


def diff_json(diff: Diff) -> dict[str, Any]:
    """Plain types; numbers are not rounded."""
    return {
        "schema": DIFF_SCHEMA,
        "a": [_run(run) for run in diff.a],
        "b": [_run(run) for run in diff.b],
        "headline": asdict(diff.comparison.headline) | {"level": HEADLINE_LEVEL},
        "comparability": _comparability(diff.comparison.comparability),
        "correctness": asdict(diff.correctness),
        "values": {it.value.key: _value(it) for it in diff.comparison.values},
        "level": LEVEL,
        "gates": [_gate(result) for result in diff.gates],
    }


def _run(run: DiffRun) -> dict[str, Any]:
    conditions = run.measured.conditions
    return {
        "trace": str(run.path),
        "run_id": run.run_id,
        "name": run.name,
        "tags": dict(conditions.tags),
        "recorded_ns": conditions.recorded_ns,
        "whole": conditions.whole,
        "predicted": conditions.predicted,
    }


def _comparability(found: Comparability) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "variables": found.variables,
        "unlike": found.categories,
        "same_work": found.same_work,
        "attributable": found.attributable,
        "whole": found.whole,
        "apart": found.apart,
        "conditions": [asdict(fact) for fact in found.conditions if fact.state != "same"],
        "settings": [asdict(setting) for setting in found.settings],
        "tags": [asdict(tag) for tag in found.tags],
    }


def _value(compared: ComparedValue) -> dict[str, Any]:
    return {
        "unit": compared.value.unit,
        "better_is": compared.value.better,
        "a": compared.a,
        "b": compared.b,
        "direction": compared.direction or None,
        **_judgement(compared.judgement),
    }


def _judgement(found: Judgement) -> dict[str, Any]:
    return {
        "runs_a": found.runs_a,
        "runs_b": found.runs_b,
        "mean_a": found.mean_a,
        "mean_b": found.mean_b,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "band": found.band,
        "change": found.change,
        "change_low": found.relative(found.low),
        "change_high": found.relative(found.high),
        "word": found.word,
        "why": found.why,
    }


def _gate(result: GateResult) -> dict[str, Any]:
    beyond = result.beyond
    return {
        "condition": result.condition.text,
        "metric": result.condition.value.key,
        "state": result.state,
        "why": result.why,
        "beyond": beyond.difference,
        "beyond_low": beyond.low,
        "beyond_high": beyond.high,
    }
