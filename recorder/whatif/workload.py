"""The requests of a recorded run, to be sent again: lengths, arrivals, cancellations, shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.recorder.whatif.dry_engine import END_TOKEN, Output
from cbtrace.recorder.whatif.errors import ReplayError
from cbtrace.traces import Trace
from cbtrace.traces.schema import EndReason, EventKind, RequestFlag

_BEYOND_END = END_TOKEN + 1


@dataclass(frozen=True)
class ReplayRequest:
    """One request that somebody submitted (forked children come out of their parents)."""

    ordinal: int
    id: str
    tokens: list[int]
    """Made up: of the recorded length, and equal to another's where the recording shows a shared prefix."""
    max_new_tokens: int | None
    outputs: dict[str, Output]
    """By id, of it and its forked children."""
    children: int
    submit_ns: int
    visible_ns: int
    cancel_ns: int = -1


def recorded_workload(trace: Trace, *, all_share: bool = False) -> list[ReplayRequest]:
    """The submitted requests in the order in which the scheduler got them.

    ``all_share`` takes it that every prompt begins with the prefix that some were found to share: requests that came
    at once compute it each for itself, and so do not show that they have it, too.

    A request that ended before its limit ends at the same token again. One that was cancelled keeps its limit: with
    other settings it may get further before it is cancelled.

    Raises:
        ReplayError: a prompt cannot be made up, since it shares a prefix with what no earlier prompt holds.
    """
    requests = trace.requests
    prompts = _Prompts(trace, all_share)
    cancels = {
        int(trace.events.request[row]): int(trace.events.time_ns[row])
        for row in np.flatnonzero(trace.events.kind == EventKind.CANCEL_REQUESTED)
    }
    submitted = np.flatnonzero((requests.flags & RequestFlag.FORKED) == 0)
    submitted = submitted[requests.visible_ns[submitted] >= 0]
    order = submitted[np.lexsort((submitted, requests.visible_ns[submitted]))]
    return [
        ReplayRequest(
            ordinal=int(row),
            id=requests.id[row],
            tokens=prompts.of(int(row)),
            max_new_tokens=_limit(trace, int(row)),
            outputs=_outputs(trace, [int(row), *np.flatnonzero(requests.parent == row).tolist()]),
            children=int((requests.parent == row).sum()),
            submit_ns=int(requests.submit_ns[row]),
            visible_ns=int(requests.visible_ns[row]),
            cancel_ns=cancels.get(int(row), -1),
        )
        for row in order
    ]


def _limit(trace: Trace, row: int) -> int | None:
    limit = int(trace.requests.max_new_tokens[row])
    if limit < 0 and trace.requests.end_reason[row] == EndReason.LENGTH:
        limit = int(trace.requests.generated[row])
    return limit if limit >= 0 else None


def _outputs(trace: Trace, rows: list[int]) -> dict[str, Output]:
    """Equal outputs have equal hashes; of others it is taken that they differ from the first token on."""
    requests = trace.requests
    return {
        requests.id[row]: Output(
            token=_BEYOND_END + int.from_bytes(requests.output_hash[row], "little") % (1 << 31),
            end_after=int(requests.generated[row]) if requests.end_reason[row] == EndReason.EOS else 0,
        )
        for row in rows
    }


class _Prompts:
    """Prompts of the recorded lengths. A trace holds no tokens: equal prompts have equal hashes, and a request whose
    first admission found a prefix in the cache begins as an earlier, long enough one does. Everything else differs."""

    def __init__(self, trace: Trace, all_share: bool) -> None:
        self._requests = trace.requests
        self._shared = int(trace.requests.prefix_hit.max(initial=0)) if all_share else 0
        self._made: dict[int, list[int]] = {}
        self._by_hash: dict[bytes, int] = {}
        self._source = np.random.default_rng(0)

    def of(self, row: int) -> list[int]:
        """The prompt of a request; called in the order of arrival."""
        length = int(self._requests.prompt_tokens[row])
        same = self._by_hash.setdefault(self._requests.prompt_hash[row], row)
        if same != row and same in self._made:
            tokens = self._made[same]
        else:
            hit = max(int(self._requests.prefix_hit[row]), min(self._shared, length) if self._made else 0)
            donor = next((made for made in self._made.values() if hit and len(made) >= hit), [])
            if hit and not donor and not self._shared:
                raise ReplayError(
                    f"Request {self._requests.id[row]} found {hit} tokens of its prompt in the cache, and no earlier "
                    "prompt is as long, so it went on from what another request had generated: such a recording cannot "
                    "be replayed. Record the workload with prompts that do not depend on what was generated.",
                    slug="replay-prefix",
                )
            tokens = donor[:hit] + self._source.integers(1 << 31, size=length - hit if donor else length).tolist()
        self._made[row] = tokens
        return tokens
