"""Can two sides be compared, and what differs between them? Asked before any number is.

A side is one run, or several repeats of one setting. *Conditions* (hardware, model, workload, versions, ...) must be
the same; *settings* may differ, and each that does is one variable. What the engine resolved counts, not only what was
asked for: ``prefill_first`` has another default margin than ``fifo``, so that changing the scheduler alone changes two
things.

The rules are data (:func:`comparability_rules`): the browser applies the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cbtrace.site.analysis.compared_settings import (
    AUTOMATIC,
    AUTOMATIC_SHARE,
    DERIVED,
    UNASKED,
    ComparedSetting,
    compare_settings,
)
from cbtrace.site.analysis.run_conditions import RunConditions, Texts
from cbtrace.site.analysis.side_values import differ, known, names_in, shown

State = Literal["same", "differs", "unknown"]
Kind = Literal["same", "declared", "one", "resolved", "several", "unlike", "mixed", "predicted"]
"""``same``: repeats of one setting. ``declared``: the same, but tags say that something else differs. ``one``: one
setting differs. ``resolved``: one was changed, and the engine resolved others differently too. ``several``: more than
one was changed. ``unlike``: a condition differs. ``mixed``: the runs of a side are not repeats of one setting.
``predicted``: a run was not measured."""

CATEGORIES = (
    ("hardware.gpu.other_processes", "moment"),
    ("placement.", "placement"),
    ("environment.CUDA_VISIBLE_DEVICES", "placement"),
    ("measurement.", "recording"),
    ("software.cbtrace", "recording"),
    ("ranks.rank", "recording"),
    ("ranks.", "hardware"),
    ("hardware.", "hardware"),
    ("model.device", "hardware"),
    ("model.dtype", "dtype"),
    ("model.", "model"),
    ("generation.", "generation"),
    ("workload.", "workload"),
    ("requests.", "workload"),
    ("software.", "version"),
    ("batching", "batching"),
)
"""Category of a condition by the start of its name, the first that fits; ``environment`` for all others."""
NO_CONDITION = ("moment", "placement", "recording")
"""Categories that are shown and never make runs unlike: the load of the moment, which of the machines and GPUs of a
cluster a run got (what these *are* is hardware), and how the run was recorded."""
OTHER_WORK = ("model", "generation", "workload")
"""Categories in which a difference means that the sides did not do the same work: nothing is better or worse then."""
NOT_TO_BLAME = (*OTHER_WORK, "hardware")
"""Categories in which a difference explains any change, so that a gate cannot tell."""

EXPERIMENT_TAGS = (
    "experiment", "stage", "variant", "repeat", "workload", "batching", "based_on", "changes", "pinned",
)  # fmt: skip
"""Tags that an experiment writes (one named ``experiment`` is among them): they repeat what the settings say."""


@dataclass(frozen=True)
class ComparedFact:
    """One condition. A side whose runs differ among themselves has all their values in its text, and is ``mixed``."""

    name: str
    category: str
    a: str | None
    b: str | None
    state: State
    mixed: bool


@dataclass(frozen=True)
class ComparedTag:
    """A tag that all runs of a side share and that the other side does not have; empty when a side has none."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Comparability:
    """What differs between two sides, and what that means for a comparison."""

    kind: Kind
    conditions: list[ComparedFact]
    settings: list[ComparedSetting]
    tags: list[ComparedTag]
    whole: bool
    """Everything that was recorded was read, of every run."""
    apart: bool
    """All runs of one side were recorded before the first of the other. A slow change of the machine (warmth, another
    load) then looks like a difference of the sides, and no statistics can tell; recorded in turn, it meets both."""

    @property
    def unlike(self) -> list[ComparedFact]:
        """Conditions that differ and count."""
        return [fact for fact in self.conditions if fact.state == "differs" and fact.category not in NO_CONDITION]

    @property
    def unknown(self) -> list[ComparedFact]:
        """Conditions that are not known on both sides: they may differ."""
        return [fact for fact in self.conditions if fact.state == "unknown" and fact.category not in NO_CONDITION]

    @property
    def categories(self) -> list[str]:
        """In which categories the sides are unlike, each once."""
        return sorted({fact.category for fact in self.unlike})

    @property
    def variables(self) -> list[str]:
        """Settings that differ and count, those that were asked for first."""
        return [s.name for role in ("changed", "followed") for s in self.settings if s.role == role]

    @property
    def same_work(self) -> bool:
        """Whether both sides did the same work, so that one can be better than the other."""
        return self.kind not in ("mixed", "predicted") and not set(self.categories) & set(OTHER_WORK)

    @property
    def attributable(self) -> bool:
        """Whether a change can come from what was meant to differ: a gate needs that."""
        return self.kind not in ("same", "mixed", "predicted") and not set(self.categories) & set(NOT_TO_BLAME)


def compare_conditions(a: Sequence[RunConditions], b: Sequence[RunConditions]) -> Comparability:
    """Compare the runs of A with the runs of B, each one or more."""
    conditions = _conditions(a, b)
    settings = compare_settings(a, b) if not _differs(conditions, "batching") else []
    tags = _declared(a, b)
    return Comparability(
        kind=_kind(conditions, settings, tags, any(run.predicted for run in (*a, *b))),
        conditions=conditions,
        settings=settings,
        tags=tags,
        whole=all(run.whole for run in (*a, *b)),
        apart=_apart([run.recorded_ns for run in a], [run.recorded_ns for run in b]),
    )


def _apart(a: list[int], b: list[int]) -> bool:
    """One run a side is no order: nothing rests on it."""
    return min(len(a), len(b)) > 1 and (max(a) < min(b) or max(b) < min(a))


def _kind(
    conditions: list[ComparedFact], settings: list[ComparedSetting], tags: list[ComparedTag], predicted: bool
) -> Kind:
    counted = [fact for fact in conditions if fact.category not in NO_CONDITION]
    changed = sum(setting.role == "changed" for setting in settings)
    variables = sum(setting.variable for setting in settings)
    if predicted:
        return "predicted"
    if any(fact.mixed for fact in counted) or any(setting.mixed and setting.variable for setting in settings):
        return "mixed"
    if any(fact.state == "differs" for fact in counted):
        return "unlike"
    if variables > 1:
        return "resolved" if changed == 1 else "several"
    if variables == 1:
        return "one"
    return "declared" if tags else "same"


# Conditions ----------------------------------------------------------------------------------------------------------


def _conditions(a: Sequence[RunConditions], b: Sequence[RunConditions]) -> list[ComparedFact]:
    facts = [
        _fact(name, [run.conditions for run in a], [run.conditions for run in b])
        for name in names_in(run.conditions for run in (*a, *b))
    ]
    return _one_workload(facts)


def _fact(name: str, a: list[Texts], b: list[Texts]) -> ComparedFact:
    left, right = [run.get(name) for run in a], [run.get(name) for run in b]
    mixed = len(known(left)) > 1 or len(known(right)) > 1
    state: State = "differs" if mixed or differ(left, right) else "unknown" if None in (*left, *right) else "same"
    return ComparedFact(name, _category(name), shown(left), shown(right), state, mixed)


def _one_workload(facts: list[ComparedFact]) -> list[ComparedFact]:
    """A digest of the whole workload decides alone; without one, the requests that were sent do.

    What else is known of a workload describes it: another name, or a field that an older version does not have, is no
    other workload.
    """
    deciding = next((f for f in facts if f.name == "workload.digest" and f.state != "unknown"), None)
    if deciding is None:
        return facts
    described = [f for f in facts if f.category == "workload" and f is not deciding]
    if deciding.state == "differs":
        return facts
    return [fact for fact in facts if fact not in described]


def _category(name: str) -> str:
    return next((category for start, category in CATEGORIES if name.startswith(start)), "environment")


def _differs(facts: list[ComparedFact], category: str) -> bool:
    return any(fact.state == "differs" and fact.category == category for fact in facts)


# Tags ----------------------------------------------------------------------------------------------------------------


def _declared(a: Sequence[RunConditions], b: Sequence[RunConditions]) -> list[ComparedTag]:
    written = EXPERIMENT_TAGS if any("experiment" in run.tags for run in (*a, *b)) else ()
    found = []
    for name in names_in(run.tags for run in (*a, *b)):
        left, right = {run.tags.get(name, "") for run in a}, {run.tags.get(name, "") for run in b}
        if name not in written and len(left) == len(right) == 1 and left != right:
            found.append(ComparedTag(name, left.pop(), right.pop()))
    return found


def comparability_rules() -> dict[str, Any]:
    """The rules as data, for the browser."""
    return {
        "categories": [list(rule) for rule in CATEGORIES],
        "no_condition": list(NO_CONDITION),
        "other_work": list(OTHER_WORK),
        "not_to_blame": list(NOT_TO_BLAME),
        "derived": {name: list(sources) for name, sources in DERIVED.items()},
        "automatic": list(AUTOMATIC),
        "automatic_share": AUTOMATIC_SHARE,
        "experiment_tags": list(EXPERIMENT_TAGS),
        "unasked": list(UNASKED),
    }
