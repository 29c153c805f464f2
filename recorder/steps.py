"""A step from the moment its batch is begun to the moment its results are applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from cbtrace.recorder.requests import RequestRecord
from cbtrace.traces.packed_steps import pack_step
from cbtrace.traces.schema import ChunkFlag, Step, StepDetail
from cbtrace.traces.stepcode import CHUNK, pack_ordinals, pack_times

_NEW_TOKEN, _DECODE = int(ChunkFlag.NEW_TOKEN), int(ChunkFlag.DECODE)


class StepDraft:
    """A batch under way. Synchronous engines have one at a time; asynchronous ones launch the next before they apply
    the results of this one, so that two are open."""

    # What most steps leave as it is stands in the class: making a draft is part of every step's cost.
    attempts = 0
    chunks: Sequence[bytes] = ()
    chunk_tokens: Collection[int] = ()
    """Ordinals of the chunks that end in a token."""
    useless: tuple[int, ...] = ()
    """Ordinals of requests whose token the engine computes and does not keep."""
    starved: tuple[int, ...] = ()
    has_prefill = False
    captured = False
    first: Any = None
    """The engine's first member of the batch, to recognize the batch when its results come."""
    decode_mask = kv_free = kv_cached = waiting = active = stop = flags = graph = 0
    groups: bytes | None = None

    start = scheduled = prepared = launched = ready = -1

    def __init__(self, index: int) -> None:
        self.index = index

    def add_chunk(self, record: RequestRecord, position: int, queries: int, new_token: bool) -> None:
        """Add a request that does more than one plain decode: ``queries`` tokens from ``position`` on.

        Positions below the request's high-water mark are computed again; up to the prompt's end they are prefill; one
        beyond it is the newest token on its way through the model, a decode.
        """
        end = position + queries
        known = record.computed
        recompute = max(min(end, known) - position, 0)
        prefill = max(min(end, record.prompt_tokens) - max(position, known), 0)
        decode = queries - recompute - prefill > 0
        flags = (_NEW_TOKEN if new_token else 0) | (_DECODE if decode else 0)
        if not isinstance(self.chunks, list) or not isinstance(self.chunk_tokens, set):
            self.chunks, self.chunk_tokens = [], set()
        self.chunks.append(CHUNK.pack(record.ordinal, prefill, recompute, flags))
        self.has_prefill = self.has_prefill or prefill + recompute > 0
        record.computed = max(known, end)
        if new_token:
            self.chunk_tokens.add(record.ordinal)

    def drop(self, record: RequestRecord) -> None:
        """The token that the batch computes for this request will not be kept."""
        self.useless = (*self.useless, record.ordinal)

    def gives_token(self, record: RequestRecord) -> bool:
        """Whether the batch computes a token for a request that holds a slot. In a batch from before its admission, the
        slot was another's: an asynchronous engine gives it on while that batch is still under way."""
        in_slot = self.index >= record.admitted_step and self.decode_mask & record.bit
        return bool(in_slot) or record.ordinal in self.chunk_tokens

    def frame(self, done: int, gpu_ns: int) -> Step | bytes:
        """Return the finished step; its payload, where it is as most steps are."""
        mask = self.decode_mask
        chunks = b"".join(self.chunks)
        plain = not (self.useless or self.starved or self.attempts > 1 or self.groups)
        if plain:
            packed = pack_step(
                self.index,
                self.start,
                self.scheduled,
                self.prepared,
                self.launched,
                self.ready,
                done,
                gpu_ns,
                mask,
                self.kv_free,
                self.kv_cached,
                self.waiting,
                self.active,
                self.stop,
                self.flags,
                self.graph,
                chunks,
            )
            if packed is not None:
                return packed
        return Step(
            self.index,
            pack_times(self.start, self.scheduled, self.prepared, self.launched, self.ready, done),
            gpu_ns,
            mask.to_bytes((mask.bit_length() + 7) // 8, "little"),
            self.kv_free,
            self.kv_cached,
            self.waiting,
            self.active,
            self.stop,
            self.flags,
            self.graph,
            None if plain and not chunks else self._detail(chunks),
        )

    def _detail(self, chunks: bytes) -> StepDetail:
        useless, starved = pack_ordinals(self.useless), pack_ordinals(self.starved)
        return StepDetail(chunks or None, useless, starved, self.attempts, self.groups)


class OpenSteps:
    """The drafts between scheduling and results, oldest first."""

    def __init__(self) -> None:
        self.next_index = 0
        self._open: deque[StepDraft] = deque()

    def begin(self) -> StepDraft:
        """Start a draft; it gets its place in line only when its batch turns out not to be empty."""
        return StepDraft(self.next_index)

    def launch(self, draft: StepDraft) -> None:
        """The draft's batch was prepared: it is a step."""
        self._open.append(draft)
        self.next_index += 1

    def results_of(self, members: list[Any]) -> StepDraft | None:
        """Return the draft of the batch whose results have come. Drafts before it never got theirs. A batch from before
        the recording has no draft."""
        waiting = self._open
        if members and waiting and waiting[0].first is members[0]:
            return waiting.popleft()
        if not members or all(draft.first is not members[0] for draft in waiting):
            return None
        while (draft := waiting.popleft()).first is not members[0]:
            pass
        return draft

    def tokens_under_way(self, record: RequestRecord) -> int:
        """Return how many batches under way will give the request a token."""
        return sum(draft.gives_token(record) for draft in self._open)

    def left(self, record: RequestRecord) -> None:
        """A request ends or is put off: what batches under way compute for it will be dropped. Called while it still
        holds its slot."""
        for draft in self._open:
            if draft.gives_token(record):
                draft.drop(record)
