"""Which settings differ between two sides, and which of these are variables.

A setting that was asked for is a variable, and so is one that the engine resolved differently by itself. What only
follows from another one by its meaning, has no effect, or wavers with free memory, is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cbtrace.site.analysis.run_conditions import RunConditions
from cbtrace.site.analysis.side_values import differ, known, names_in, numbers, shown

Role = Literal["changed", "followed", "derived", "inert", "automatic"]
"""``changed``: asked for. ``followed``: resolved to another value without being asked for, and a variable of its own.
The others are none: ``derived`` is what a changed one means (``num_blocks`` of ``max_memory_percent``), ``inert`` has
no effect here, ``automatic`` is a size worked out from free memory, within :data:`AUTOMATIC_SHARE`."""

DERIVED = {
    "num_blocks": ("max_memory_percent", "page_size"),
    "max_memory_percent": ("num_blocks",),
    "max_requests_per_batch": ("max_batch_tokens",),
    "use_prefix_sharing": ("allow_block_sharing",),
    "max_cached_graphs": ("use_cuda_graph",),
    "q_padding_interval_size": ("use_cuda_graph",),
    "kv_padding_interval_size": ("use_cuda_graph",),
}
"""Settings that another one decides by its meaning, where they were not asked for."""
AUTOMATIC = ("num_blocks", "max_batch_tokens")
"""Sizes that the engine works out from the memory that is free when it starts, unless they are asked for."""
AUTOMATIC_SHARE = 0.01
UNASKED = (None, "unset", "none", "0")
"""Requested values that leave a size to the engine."""


@dataclass(frozen=True)
class ComparedSetting:
    """One setting that differs between the sides, or within one (``mixed``)."""

    name: str
    role: Role
    requested_a: str | None
    requested_b: str | None
    resolved_a: str | None
    resolved_b: str | None
    mixed: bool

    @property
    def variable(self) -> bool:
        """Whether it counts as a variable."""
        return self.role in ("changed", "followed")


@dataclass(frozen=True)
class _Setting:
    """One setting over the runs of both sides."""

    name: str
    requested_a: list[str | None]
    requested_b: list[str | None]
    resolved_a: list[str | None]
    resolved_b: list[str | None]

    @property
    def mixed(self) -> bool:
        """Whether the engines of one side worked with different values, by more than free memory wavers."""
        sides = ((self.requested_a, self.resolved_a), (self.requested_b, self.resolved_b))
        return any(
            len(known(resolved)) > 1 and not _wavers(self.name, requested, resolved) for requested, resolved in sides
        )

    @property
    def asked(self) -> bool:
        """Whether what was asked for differs."""
        return differ(self.requested_a, self.requested_b)

    @property
    def differs(self) -> bool:
        """Whether the engines worked with different values; where that is unknown, whether that was asked for."""
        if known(self.resolved_a) and known(self.resolved_b):
            return differ(self.resolved_a, self.resolved_b)
        return self.asked

    @property
    def pinned(self) -> bool:
        """Whether both sides asked for a value."""
        return not any(value in UNASKED for value in (*self.requested_a, *self.requested_b))

    @property
    def wavers(self) -> bool:
        """Whether it is an automatic size that differs between the sides by no more than free memory does."""
        both = bool(known(self.resolved_a)) and bool(known(self.resolved_b))
        requested, resolved = [*self.requested_a, *self.requested_b], [*self.resolved_a, *self.resolved_b]
        return both and _wavers(self.name, requested, resolved)


def _wavers(name: str, requested: list[str | None], resolved: list[str | None]) -> bool:
    """Whether these are automatic sizes that differ by no more than free memory does."""
    if name not in AUTOMATIC or any(value not in UNASKED for value in requested):
        return False
    found = numbers(resolved)
    return bool(found) and max(found) <= min(found) * (1 + AUTOMATIC_SHARE)


def compare_settings(a: Sequence[RunConditions], b: Sequence[RunConditions]) -> list[ComparedSetting]:
    """The settings that differ between the runs of A and B, or within a side, by name."""
    names = names_in(texts for run in (*a, *b) for texts in (run.requested, run.resolved))
    found = {
        name: _Setting(
            name,
            [run.requested.get(name) for run in a],
            [run.requested.get(name) for run in b],
            [run.resolved.get(name) for run in a],
            [run.resolved.get(name) for run in b],
        )
        for name in names
    }
    differing = {name: values for name, values in found.items() if values.differs or values.mixed}
    changed = {name for name, values in differing.items() if values.asked and not _inert(name, found)}
    return [
        ComparedSetting(
            name,
            _role(values, changed, found),
            shown(values.requested_a),
            shown(values.requested_b),
            shown(values.resolved_a),
            shown(values.resolved_b),
            values.mixed,
        )
        for name, values in differing.items()
    ]


def _role(values: _Setting, changed: set[str], found: dict[str, _Setting]) -> Role:
    if values.wavers:
        return "automatic"
    if values.name in changed:
        return "changed"
    if not values.asked and any(source in changed for source in DERIVED.get(values.name, ())):
        return "derived"
    return "inert" if _inert(values.name, found) else "followed"


def _inert(name: str, found: dict[str, _Setting]) -> bool:
    """The share of memory only decides sizes. It does nothing where these are asked for, come out the same, or were
    changed themselves: then the size is the variable."""
    if name != "max_memory_percent":
        return False
    sizes = [found[size] for size in AUTOMATIC if size in found]
    return len(sizes) == len(AUTOMATIC) and all(
        size.pinned or size.asked or (bool(known(size.resolved_a)) and not size.differs and not size.mixed)
        for size in sizes
    )
