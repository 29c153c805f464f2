"""From a plan to its runs: the variants with all that they inherit, the four stages, the order of the runs."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from cbtrace.recorder.experiments.plan_spec import BASELINE, DEFAULT_WORKLOAD, Plan, Variant, named_values
from cbtrace.recorder.experiments.settings import SettingValue, absolute, is_relative, resolved_value
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.static_batches import BatchBy
from cbtrace.traces.experiment import RunEntry, StageEntry, VariantEntry
from cbtrace.traces.schema import Scalar

STAGES = (
    StageEntry(1, "Correctness and automatic baseline"),
    StageEntry(2, "Input budget"),
    StageEntry(3, "KV cache and reserve"),
    StageEntry(4, "Advanced features"),
)


@dataclass(frozen=True)
class PlannedVariant:
    """One setting under test, with everything it inherits."""

    name: str
    stage: int
    kind: Literal["continuous", "static"] = "continuous"
    based_on: str = ""
    changes: tuple[tuple[str, SettingValue], ...] = ()
    together: bool = False
    settings: tuple[tuple[str, SettingValue], ...] = ()
    """All settings that are given, its own and inherited; shares of the baseline's values are not yet worked out."""
    pinned: tuple[str, ...] = ()
    dtype: str | None = None
    attention: str | None = None
    workload: str = DEFAULT_WORKLOAD
    needs: str | None = None
    batch_size: int = 0
    batch_by: BatchBy = "arrival"

    @property
    def needs_baseline(self) -> bool:
        """Whether its settings depend on what the baseline's engine resolved."""
        return bool(self.pinned) or any(is_relative(value) for _, value in self.settings)

    def entry(self) -> VariantEntry:
        """As ``experiment.json`` tells it."""
        return VariantEntry(
            name=self.name,
            stage=self.stage,
            kind=self.kind,
            workload=self.workload,
            based_on=self.based_on,
            changes=dict(self.changes),
            together=self.together,
            pinned=list(self.pinned),
        )

    def resolved_settings(self, resolved: Mapping[str, Scalar]) -> dict[str, SettingValue]:
        """The settings to ask the engine for, given what the baseline's engine resolved.

        Raises:
            SpecError: the baseline's trace does not tell a value that is needed.
        """
        given = {name: absolute(name, value, resolved) for name, value in self.settings}
        pins: dict[str, SettingValue] = {
            name: resolved_value(name, resolved) for name in self.pinned if name not in dict(self.settings)
        }
        return {**pins, **given}


def variants_of(plan: Plan) -> list[PlannedVariant]:
    """All variants, the baseline first, then by stage in the order of the plan."""
    baseline = PlannedVariant(BASELINE, 1, settings=tuple(plan.settings.given().items()))
    found = {BASELINE: baseline}
    for variant in plan.variants:
        parent = found[variant.from_]
        for name, given in named_values(variant):
            found[name] = _static(name, variant) if variant.kind == "static" else _changed(parent, name, variant, given)
    return sorted(found.values(), key=lambda variant: variant.stage)


def _static(name: str, variant: Variant) -> PlannedVariant:
    others = {key: getattr(variant, key) for key in ("dtype", "attention", "workload")}
    return PlannedVariant(
        name=name,
        stage=variant.stage,
        kind="static",
        based_on=BASELINE,
        changes=(("batching", "static"), *((key, value) for key, value in others.items() if value is not None)),
        together=variant.together,
        dtype=variant.dtype,
        attention=variant.attention,
        workload=variant.workload or DEFAULT_WORKLOAD,
        needs=variant.needs,
        batch_size=variant.batch_size or 1,
        batch_by=variant.batch_by,
    )


def _changed(parent: PlannedVariant, name: str, variant: Variant, given: Mapping[str, SettingValue]) -> PlannedVariant:
    others = {key: getattr(variant, key) for key in ("dtype", "attention", "workload")}
    changed = {**given, **{key: value for key, value in others.items() if value is not None}}
    return PlannedVariant(
        name=name,
        stage=variant.stage,
        based_on=variant.from_,
        changes=tuple(changed.items()),
        together=variant.together,
        settings=tuple({**dict(parent.settings), **given}.items()),
        pinned=tuple(dict.fromkeys([*parent.pinned, *variant.pin])),
        dtype=variant.dtype or parent.dtype,
        attention=variant.attention or parent.attention,
        workload=variant.workload or parent.workload,
        needs=variant.needs or parent.needs,
    )


def runs_of(plan: Plan, variants: list[PlannedVariant]) -> list[RunEntry]:
    """All runs in the order they are to be run.

    ``interleaved``: every round runs each variant once, so that a slow change of the machine meets all of them alike.
    ``by_stage``: the same within each stage. ``random``: shuffled, the same way every time; a run of the baseline goes
    first, for others may need what it resolves.
    """
    pairs = [(variant, repeat) for repeat in range(1, plan.repeats + 1) for variant in variants]
    if plan.order == "by_stage":
        pairs.sort(key=lambda pair: pair[0].stage)
    elif plan.order == "random":
        first, rest = pairs[0], pairs[1:]
        random.Random(plan.seed).shuffle(rest)
        pairs = [first, *rest]
    slugs = _slugs(variants)
    return [
        RunEntry(
            id=f"s{variant.stage}-{slugs[variant.name]}-r{repeat}",
            variant=variant.name,
            stage=variant.stage,
            repeat=repeat,
        )
        for variant, repeat in pairs
    ]


def _slugs(variants: list[PlannedVariant]) -> dict[str, str]:
    """A name for each variant that can be part of a file's name on every system."""
    slugs: dict[str, str] = {}
    for variant in variants:
        slug = re.sub(r"[^a-z0-9.]+", "-", variant.name.lower()).strip("-.")[:48] or "variant"
        while slug in slugs.values():
            slug += "-x"
        slugs[variant.name] = slug
    return slugs


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """The plan with its defaults filled in; files and folders by their name alone, since paths tell of a machine."""
    data: dict[str, Any] = msgspec.to_builtins(plan, str_keys=True)
    _shorten(data)
    return data


def _shorten(data: Any) -> None:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, (dict, list)):
            _shorten(value)
        elif key == "file" or (key == "source" and value.startswith((".", "/", "~"))):
            data[key] = value.rstrip("/").rpartition("/")[2]


def plan_digest(plan: Plan) -> str:
    """Tells whether two plans are the same."""
    return hashlib.blake2b(msgspec.json.encode(plan, order="deterministic"), digest_size=8).hexdigest()


def check_pins(variant: PlannedVariant, resolved: Mapping[str, Scalar] | None) -> str:
    """Why a variant cannot be run yet; empty when it can."""
    if not variant.needs_baseline:
        return ""
    if resolved is None:
        return "It needs what the baseline's engine resolved, and no run of the baseline was done."
    try:
        variant.resolved_settings(resolved)
    except SpecError as error:
        return str(error)
    return ""
