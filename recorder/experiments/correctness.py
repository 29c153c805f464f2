"""Whether a run did what it should: every request complete, and the same tokens as the reference.

Requests are paired by their id, which is their number in the workload; tokens by their position.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cbtrace.recorder.experiments.failures import request_failure_kind
from cbtrace.traces.experiment import Correctness, Difference
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason

_LISTED = 100
"""Differences named one by one."""
_FINISHED = (EndReason.EOS, EndReason.LENGTH)


@dataclass(frozen=True)
class Answers:
    """What a run answered, by request."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Of requests that are complete, where their tokens were stored."""
    reasons: dict[str, int] = field(default_factory=dict)
    """How each request that is complete ended."""
    failures: dict[str, str] = field(default_factory=dict)
    """Kinds of failure of the requests that were begun and are not complete."""
    hashes: dict[str, bytes] = field(default_factory=dict)
    """Of the tokens of requests that are complete."""


def answers_of(trace: Trace) -> Answers:
    """Read the answers of a trace."""
    answers = Answers()
    requests = trace.requests
    for row, name in enumerate(requests.id):
        reason, tokens = int(requests.end_reason[row]), trace.token_ids.get(row)
        if reason in _FINISHED and requests.generated[row] > 0:
            answers.reasons[name] = reason
            answers.hashes[name] = requests.output_hash[row]
            if tokens is not None:
                answers.tokens[name] = [int(token) for token in tokens]
        elif reason in _FINISHED:
            answers.failures[name] = "empty"
        elif reason == EndReason.CANCELLED:
            answers.failures[name] = "cancelled"
        elif reason == EndReason.FAILED:
            answers.failures[name] = request_failure_kind(requests.error[row])
        else:
            answers.failures[name] = "unfinished"
    return answers


def check_run(planned: int, answers: Answers, failure: str | None) -> Correctness:
    """Count what is complete of ``planned`` requests, and what failed, by kind.

    Requests that just stopped, or were never begun, failed as their run did (``failure``).
    """
    counted: Counter[str] = Counter()
    for kind in answers.failures.values():
        counted[failure or kind if kind in ("unfinished", "error") else kind] += 1
    missing = planned - len(answers.reasons) - len(answers.failures)
    if missing > 0:
        counted[failure or "unfinished"] += missing
    return Correctness(planned, len(answers.reasons), dict(sorted(counted.items())))


def compare_with(correctness: Correctness, answers: Answers, reference_id: str, reference: Answers) -> None:
    """Add the comparison with the reference's tokens to ``correctness``."""
    both = sorted(set(answers.reasons) & set(reference.reasons))
    unequal = [name for name in both if not _equal(name, answers, reference)]
    stored = [name for name in unequal if name in answers.tokens and name in reference.tokens]
    found = [first_difference(name, reference.tokens[name], answers.tokens[name]) for name in stored[:_LISTED]]
    correctness.reference = reference_id
    correctness.compared = len(both)
    correctness.same_termination = sum(answers.reasons[name] == reference.reasons[name] for name in both)
    correctness.equal = len(both) - len(unequal)
    correctness.differences = [difference for difference in found if difference is not None]
    correctness.differences_left_out = len(unequal) - len(correctness.differences)


def _equal(name: str, answers: Answers, reference: Answers) -> bool:
    if name in answers.tokens and name in reference.tokens:
        return answers.tokens[name] == reference.tokens[name]
    return answers.hashes[name] == reference.hashes[name]


def first_difference(name: str, expected: list[int], found: list[int]) -> Difference | None:
    """Where two answers differ first; ``None`` when they are equal."""
    shared = min(len(expected), len(found))
    unequal = np.flatnonzero(np.array(expected[:shared]) != np.array(found[:shared]))
    if unequal.size == 0 and len(expected) == len(found):
        return None
    at = int(unequal[0]) if unequal.size else shared
    return Difference(name, at + 1, expected[at] if at < len(expected) else -1, found[at] if at < len(found) else -1)
