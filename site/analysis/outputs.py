"""Correctness before speed: which requests did not complete, and where the tokens of the same request differ.

Requests of two runs are paired by id and incarnation where their prompts agree, and what is left by the hash of the
prompt, the n-th with the n-th. Tokens are compared by position where both runs stored them, else by their hash. Runs
are held against the first run of A: the other repeats of A too, because they show what differs without any change.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cbtrace.site.analysis.latency import completed
from cbtrace.traces.columns import Ints, Requests
from cbtrace.traces.reader import Trace
from cbtrace.traces.schema import EndReason, EventKind

LISTED = 20
"""Differences named one by one, of each side."""

OutputState = Literal["compared", "sampled", "unknown", "unpaired"]
"""``sampled``: outputs differ by chance. ``unknown``: no pair has tokens or hashes. ``unpaired``: no request of one is
in the other."""


@dataclass(frozen=True)
class RunOutputs:
    """What came out of one run."""

    requests: Requests
    token_ids: dict[int, Ints]
    """By ordinal, where they were stored."""
    sampled: bool
    died_of: str
    """Class of the error that ended the engine, or of the last one that was out of memory; empty without."""


def run_outputs(trace: Trace) -> RunOutputs:
    """Take it from a trace, which is not needed any more then."""
    sampled = any(engine.generation.get("do_sample") is True for engine in trace.engines)
    fatal = np.isin(trace.events.kind, (EventKind.OUT_OF_MEMORY, EventKind.FATAL_ERROR))
    errors = [trace.events.text[row] or "unknown" for row in np.flatnonzero(fatal)]
    return RunOutputs(trace.requests, trace.token_ids, sampled, errors[-1] if errors else "")


@dataclass(frozen=True)
class Ended:
    """How the requests of a side ended, over all of its runs."""

    requests: int
    complete: int
    """Ended by an end token or their limit, with at least one token."""
    failed: int
    cancelled: int
    running: int
    empty: int
    errors: list[str]
    """Classes of the errors of failed requests, each once."""
    died: int
    """Runs whose engine ended by an error, or was out of memory."""
    died_of: list[str]
    """Classes of these errors, each once."""


@dataclass(frozen=True)
class OutputDifference:
    """One request whose tokens differ. ``position`` counts from 1; -1 where only hashes are known."""

    run: int
    """Which run of its side, from 0."""
    request: str
    position: int
    expected: int
    """Token id of the first run of A; -1 where it has none or it is not known."""
    found: int


@dataclass
class Outputs:
    """The outputs of a side against the first run of A, over all pairs of requests that are complete in both."""

    state: OutputState
    pairs: int = 0
    unpaired: int = 0
    """Requests of either run that the other does not have."""
    equal: int = 0
    same_end: int = 0
    """Pairs that ended for the same reason (end token or limit)."""
    differing: int = 0
    unknown: int = 0
    """Pairs of which neither tokens nor hashes are known."""
    differences: list[OutputDifference] = field(default_factory=list)
    """The first :data:`LISTED` of them."""


@dataclass(frozen=True)
class Correctness:
    """Of both sides."""

    ended_a: Ended
    ended_b: Ended
    outputs_a: Outputs | None
    """The other repeats of A against its first run; ``None`` when there is only one."""
    outputs_b: Outputs


def correctness(a: Sequence[RunOutputs], b: Sequence[RunOutputs]) -> Correctness:
    """Compare how the requests of both sides ended, and what came out."""
    reference, *others = a
    return Correctness(_ended(a), _ended(b), _outputs(reference, others) if others else None, _outputs(reference, b))


def _ended(side: Sequence[RunOutputs]) -> Ended:
    counts = dict.fromkeys(("requests", "complete", "failed", "cancelled", "running", "empty"), 0)
    errors: dict[str, None] = {}
    for run in side:
        requests, done = run.requests, completed(run.requests)
        reason = requests.end_reason
        finished = np.isin(reason, (EndReason.EOS, EndReason.LENGTH))
        counts["requests"] += len(requests.id)
        counts["complete"] += int(done.sum())
        counts["empty"] += int((finished & ~done).sum())
        for name in ("failed", "cancelled", "running"):
            counts[name] += int((reason == EndReason[name.upper()]).sum())
        errors |= dict.fromkeys(requests.error[i] for i in np.flatnonzero(reason == EndReason.FAILED))
    died = [run.died_of for run in side if run.died_of]
    return Ended(**counts, errors=list(errors), died=len(died), died_of=list(dict.fromkeys(died)))


def _outputs(reference: RunOutputs, runs: Sequence[RunOutputs]) -> Outputs:
    if any(run.sampled for run in (reference, *runs)):
        return Outputs("sampled")
    found = Outputs("compared")
    for number, run in enumerate(runs):
        pairs = list(pair_requests(reference.requests, run.requests))
        found.unpaired += len(reference.requests.id) + len(run.requests.id) - 2 * len(pairs)
        _compare(found, number, reference, run, pairs)
    if not found.pairs:
        found.state = "unpaired"
    elif found.unknown == found.pairs:
        found.state = "unknown"
    return found


def _compare(found: Outputs, number: int, reference: RunOutputs, run: RunOutputs, pairs: list[tuple[int, int]]) -> None:
    done = completed(reference.requests), completed(run.requests)
    for i, j in pairs:
        if not (done[0][i] and done[1][j]):
            continue
        found.pairs += 1
        found.same_end += int(reference.requests.end_reason[i] == run.requests.end_reason[j])
        difference = _difference(number, reference, run, i, j)
        if difference is None:
            found.unknown += 1
        elif difference.position == 0:
            found.equal += 1
        else:
            found.differing += 1
            if len(found.differences) < LISTED:
                found.differences.append(difference)


def _difference(number: int, reference: RunOutputs, run: RunOutputs, i: int, j: int) -> OutputDifference | None:
    """Where one pair differs first; position 0 when it does not, ``None`` when that is not known."""
    name = reference.requests.id[i]
    if i in reference.token_ids and j in run.token_ids:
        expected, tokens = reference.token_ids[i], run.token_ids[j]
        shared = min(len(expected), len(tokens))
        unequal = np.flatnonzero(expected[:shared] != tokens[:shared])
        if not len(unequal) and len(expected) == len(tokens):
            return OutputDifference(number, name, 0, -1, -1)
        at = int(unequal[0]) if len(unequal) else shared
        ids = [int(row[at]) if at < len(row) else -1 for row in (expected, tokens)]
        return OutputDifference(number, name, at + 1, *ids)
    hashes = reference.requests.output_hash[i], run.requests.output_hash[j]
    if not all(hashes):
        return None
    return OutputDifference(number, name, 0 if hashes[0] == hashes[1] else -1, -1, -1)


def pair_requests(a: Requests, b: Requests) -> Iterator[tuple[int, int]]:
    """Pairs of ordinals of the same request in two runs, in the order of A; each request is in one pair at most."""
    by_id = {(b.id[j], int(b.incarnation[j])): j for j in range(len(b.id))}
    taken: set[int] = set()
    found: dict[int, int] = {}
    for i in range(len(a.id)):
        same = by_id.get((a.id[i], int(a.incarnation[i])))
        if same is not None and _one_prompt(a.prompt_hash[i], b.prompt_hash[same]):
            found[i] = same
            taken.add(same)
    waiting: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for j in range(len(b.id)):
        if j not in taken and b.prompt_hash[j]:
            waiting[b.prompt_hash[j]].append(j)
    for i in range(len(a.id)):
        if i not in found and a.prompt_hash[i] and waiting.get(a.prompt_hash[i]):
            found[i] = waiting[a.prompt_hash[i]].popleft()
    yield from sorted(found.items())


def _one_prompt(a: bytes, b: bytes) -> bool:
    return not a or not b or a == b
