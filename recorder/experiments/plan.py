"""Plans: one file says what is held fixed, what is changed, one variable at a time, and how often it is repeated.

A plan is a TOML file. Everything in it is checked before anything runs, and a mistake is told with its line.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from cbtrace.recorder.experiments.arrivals import Arrivals
from cbtrace.recorder.experiments.lengths import Empirical, Lengths
from cbtrace.recorder.experiments.model_source import ModelSource, check_source
from cbtrace.recorder.experiments.settings import RESOLVABLE, Settings, SettingValue, is_relative
from cbtrace.recorder.experiments.spec_error import Path as At
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.toml_lines import TomlLines
from cbtrace.recorder.experiments.workload import WorkloadSpec, check_workload
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity

BASELINE = "baseline"
DEFAULT_WORKLOAD = "default"

Seconds = Annotated[float, Meta(gt=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=80)]
Dtype = Literal["float32", "bfloat16", "float16"]
Order = Literal["interleaved", "by_stage", "random"]


class Generation(Struct, forbid_unknown_fields=True, frozen=True):
    """How tokens are chosen and what ends a request before its limit."""

    end_token: int | Literal["none", "model"] = "none"
    """``none``: requests run to their limit, so that every run does the same work. ``model``: the model's own."""
    do_sample: bool = False
    temperature: Annotated[float, Meta(gt=0)] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None


class Variant(Struct, forbid_unknown_fields=True, frozen=True, rename={"from_": "from"}):
    """One change, or one variable with several values; each value is a variant of its own."""

    stage: Annotated[int, Meta(ge=1, le=4)]
    name: Name | None = None
    kind: Literal["continuous", "static"] = "continuous"
    from_: str = BASELINE
    """The variant that this one changes."""
    set: Settings = Settings()
    vary: str | None = None
    values: list[Any] = field(default_factory=list)
    pin: list[str] = field(default_factory=list)
    """Settings that take the value the baseline *resolved*, so that the engine cannot choose another."""
    dtype: Dtype | None = None
    attention: str | None = None
    workload: str | None = None
    together: bool = False
    """More than one variable is changed, on purpose: effects cannot be told apart, and reports say so."""
    needs: Literal["cuda"] | None = None
    """Skipped where there is no such device."""
    batch_size: Annotated[int, Meta(ge=1)] | None = None
    """Static batching: requests a batch."""
    batch_by: Literal["arrival", "length"] = "arrival"
    """Static batching: which of the waiting requests go together."""


class TimeLimits(Struct, forbid_unknown_fields=True, frozen=True):
    """When a run is given up."""

    run_s: Seconds = 600
    """A run that takes longer is ended (*timeout*)."""
    stall_s: Seconds = 60
    """An engine that finishes no step for so long, with requests pending, is ended (*hang*)."""


class Slos(Struct, forbid_unknown_fields=True, frozen=True):
    """What must hold for a variant to be adopted. ``None``: not asked for."""

    ttft_p95_ms: Annotated[float, Meta(gt=0)] | None = None
    token_gap_p99_ms: Annotated[float, Meta(gt=0)] | None = None
    e2e_p95_ms: Annotated[float, Meta(gt=0)] | None = None
    peak_memory_gib: Annotated[float, Meta(gt=0)] | None = None
    failures: Annotated[int, Meta(ge=0)] = 0


class Plan(Struct, forbid_unknown_fields=True, frozen=True):
    """An experiment: what is run, how often and in which order."""

    name: Name
    model: ModelSource
    workload: WorkloadSpec
    format: Literal[1] = 1
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    repeats: Annotated[int, Meta(ge=1, le=1000)] = 3
    order: Order = "interleaved"
    warmup_requests: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Requests sent through an engine of the same settings before the recorded one, and not recorded."""
    token_ids: bool = True
    """Whether traces store generated token ids. Without them it is known which answers differ, and not where."""
    generation: Generation = Generation()
    settings: Settings = Settings()
    """The baseline's settings; what is not given is the engine's own choice."""
    variants: list[Variant] = field(default_factory=list)
    workloads: dict[str, WorkloadSpec] = field(default_factory=dict)
    """Further workloads that variants may name."""
    time_limits: TimeLimits = TimeLimits()
    slos: Slos = Slos()

    def workload_named(self, name: str) -> WorkloadSpec:
        """The workload of that name; the plan's own one is called ``default``."""
        return self.workload if name == DEFAULT_WORKLOAD else self.workloads[name]


def read_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        SpecError: it is missing or wrong; the message names the line and what to do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read ({error.strerror}): name a plan, or write one with cbtrace plan init.",
            slug="plan-not-found",
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not a text in UTF-8: save it as one.") from error
    try:
        return parse_plan(text, path.parent)
    except SpecError as error:
        line = TomlLines(text).line_of(error.at)
        raise SpecError(f"{path}, line {line}: {error}", at=error.at, slug=error.slug) from error
    except msgspec.DecodeError as error:
        raise SpecError(f"{path}{_syntax(str(error), text)}: correct the TOML.", slug="plan-invalid") from error


def parse_plan(text: str, folder: Path) -> Plan:
    """Make a plan of the text of one. File names in it are relative to ``folder``.

    Raises:
        SpecError: something in it is wrong; ``at`` says where.
        msgspec.DecodeError: it is no TOML.
    """
    raw = msgspec.toml.decode(text.encode())
    workloads = raw.pop("workloads", {})
    plan: Plan = _convert(raw, Plan, ())
    if not isinstance(workloads, dict):
        raise SpecError("workloads must be tables such as [workloads.chat].", at=("workloads",))
    named = {name: _convert(spec, WorkloadSpec, ("workloads", name)) for name, spec in workloads.items()}
    plan = msgspec.structs.replace(plan, workloads=named)
    _check(plan, folder)
    return plan


def _convert(raw: Any, kind: Any, at: At) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), at).under(*at) from None


_WHERE = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def _explained(message: str, above: At = ()) -> SpecError:
    """One sentence, with its place, of what the decoder says of the part of a plan that is ``above``."""
    parts = _WHERE.match(message)
    what, where = (parts[1], parts[2] or "") if parts is not None else (message, "")
    at: At = tuple(key or int(index) for key, index in _STEP.findall(where) if index != "...")
    name = ".".join(str(part) for part in (*above, *at) if isinstance(part, str)) or "the plan"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], _KNOWN, 1)
        remedy = f"did you mean {near[0]}?" if near else "take it out."
        return SpecError(f"{name} has no key {unknown[1]!r}: {remedy}", at=(*at, unknown[1]))
    if missing is not None:
        return SpecError(f"{name} lacks {missing[1]!r}: add it.", at=at)
    what = what.replace("`", "").replace("Expected ", "must be ")
    if "matching regex" in what:
        what = 'must be a whole number above 0, or a share of the baseline\'s value such as "50%"'
    if at[-1:] == ("kind",):
        what += f" (name one of {', '.join(_KINDS)})"
    return SpecError(f"{name}: {what[0].lower()}{what[1:]}: change its value.", at=at)


def _fields(*kinds: Any) -> list[str]:
    return sorted({name for kind in kinds for name in kind.__struct_encode_fields__})


_KINDS = sorted(
    str(kind.__struct_config__.tag) for union in (WorkloadSpec, Lengths, Arrivals) for kind in union.__args__
)
_KNOWN = _fields(Plan, ModelSource, Generation, Variant, Settings, TimeLimits, Slos, *WorkloadSpec.__args__)


def _syntax(message: str, text: str) -> str:
    """Bring the parser's "(at line 3, column 5)" to the front, as in all other messages."""
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    if place is None:
        return f": {message}"
    line = place[1] or str(text.count("\n") + 1)
    return f", line {line}: {message[: place.start()]}"


def _check(plan: Plan, folder: Path) -> None:
    """Check what the types cannot tell."""
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
        elif name == "file" and not (folder / Path(value).expanduser()).is_file():
            raise SpecError(f"There is no file {value}: name one that exists, relative to the plan.", at=(name,))


def _check_variant(plan: Plan, variant: Variant, known: set[str]) -> set[str]:
    """Check one variant; return the names it adds."""
    if variant.from_ not in known:
        raise SpecError(
            f"There is no variant {variant.from_!r} above this one: name one of {', '.join(sorted(known))}.",
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
    _check_one_variable(variant)
    names = {name for name, _ in named_values(variant)}
    taken = names & known
    if taken:
        raise SpecError(f"A variant is called {sorted(taken)[0]!r} already: give this one another name.", at=("name",))
    return names


def _check_static(variant: Variant) -> None:
    if variant.set.given() or variant.vary or variant.pin:
        raise SpecError(
            "Static batching has none of the engine's settings: take set, vary and pin out, and give batch_size.",
            at=("set",) if variant.set.given() else ("vary",),
        )
    if variant.batch_size is None:
        raise SpecError("Static batching needs a batch_size: add it.", at=("kind",))


def _check_one_variable(variant: Variant) -> None:
    given = variant.set.given()
    changes = [*given, *(name for name in ("dtype", "attention", "workload") if getattr(variant, name) is not None)]
    if variant.vary is not None:
        _check_values(variant)
        changes.append(variant.vary)
    if len(changes) > 1 and not variant.together:
        raise SpecError(
            f"It changes {len(changes)} variables ({', '.join(changes)}), and their effects could not be told apart: "
            "change one, build on another variant with from, or say together = true.",
            at=("set",) if len(given) > 1 else (changes[-1],),
        )
    if not changes and variant.kind == "continuous" and not variant.pin:
        raise SpecError("It changes nothing: give it set, or vary and values.")
    if "max_memory_percent" in changes and "num_blocks" in variant.pin:
        raise SpecError("max_memory_percent has no effect while num_blocks is pinned: take it out of pin.", at=("pin",))


def _check_values(variant: Variant) -> None:
    if variant.vary not in Settings.__struct_fields__:
        near = difflib.get_close_matches(str(variant.vary), Settings.__struct_fields__, 1)
        remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(Settings.__struct_fields__)}."
        raise SpecError(f"There is no setting {variant.vary!r}: {remedy}", at=("vary",))
    if not variant.values:
        raise SpecError("It has no values to take: add values = [...].", at=("vary",))
    for value in variant.values:
        try:
            msgspec.convert({variant.vary: value}, Settings)
        except msgspec.ValidationError as error:
            raise SpecError(f"values: {_explained(str(error))}", at=("values",)) from None


def named_values(variant: Variant) -> list[tuple[str, dict[str, SettingValue]]]:
    """The variants that an entry stands for: a name, and the settings it changes."""
    given = variant.set.given()
    if variant.vary is None:
        name = variant.name or _default_name(variant, given)
        return [(name, given)]
    prefix = variant.name or variant.vary
    return [(f"{prefix}={_value(value)}", {**given, variant.vary: value}) for value in variant.values]


def _default_name(variant: Variant, given: dict[str, SettingValue]) -> str:
    if variant.kind == "static":
        return "static"
    extra = {name: getattr(variant, name) for name in ("dtype", "attention", "workload")}
    changes = {**given, **{name: value for name, value in extra.items() if value is not None}}
    return ",".join(f"{name}={_value(value)}" for name, value in changes.items()) or "pinned"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


declare(
    "plan-not-found",
    Severity.BROKEN,
    "There is no plan of that name that can be read.",
    "Write one with `cbtrace plan init -o plan.toml`.",
)
