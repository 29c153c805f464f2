"""What a plan consists of: what is held fixed, what is changed, one variable at a time, and how often it is run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.settings import Settings, SettingValue
from cbtrace.recorder.experiments.workload import WorkloadSpec

BASELINE = "baseline"
DEFAULT_WORKLOAD = "default"

Seconds = Annotated[float, Meta(gt=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=80)]
Dtype = Literal["float32", "bfloat16", "float16"]
Order = Literal["interleaved", "by_stage", "random"]


class Generation(Struct, forbid_unknown_fields=True, frozen=True):
    """How tokens are chosen and what ends a request before its limit."""

    end_token: Annotated[int, Meta(ge=0)] | Literal["none", "model"] = "none"
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
    gpus: Annotated[int, Meta(ge=1, le=1024)] | UnsetType = UNSET
    """Whole GPUs that a run gets on a cluster; if not given, one where there are GPUs and the model may use one."""

    def workload_named(self, name: str) -> WorkloadSpec:
        """The workload of that name; the plan's own one is called ``default``."""
        return self.workload if name == DEFAULT_WORKLOAD else self.workloads[name]


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
