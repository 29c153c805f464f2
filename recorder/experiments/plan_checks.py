"""Checks of a plan that its types cannot make: what does not exist, or does not fit together."""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec
from msgspec import Struct

from cbtrace.recorder.experiments.lengths import Empirical
from cbtrace.recorder.experiments.model_source import check_source
from cbtrace.recorder.experiments.plan_messages import explained
from cbtrace.recorder.experiments.plan_spec import BASELINE, DEFAULT_WORKLOAD, Generation, Plan, Variant, named_values
from cbtrace.recorder.experiments.settings import RESOLVABLE, Settings, is_relative
from cbtrace.recorder.experiments.spec_error import Path as At
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.workload import WorkloadSpec, check_workload


def check_plan(plan: Plan, folder: Path) -> None:
    """Raise :class:`SpecError` for the first thing that is wrong; ``folder`` is what file names are relative to."""
    try:
        check_source(plan.model, folder)
    except SpecError as error:
        raise error.under("model") from None
    _check_one_workload(plan.workload, folder, ("workload",))
    for name, spec in plan.workloads.items():
        if name == DEFAULT_WORKLOAD:
            raise SpecError("The plan's own workload is called default: choose another name.", at=("workloads", name))
        _check_one_workload(spec, folder, ("workloads", name))
    for name, value in plan.settings.given().items():
        if is_relative(value):
            raise SpecError(f"{name} cannot be a share of itself: give a number.", at=("settings", name))
    _check_sampling(plan.generation)
    known = {BASELINE}
    for number, variant in enumerate(plan.variants):
        try:
            known |= _check_variant(plan, variant, known)
        except SpecError as error:
            raise error.under("variants", number) from None


def _check_one_workload(spec: WorkloadSpec, folder: Path, at: At) -> None:
    try:
        check_workload(spec)
        _check_files(spec, folder)
    except SpecError as error:
        raise error.under(*at) from None


def _check_files(spec: Struct, folder: Path) -> None:
    for name in spec.__struct_fields__:
        value = getattr(spec, name)
        if isinstance(value, Empirical):
            try:
                _check_files(value, folder)
            except SpecError as error:
                raise error.under(name) from None
        elif name == "file" and not _is_file(folder, value):
            raise SpecError(f"There is no file {value}: name one that exists, relative to the plan.", at=(name,))


def _is_file(folder: Path, name: str) -> bool:
    try:
        return (folder / Path(name).expanduser()).is_file()
    except (OSError, RuntimeError):  # A name that is too long, or the home of nobody.
        return False


def _check_sampling(generation: Generation) -> None:
    for name in ("temperature", "top_k", "top_p"):
        if getattr(generation, name) is not None and not generation.do_sample:
            raise SpecError(
                f"{name} has no effect without do_sample: say do_sample = true, or take it out.",
                at=("generation", name),
            )


def _check_variant(plan: Plan, variant: Variant, known: set[str]) -> set[str]:
    """Check one variant; return the names it adds."""
    if variant.from_ not in known:
        raise SpecError(
            f"There is no variant {variant.from_!r} above this one: name one of {', '.join(sorted(known))}.",
            at=("from",),
        )
    if any(entry.kind == "static" and variant.from_ in _names(entry) for entry in plan.variants):
        raise SpecError(
            f"{variant.from_} is static batching, which has none of the engine's settings: build on another variant.",
            at=("from",),
        )
    if variant.workload is not None and variant.workload not in (DEFAULT_WORKLOAD, *plan.workloads):
        raise SpecError(
            f"There is no workload {variant.workload!r}: add [workloads.{variant.workload}].", at=("workload",)
        )
    for name in variant.pin:
        if name not in RESOLVABLE:
            raise SpecError(f"{name} cannot be pinned: name some of {', '.join(RESOLVABLE)}.", at=("pin",))
    if variant.kind == "static":
        _check_static(variant)
    elif variant.batch_size is not None or variant.batch_by != "arrival":
        at = "batch_by" if variant.batch_size is None else "batch_size"
        raise SpecError(f'{at} is for static batching: take it out, or say kind = "static".', at=(at,))
    _check_one_variable(variant)
    names = _names(variant)
    taken = names & known
    if taken:
        raise SpecError(f"A variant is called {sorted(taken)[0]!r} already: give this one another name.", at=("name",))
    return names


def _names(variant: Variant) -> set[str]:
    return {name for name, _ in named_values(variant)}


def _check_static(variant: Variant) -> None:
    if variant.set.given() or variant.vary or variant.pin:
        raise SpecError(
            "Static batching has none of the engine's settings: take set, vary and pin out, and give batch_size.",
            at=("set",) if variant.set.given() else ("vary",),
        )
    if variant.from_ != BASELINE:
        raise SpecError(
            "Static batching takes nothing over from another variant: take from out, and give it a workload or dtype "
            "of its own where it needs one.",
            at=("from",),
        )
    if variant.batch_size is None:
        raise SpecError("Static batching needs a batch_size: add it.", at=("kind",))


def _check_one_variable(variant: Variant) -> None:
    given = variant.set.given()
    changes = [*given, *(name for name in ("dtype", "attention", "workload") if getattr(variant, name) is not None)]
    if variant.vary is not None:
        _check_values(variant)
        changes.append(variant.vary)
    elif variant.values:
        raise SpecError("values belongs to vary: name the setting that takes them.", at=("values",))
    if len(changes) > 1 and not variant.together:
        raise SpecError(
            f"It changes {len(changes)} variables ({', '.join(changes)}), and their effects could not be told apart: "
            "change one, build on another variant with from, or say together = true.",
            at=("set",) if len(given) > 1 else (changes[-1],),
        )
    if not changes and variant.kind == "continuous" and not variant.pin:
        raise SpecError("It changes nothing: give it set, or vary and values.")
    for name in variant.pin:
        if name in changes:
            raise SpecError(f"{name} is changed here, so that it cannot be pinned: take it out of pin.", at=("pin",))
    if "max_memory_percent" in changes and "num_blocks" in variant.pin:
        raise SpecError("max_memory_percent has no effect while num_blocks is pinned: take it out of pin.", at=("pin",))


def _check_values(variant: Variant) -> None:
    if variant.vary not in Settings.__struct_fields__:
        near = difflib.get_close_matches(str(variant.vary), Settings.__struct_fields__, 1)
        remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(Settings.__struct_fields__)}."
        raise SpecError(f"There is no setting {variant.vary!r}: {remedy}", at=("vary",))
    if not variant.values:
        raise SpecError("It has no values to take: add values = [...].", at=("vary",))
    for number, value in enumerate(variant.values):
        if value in variant.values[:number]:
            raise SpecError(f"{value} stands there twice: name each value once.", at=("values",))
        try:
            msgspec.convert({variant.vary: value}, Settings)
        except msgspec.ValidationError as error:
            raise SpecError(f"values: {explained(str(error))}", at=("values",)) from None
