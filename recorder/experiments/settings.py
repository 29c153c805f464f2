"""The engine's settings as plans name them, and how they reach the installed version of Transformers.

They are the fields of Transformers' ``ContinuousBatchingConfig``. A size may also be given as a share of what the
baseline resolved it to, such as ``"50%"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from cbtrace.recorder.errors import RecordError
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Scalar, Severity

Percent = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?%$")]
Size = Annotated[int, Meta(ge=1)] | Percent | UnsetType
Share = Annotated[float, Meta(ge=0, le=1)]
SettingValue = Scalar | list[bool]

AUTOMATIC_BYTES = 512 << 20
"""On a CPU, an engine that sizes itself may take this much."""
_LEAST_BYTES = 32 << 20


class Settings(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Settings that a plan gives; the others are left to the engine."""

    page_size: Annotated[int, Meta(ge=4)] | UnsetType = UNSET
    """Tokens of a KV page (``block_size`` up to Transformers 5.17, which plans need not know)."""
    num_blocks: Size = UNSET
    max_batch_tokens: Size = UNSET
    max_requests_per_batch: Size = UNSET
    max_memory_percent: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    max_blocks_per_request: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    allow_block_sharing: bool | UnsetType = UNSET
    use_async_batching: bool | UnsetType = UNSET
    use_cuda_graph: bool | tuple[bool, bool] | UnsetType = UNSET
    q_padding_interval_size: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    kv_padding_interval_size: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    default_compile_level: Annotated[int, Meta(ge=0, le=3)] | UnsetType = UNSET
    scheduler_type: Literal["fifo", "prefill_first"] | UnsetType = UNSET
    safety_margin: Share | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] | UnsetType = UNSET
    auto_switch_to_flash: bool | UnsetType = UNSET
    cpu_offload_space: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    cpu_offload_space_safety_threshold: Share | UnsetType = UNSET

    def given(self) -> dict[str, SettingValue]:
        """The settings that are given, by name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in values if value is not UNSET
        }


RESOLVABLE = (
    "page_size",
    "num_blocks",
    "max_batch_tokens",
    "max_requests_per_batch",
    "max_blocks_per_request",
    "safety_margin",
)
"""Settings whose value the engine works out, and that can be taken over from the baseline."""


def is_relative(value: object) -> bool:
    """Whether a value is a share of what the baseline resolved."""
    return isinstance(value, str) and value.endswith("%")


def absolute(name: str, value: SettingValue, resolved: Mapping[str, Scalar]) -> SettingValue:
    """Work out a share of the baseline's value; other values stay.

    Raises:
        SpecError: the baseline's value is not known.
    """
    if not isinstance(value, str) or not is_relative(value):
        return value
    return max(1, round(float(value[:-1]) / 100 * resolved_value(name, resolved)))


def resolved_value(name: str, resolved: Mapping[str, Scalar]) -> int | float:
    """What the baseline's engine resolved a setting to.

    Raises:
        SpecError: its trace does not tell.
    """
    if name == "page_size":
        name = "page_size" if "page_size" in resolved else "block_size"
    value = resolved.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpecError(f"The baseline's trace does not tell what {name} was resolved to: give a number instead.")
    return value


def engine_config(settings: Mapping[str, SettingValue], device: str) -> Any:
    """Make the installed version's ``ContinuousBatchingConfig``.

    Raises:
        RecordError: the installed version lacks a setting.
    """
    import dataclasses

    from transformers import ContinuousBatchingConfig

    fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    if "page_size" in given and "page_size" not in fields:
        given["block_size"] = given.pop("page_size")
    if given.get("auto_switch_to_flash") is False and "auto_switch_to_flash" not in fields:
        del given["auto_switch_to_flash"]  # Versions without the setting never switch.
    unknown = sorted(set(given) - fields)
    if unknown:
        raise RecordError(
            f"The installed Transformers has no setting {unknown[0]}: take it out of the plan, or install another.",
            slug="setting-unknown",
        )
    if device == "cpu" and "max_memory_percent" not in given:
        # An engine that is given its size checks it against this share: the very size that the baseline came to
        # must not fail because a few bytes less are free this time.
        given["max_memory_percent"] = automatic_share() * (2 if "num_blocks" in given else 1)
    return ContinuousBatchingConfig(**given)


def automatic_share() -> float:
    """The share of memory that an engine on a CPU may take.

    Left to itself it takes 60 to 90 % of the device's memory, and on a CPU that is the machine's: the KV cache of the
    smallest model would be made as large, the rest of the machine swapped out, and every step read through it.
    """
    import psutil

    memory = psutil.virtual_memory()
    share = AUTOMATIC_BYTES
    # Halved where memory is short, and not taken from what is free just now: all runs are to get the same.
    while share > memory.available / 2 and share > _LEAST_BYTES:
        share //= 2
    return share / int(memory.total)


declare(
    "setting-unknown",
    Severity.BROKEN,
    "A plan names a setting that this version of Transformers does not have.",
    "Take the setting out of the plan, or install a version that has it.",
)
