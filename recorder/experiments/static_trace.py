"""Writes static batching into a trace: the same frames as of an engine, so that both can be compared.

How the frames are to be read:

* A request is submitted at its planned instant, since nobody else submits it, and admitted when its batch begins.
* A step is one forward pass of a batch. The first computes all prompts, each later one a token of each request.
* ``GraphKey.queries`` is the size of the forward pass with padding: the left padding of shorter prompts, and the rows
  of requests that have ended and are computed until the last of their batch has. What the members of the step really
  needed is counted as always, and the difference is padding. ``GraphKey.kv`` is likewise the KV entries read.
* One KV unit is one token in one layer, and ``kv_free`` is what the largest possible batch would still take: the cache
  of a static batch grows as it needs, and the used amount is read off its tensors.
"""

from __future__ import annotations

import os
import secrets
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cbtrace.recorder.engine_watch import is_out_of_memory
from cbtrace.recorder.experiments.workload import PlannedRequest
from cbtrace.recorder.fingerprint import fingerprint
from cbtrace.recorder.model_facts import model_facts
from cbtrace.recorder.options import Options
from cbtrace.recorder.sink import Sink
from cbtrace.recorder.supported import is_verified
from cbtrace.traces.schema import (
    AdmissionStop,
    Admit,
    ChunkFlag,
    End,
    EndReason,
    Engine,
    Event,
    EventKind,
    Facts,
    GraphKey,
    Header,
    KvGeometry,
    KvGroup,
    Request,
    Scalar,
    Step,
    StepDetail,
    TokenIds,
    Visible,
)
from cbtrace.traces.stepcode import pack_chunks, pack_slots, pack_times
from cbtrace.traces.writer import TraceWriter

ADAPTER = "static"


class StaticTrace:
    """One trace of static batching. Times are taken on the monotonic clock and given from the trace's start."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        tags: Mapping[str, str],
        facts: Mapping[str, Scalar],
        overwrite: bool,
        token_ids: bool,
    ) -> None:
        epoch_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        options = Options(token_ids=token_ids)
        self._token_ids = token_ids
        self.sink = Sink(TraceWriter(path, overwrite=overwrite), Path(path), epoch_ns)
        self.sink.emit(
            Header(
                run_id=secrets.token_hex(8),
                name=name,
                tags=dict(tags),
                tool_version=version("cbtrace"),
                mono_ns=epoch_ns,
                wall_ns=wall_ns,
                rank=0,
                world_size=1,
                stored=options.stored(),
                fingerprint=fingerprint(settings=options.facts()) | dict(facts),
            )
        )
        self._capacity = 0
        self._ordinals: dict[str, int] = {}
        self._serial = 0
        self._keys: dict[tuple[int, int], int] = {}

    @property
    def next_step(self) -> int:
        """Index of the next step."""
        return self.sink.steps

    def engine(self, model: Any, settings: Facts, generation: Facts, geometry: KvGeometry) -> None:
        """Say what runs: the model and the rule of batching."""
        self._capacity = geometry.capacity_units
        self.sink.emit(
            Engine(
                t_ns=self.sink.now(),
                adapter=ADAPTER,
                verified=is_verified()[1],
                requested=settings,
                resolved=settings,
                model=model_facts(model),
                generation=generation,
                kv=geometry,
                missing=[],
                predicted_memory={},
            )
        )

    def submitted(self, request: PlannedRequest, planned_ns: int, seen_ns: int) -> None:
        """A request has arrived; the loop sees it at ``seen_ns``."""
        ordinal = len(self._ordinals)
        self._ordinals[request.id] = ordinal
        self.sink.requests += 1
        self.sink.emit(
            Request(
                request=ordinal,
                id=request.id,
                incarnation=0,
                parent=-1,
                prompt_tokens=len(request.prompt),
                max_new_tokens=request.new_tokens,
                submit_ns=planned_ns,
                planned_ns=planned_ns,
                prompt_hash=_hash(request.prompt),
            )
        )
        self.sink.emit(Visible(ordinal, seen_ns))

    def admitted(self, request: PlannedRequest, row: int, t_ns: int) -> None:
        """A request has become a row of the batch that begins."""
        ordinal = self._ordinals[request.id]
        self.sink.emit(Admit(self._serial, ordinal, row, self.next_step, t_ns, 0, 0, 0, 0))
        self._serial += 1

    def step(
        self,
        instants: tuple[int, int, int, int, int, int],
        *,
        prefill: Mapping[str, int],
        decode_rows: list[int],
        padded: tuple[int, int],
        real: tuple[int, int],
        gpu_ns: int,
        kv_used: int,
        waiting: int,
    ) -> None:
        """A forward pass: instants as those of a step; ``prefill`` are prompt tokens by request; ``padded`` and
        ``real`` are queries and KV entries read, with and without padding."""
        chunks = [(self._ordinals[who], tokens, 0, int(ChunkFlag.NEW_TOKEN)) for who, tokens in prefill.items()]
        self.sink.emit(
            Step(
                index=self.next_step,
                times=pack_times(*instants),
                gpu_ns=gpu_ns,
                decode=pack_slots(decode_rows),
                kv_free=self._capacity - kv_used,
                kv_cached=0,
                waiting=waiting,
                active=len(prefill) + len(decode_rows),
                stop=AdmissionStop.REQUEST_CAP if waiting else AdmissionStop.NOTHING_WAITING,
                flags=0,
                graph=self._key(padded) if padded != real else 0,
                detail=StepDetail(chunks=pack_chunks(chunks)) if chunks else None,
            )
        )
        self.sink.steps += 1

    def ended(self, request: PlannedRequest, t_ns: int, tokens: list[int], reason: EndReason, error: str = "") -> None:
        """A request has all its tokens, or will get no more."""
        ordinal = self._ordinals[request.id]
        if tokens and self._token_ids:
            self.sink.emit(TokenIds(ordinal, array("i", tokens).tobytes()))
        self.sink.emit(End(ordinal, t_ns, self.next_step, reason, len(tokens), -1, _hash(tokens), error))

    def failed(self, error: BaseException, phase: str) -> None:
        """The run ends with this error."""
        t_ns, kind = self.sink.now(), type(error).__name__
        if is_out_of_memory(error):
            self.sink.emit(Event(EventKind.OUT_OF_MEMORY, t_ns, self.next_step, text=f"{phase}: {kind}"))
        self.sink.emit(Event(EventKind.FATAL_ERROR, t_ns, self.next_step, text=kind))

    @contextmanager
    def failing_in(self, phase: str) -> Iterator[None]:
        """Note an error that comes out of the block as one of that phase, and let it go on."""
        try:
            yield
        except BaseException as error:
            self.failed(error, phase)
            raise

    def _key(self, padded: tuple[int, int]) -> int:
        if padded not in self._keys:
            self._keys[padded] = len(self._keys) + 1
            self.sink.emit(GraphKey(self._keys[padded], False, *padded))
        return self._keys[padded]


def kv_geometry(model: Any, batch_size: int, longest: int) -> KvGeometry:
    """The KV cache of the largest batch there can be: ``batch_size`` rows of ``longest`` tokens."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    unit = 2 * heads * head_dim * model.dtype.itemsize
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    groups, units = [], 0
    for kind in sorted(set(kinds)):
        layers = kinds.count(kind)
        limit = window if window and kind == "sliding_attention" else None
        units += layers * batch_size * min(longest, limit or longest)
        groups.append(KvGroup(kind, layers, layers * unit, 1, limit or -1))
    return KvGeometry(
        unit_bytes=unit,
        capacity_units=units,
        reserved_bytes=0,
        capacity_tokens=batch_size * longest,
        groups=groups,
        unit_name="token of a layer",
    )


def _hash(tokens: list[int]) -> bytes:
    return blake2b(array("q", tokens).tobytes(), digest_size=8).digest()
