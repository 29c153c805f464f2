"""The conditions of a run, flattened into named facts: its settings, and what a fair comparison holds fixed."""

from __future__ import annotations

from dataclasses import dataclass

from cbtrace.traces.schema import Engine, Facts, Header, Scalar

UNSET = "unset"
"""A setting that was left to its default."""
ABSENT = "none"
"""Known not to be there."""


@dataclass(frozen=True)
class Setting:
    """One setting of the engine: what was asked for and what it worked with. ``None`` is unknown."""

    name: str
    requested: Scalar
    resolved: Scalar

    @property
    def overruled(self) -> bool:
        """Whether the engine works with another value than the one that was asked for."""
        return self.requested not in (UNSET, None) and self.requested != self.resolved


@dataclass(frozen=True)
class Fact:
    """One condition that a fair comparison must hold fixed. ``None`` is unknown."""

    name: str
    value: Scalar

    @property
    def told(self) -> bool:
        """Whether it says more than that something was left alone or is not there."""
        return self.value not in (UNSET, ABSENT)


def settings(engine: Engine) -> list[Setting]:
    """All settings by name, requested beside resolved."""
    names = sorted(set(engine.requested) | set(engine.resolved))
    return [Setting(name, engine.requested.get(name), engine.resolved.get(name)) for name in names]


def conditions(header: Header, engine: Engine | None) -> list[Fact]:
    """Fingerprint, model facts and generation settings, by dotted name.

    Without a GPU, what would be said of one is absent, not unknown.
    """
    facts: Facts = dict(header.fingerprint)
    if engine is not None:
        facts |= {f"model.{name}": value for name, value in engine.model.items()}
        facts |= {f"generation.{name}": value for name, value in engine.generation.items()}
    if facts.get("hardware.gpu.name") == ABSENT:
        for name, value in facts.items():
            if value is None and (name.startswith("hardware.gpu.") or name == "software.driver"):
                facts[name] = ABSENT
    return [Fact(name, facts[name]) for name in sorted(facts)]
