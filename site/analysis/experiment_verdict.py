"""Adopt, do not adopt, or cannot tell: one verdict a variant, with the line that decided.

The rules are asked in order and the first that speaks decides: whether it ran at all, correctness, SLOs, and only then
speed against the rival, which is the baseline wherever both served the same workload. The texts are words
``experiment.verdict.<rule>``.

Of memory, less by :data:`LESS_MEMORY` at no loss of speed is a gain, and more counts only against an SLO: what fits
costs nothing by itself, and memory hardly varies, so that the smallest change of it is beyond noise.
A loss within an SLO that is met is no loss: the SLO says how much is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cbtrace.site.analysis.comparability import Comparability, compare_conditions
from cbtrace.site.analysis.experiment import ExperimentRun, ExperimentRuns, Variant
from cbtrace.site.analysis.experiment_effects import MEMORY, Effect, effects
from cbtrace.site.analysis.experiment_failures import BEFORE, phase_of, usual_failure
from cbtrace.site.analysis.experiment_slos import Slo, SloCheck, check_slos, slos_of
from cbtrace.site.analysis.noise import LEAST_RUNS

Word = Literal["adopt", "do_not_adopt", "cannot_tell", "baseline", "no_candidate", "not_run"]

LESS_MEMORY = 0.05
"""As a share of the rival's."""


@dataclass(frozen=True)
class Grounds:
    """What a verdict rests on, for its text."""

    numbers: Mapping[str, int | str] = field(default_factory=dict)
    effect: Effect | None = None
    """The change that decided."""
    loss: Effect | None = None
    """What stands against it."""
    check: SloCheck | None = None


@dataclass(frozen=True)
class Verdict:
    """What to do with one variant, and why."""

    variant: Variant
    rival: Variant | None
    word: Word
    rule: str
    """The rule that decided."""
    grounds: Grounds
    checks: list[SloCheck]
    effects: list[Effect]
    likeness: Comparability | None
    """What differs from the rival; ``None`` where one of the two has no run that counts."""

    @property
    def runs(self) -> int:
        """Runs of the variant that it rests on: those that count, and those that failed."""
        return len(self.variant.measured) + len(self.variant.failed)

    @property
    def rival_runs(self) -> int:
        """Runs of the rival that it rests on."""
        return len(self.rival.measured) if self.rival is not None else 0


@dataclass(frozen=True)
class Case:
    """What the rules look at."""

    runs: ExperimentRuns
    variant: Variant
    slos: list[Slo]

    @cached_property
    def rival(self) -> Variant | None:
        """Whom the variant is compared with."""
        return self.runs.rival(self.variant)

    @cached_property
    def checks(self) -> list[SloCheck]:
        """The SLOs over the variant's runs."""
        return check_slos(self.variant, self.slos)

    @cached_property
    def effects(self) -> list[Effect]:
        """The changes that decide, against the rival."""
        return effects(self.rival, self.variant) if self.rival is not None else []

    @cached_property
    def likeness(self) -> Comparability | None:
        """What differs from the rival; ``None`` where one of the two has no run that counts."""
        if self.rival is None or not self.rival.measured or not self.variant.measured:
            return None
        return compare_conditions(self.rival.conditions, self.variant.conditions)

    def limited(self, key: str) -> bool:
        """Whether an SLO says how much of a value is too much."""
        return any(slo.metric == key for slo in self.slos)

    def in_state(self, state: str) -> list[SloCheck]:
        """SLOs in that state."""
        return [check for check in self.checks if check.state == state]

    @cached_property
    def gains(self) -> list[Effect]:
        """What is better beyond noise."""
        return [it for it in self.effects if it.word == "better" and (it.key != MEMORY or _much_less(it))]

    @cached_property
    def losses(self) -> list[Effect]:
        """What is worse beyond noise, and not held by an SLO that is met."""
        return [it for it in self.effects if it.word == "worse" and it.key != MEMORY and not self.limited(it.key)]

    @cached_property
    def open(self) -> list[Effect]:
        """What may be a loss or a gain: more runs would tell."""
        unknown = [it for it in self.effects if it.word == "cannot_tell" and it.key != MEMORY]
        return [it for it in unknown if not self.limited(it.key)]


def verdicts(runs: ExperimentRuns) -> list[Verdict]:
    """One verdict a variant, in the order of the experiment."""
    slos = slos_of(runs.experiment)
    return [_verdict(Case(runs, variant, slos)) for variant in runs.variants]


def _verdict(case: Case) -> Verdict:
    for rule, (condition, word) in RULES.items():
        told = condition(case)
        if told is not None:
            return Verdict(case.variant, case.rival, word, rule, told, case.checks, case.effects, case.likeness)
    raise AssertionError("the last rule always speaks")


# Whether there is anything to judge ----------------------------------------------------------------------------------


def _is_baseline(case: Case) -> Grounds | None:
    return Grounds() if case.variant is case.runs.baseline else None


def _other_workload(case: Case) -> Grounds | None:
    """It changes what is asked of the engine, not how the engine is set."""
    return Grounds({"workload": case.variant.entry.workload}) if case.rival is None else None


def _failed(case: Case) -> Grounds | None:
    failed = [run for run in case.variant.failed if phase_of(run) != BEFORE]
    if not failed:
        return None
    kind, phase = usual_failure(failed)
    ended = len(failed) + len(case.variant.measured)
    return Grounds({"kind": kind, "phase": phase, "failed": len(failed), "ended": ended})


def _skipped(case: Case) -> Grounds | None:
    variant = case.variant
    if variant.measured or not variant.skipped:
        return None
    return Grounds({"text": variant.skipped[0].entry.text})


def _no_runs(case: Case) -> Grounds | None:
    return None if case.variant.measured else Grounds({"left": len(case.variant.left)})


# Correctness ---------------------------------------------------------------------------------------------------------


def _incomplete(case: Case) -> Grounds | None:
    check = next(check for check in case.checks if check.slo.metric == "failures")
    if check.state != "missed" or check.worst is None:
        return None
    return Grounds({"missing": int(check.worst), "limit": int(check.slo.limit)}, check=check)


def _tokens_differ(case: Case) -> Grounds | None:
    """Other tokens than static batching's count where rounding does not explain them: neither has the run been found
    to round differently (its remark), nor do the rival's tokens differ as well."""
    if case.rival is None or case.variant.entry.kind == "static":
        return None
    unequal = [run for run in case.variant.measured if differing(run) and not remark(run)]
    rival = [run for run in case.rival.measured if compared(run)]
    if not unequal or not rival or any(differing(run) for run in rival):
        return None
    worst = max(unequal, key=differing)
    positions = [it.position for it in worst.entry.correctness.differences] if worst.entry.correctness else []
    return Grounds({"differ": differing(worst), "compared": compared(worst), "position": min(positions, default=0)})


def compared(run: ExperimentRun) -> int:
    """Requests whose tokens were compared with the reference's."""
    return run.entry.correctness.compared if run.entry.correctness is not None else 0


def differing(run: ExperimentRun) -> int:
    """Requests whose tokens are not the reference's."""
    found = run.entry.correctness
    return 0 if found is None else max(0, found.compared - found.equal)


def remark(run: ExperimentRun) -> str:
    """Why tokens were not compared, or what may explain that they differ."""
    return run.entry.correctness.remark if run.entry.correctness is not None else ""


# SLOs ----------------------------------------------------------------------------------------------------------------


def _other_conditions(case: Case) -> Grounds | None:
    """Conditions that differ, though the variant was not to change them."""
    if case.likeness is None:
        return None
    meant = {"batching", *(f"model.{name}" for name in case.variant.entry.changes)}
    names = [fact.name for fact in case.likeness.unlike if fact.name not in meant]
    return Grounds({"names": ", ".join(names[:4])}) if names else None


def _same_settings(case: Case) -> Grounds | None:
    """The engine worked with the very settings of the rival: what they differ by is noise."""
    return Grounds() if case.likeness is not None and case.likeness.kind == "same" else None


def _slo_missed(case: Case) -> Grounds | None:
    return _slo_facts(case, case.in_state("missed"))


def _slo_unclear(case: Case) -> Grounds | None:
    return _slo_facts(case, case.in_state("unclear"))


def _slo_facts(case: Case, checks: list[SloCheck]) -> Grounds | None:
    if not checks:
        return None
    worst = max(checks, key=lambda check: (check.worst or 0.0) / (check.slo.limit or 1.0))
    return Grounds({"met": worst.met, "runs": worst.runs}, check=worst)


# Speed ---------------------------------------------------------------------------------------------------------------


def _few_runs(case: Case) -> Grounds | None:
    if case.rival is None:
        return None
    ours, theirs = len(case.variant.measured), len(case.rival.measured)
    if min(ours, theirs) >= 2 and ours + theirs >= LEAST_RUNS:
        return None
    return Grounds({"ours": ours, "theirs": theirs, "least": LEAST_RUNS // 2})


def _worse(case: Case) -> Grounds | None:
    return Grounds(effect=case.losses[0]) if case.losses and not _speed_gains(case) else None


def _trade_off(case: Case) -> Grounds | None:
    if not case.losses or not _speed_gains(case):
        return None
    return Grounds(effect=_speed_gains(case)[0], loss=case.losses[0])


def _speed_gains(case: Case) -> list[Effect]:
    return [gain for gain in case.gains if gain.key != MEMORY]


def _undecided(case: Case) -> Grounds | None:
    return Grounds(effect=case.open[0]) if case.open else None


def _much_less(memory: Effect) -> bool:
    change = memory.judgement.change
    return change is not None and change <= -LESS_MEMORY


def _better(case: Case) -> Grounds | None:
    return Grounds(effect=case.gains[0]) if case.gains else None


def _no_gain(case: Case) -> Grounds | None:
    return Grounds(effect=case.effects[0] if case.effects else None)


RULES: dict[str, tuple[Callable[[Case], Grounds | None], Word]] = {
    "is_baseline": (_is_baseline, "baseline"),
    "failed": (_failed, "do_not_adopt"),
    "other_workload": (_other_workload, "no_candidate"),
    "skipped": (_skipped, "not_run"),
    "no_runs": (_no_runs, "not_run"),
    "incomplete": (_incomplete, "do_not_adopt"),
    "tokens_differ": (_tokens_differ, "do_not_adopt"),
    "other_conditions": (_other_conditions, "cannot_tell"),
    "same_settings": (_same_settings, "no_candidate"),
    "slo_missed": (_slo_missed, "do_not_adopt"),
    "few_runs": (_few_runs, "cannot_tell"),
    "slo_unclear": (_slo_unclear, "cannot_tell"),
    "worse": (_worse, "do_not_adopt"),
    "trade_off": (_trade_off, "cannot_tell"),
    "undecided": (_undecided, "cannot_tell"),
    "better": (_better, "adopt"),
    "no_gain": (_no_gain, "do_not_adopt"),
}
"""In the order in which they are asked."""
