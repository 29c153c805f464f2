"""Opens a trace: reads all frames once, reports what was lost, and makes tables when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from . import tables
from .attribution import Attribution, Ordinals, as_step_requests
from .blocks import each_payload
from .columns import (
    Admissions,
    Events,
    GpuSamples,
    Ints,
    MemorySamples,
    Requests,
    StepRequests,
    Steps,
    Tokens,
)
from .compressed import ZstdFile
from .errors import EmptyTraceError, TraceError
from .frame_table import first_rows
from .frames import PREAMBLE_BYTES, Damage, FrameScanner, read_preamble
from .intake import Intake
from .opening import format_version, open_bytes
from .packed_steps import PACKED_SINCE, PACKED_SIZE
from .pairs import Block, RequestBlock, Span
from .recovery import Losses, LostRange, RecoveryReport, report
from .residency import Residencies, residencies
from .schema import Clock, Engine, Footer, GraphKey, Header, KvGeometry, Notice
from .stepstore import Listed, StepColumns
from .versions import decoder

UNKNOWN_HEADER = Header(
    run_id="",
    name="",
    tags={},
    tool_version="",
    mono_ns=-1,
    wall_ns=-1,
    rank=-1,
    world_size=-1,
    stored=[],
    fingerprint={},
)
"""Stands for the header of a trace that lost it."""


class Trace:
    """A trace that was read. Made by :func:`open_trace`.

    Tables are numpy columns, described in :mod:`cbtrace.traces.columns`; each is made when first used and kept.
    ``step_requests`` and ``tokens`` have one row for every request in every step and can be large:
    :meth:`iter_step_requests` gives the same rows piece by piece in bounded memory.
    """

    def __init__(self, path: Path, version: int, intake: Intake, losses: Callable[[Trace], Losses]) -> None:
        self.path = path
        self.format_version = version
        """Of the file; what is read from it is always as in the newest version."""
        self._intake = intake
        self._packed = intake.finish()
        seen = np.unique(np.concatenate(list(intake.ordinals_seen(self._packed))))
        self._ordinals = Ordinals(seen, ring=intake.overwritten is not None)
        self._stays = _stays(intake, self._packed, len(self._ordinals))
        self._attribution = Attribution(self._packed, self._stays, self._ordinals)
        self.recovery: RecoveryReport = report(losses(self))

    @property
    def header(self) -> Header:
        """Who recorded what; :data:`UNKNOWN_HEADER` when that frame was lost."""
        return self._intake.header or UNKNOWN_HEADER

    @property
    def engines(self) -> list[Engine]:
        """The engines that were found, in the order of the file."""
        return self._intake.engines

    @property
    def footer(self) -> Footer | None:
        """How the recording ended; None when it was not closed."""
        return self._intake.footer

    @property
    def clocks(self) -> list[Clock]:
        """Pairs of monotonic and wall clock."""
        return self._intake.clocks

    @property
    def graph_keys(self) -> dict[int, GraphKey]:
        """Padded batch sizes by id."""
        return self._intake.graph_keys

    @property
    def notices(self) -> list[Notice]:
        """What the recorder said about the recording."""
        return self._intake.notices

    @cached_property
    def token_ids(self) -> dict[int, Ints]:
        """Generated token ids by request, where they were stored (an opt-in)."""
        rows = self._ordinals.rows(np.array(list(self._intake.token_ids), dtype=np.int64)).tolist()
        ids = (np.frombuffer(raw[: len(raw) // 4 * 4], dtype="<i4") for raw in self._intake.token_ids.values())
        return {row: values.astype(np.int64) for row, values in zip(rows, ids, strict=True)}

    @property
    def ordinals(self) -> Ints:
        """The number that each request has in the file; its row number, unless a ring gave up requests before it."""
        return self._ordinals.values

    @property
    def geometry(self) -> KvGeometry | None:
        """The KV cache of the newest engine; None when no engine was recorded."""
        return self.engines[-1].kv if self.engines else None

    @cached_property
    def steps(self) -> Steps:
        """One row a step."""
        return tables.steps(self._packed, self._attribution, self.engines, self.graph_keys)

    def iter_step_requests(self) -> Iterator[StepRequests]:
        """The rows of :attr:`step_requests`, some hundred thousand at a time at most."""
        for block in self._attribution.blocks():
            yield as_step_requests(block, self._packed.numbers["index"])

    @cached_property
    def step_requests(self) -> StepRequests:
        """One row for each request in each step."""
        return tables.joined(StepRequests, list(self.iter_step_requests()))

    @cached_property
    def requests(self) -> Requests:
        """One row a request."""
        return tables.requests(self._intake, self._attribution, self._ordinals, self.request_sums)

    @property
    def second_ends(self) -> Ints:
        """Requests that have a second, different terminal state: there are none in a sound trace."""
        ended = self._intake.ends.numbers("request")
        again = np.ones(len(ended), dtype=np.bool_)
        again[first_rows(ended)[1]] = False
        return self._ordinals.rows(ended[again])

    @cached_property
    def request_sums(self) -> tables.RequestSums:
        """Counts by request that only checks need."""
        return tables.request_sums(self._intake, self._attribution, self._ordinals, self._packed)

    @cached_property
    def tokens(self) -> Tokens:
        """One row a delivered token."""
        return tables.joined(Tokens, list(self.iter_tokens()))

    def iter_tokens(self) -> Iterator[Tokens]:
        """The rows of :attr:`tokens`, some hundred thousand at a time; each request is whole in one part."""
        return tables.token_parts(self._attribution, self._packed, self.request_sums)

    def request_spans(self) -> list[Span]:
        """The requests of each block of :meth:`by_request`."""
        return self._attribution.request_spans()

    def by_request(self, spans: Sequence[Span] | None = None) -> Iterator[RequestBlock]:
        """The pairs of :attr:`step_requests` ordered by request, then by step, some hundred thousand at a time.

        Each request is whole in one block. Steps are rows of :attr:`steps`. ``spans`` are the blocks that are wanted,
        of :meth:`request_spans`; all of them without it.
        """
        return self._attribution.by_request(spans)

    def token_numbers(self, block: RequestBlock) -> Ints:
        """The position of each token of a block, in the order of :attr:`~.pairs.RequestBlock.given`."""
        given = block.given
        request, row = block.pairs.request[given], block.pairs.row[given]
        return tables.token_positions(request, row, self._attribution, self._packed, self.request_sums)

    @property
    def chunks(self) -> Block:
        """The pairs that are anything but one plain decode, ordered by request, then by step."""
        return self._attribution.totals.chunks

    def plain_decodes(self, rows: slice = slice(None)) -> Iterator[tuple[int, Ints]]:
        """The pairs that are one plain decode, block by block: the row of its first step, and who decodes where.

        The latter is a matrix, shape (steps, slots); -1 where none decodes, or where it is not known.
        """
        return self._attribution.plain_decodes(rows)

    @property
    def wasted(self) -> Listed:
        """The pairs of rows of :attr:`steps` and requests whose token was dropped."""
        return self._attribution.wasted

    def members_of(self, step: int) -> Block:
        """The pairs of one step, ordered by request; their positions are not computed (-1)."""
        return self._attribution.members_of(int(np.searchsorted(self._packed.numbers["index"], step)))

    @cached_property
    def admissions(self) -> Admissions:
        """One row an admission."""
        return tables.admissions(self._intake, self._ordinals)

    @cached_property
    def events(self) -> Events:
        """One row an event."""
        return tables.events(self._intake.events, self._ordinals)

    @cached_property
    def memory(self) -> MemorySamples:
        """One row a memory sample or budget mark."""
        return tables.sampled(MemorySamples, self._intake.memory)

    @cached_property
    def gpu(self) -> GpuSamples:
        """One row an NVML sample."""
        return tables.sampled(GpuSamples, self._intake.gpu)

    def kv_groups(self) -> dict[int, Ints]:
        """For models with several KV groups: (groups, 2) free and cached blocks, by step index."""
        index = self._packed.numbers["index"]
        parts = (
            (row, np.frombuffer(raw[: len(raw) // 8 * 8], dtype="<i4")) for row, raw in self._packed.groups.items()
        )
        return {int(index[row]): values.astype(np.int64).reshape(-1, 2) for row, values in parts}


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Damage is no error: what could be read is there, and :attr:`Trace.recovery` says what could not.

    Raises:
        TraceNotFoundError: no regular file of that name can be opened.
        EmptyTraceError: the file is empty or holds nothing but its first bytes.
        NotATraceError: the file is something else.
        TraceVersionError: the trace is of a newer format version.
        TraceError: the file starts as a trace, but not one frame in it is intact.
    """
    path = Path(path)
    try:
        with open_bytes(path) as file:
            start = file.read(PREAMBLE_BYTES)
            version = format_version(path, start, file)
            damaged = read_preamble(start) is None
            # A damaged preamble may be shorter or longer than it was: look for frames from the first byte on.
            offset = 0 if damaged else PREAMBLE_BYTES
            file.seek(offset)
            return _read(path, file, FrameScanner(file.read, offset), version, damaged)
    except OSError as error:
        raise TraceError(f"{path} cannot be read to its end ({error.strerror}): copy it and try again.") from error


def _read(path: Path, file: BinaryIO | ZstdFile, scanner: FrameScanner, version: int, damaged: bool) -> Trace:
    intake = Intake()
    decode = decoder(version)
    packed = version >= PACKED_SINCE  # then most steps never become objects
    ranges: list[LostRange] = []
    unreadable = 0
    for payload in each_payload(scanner):
        if isinstance(payload, Damage):
            ranges.append(LostRange(payload.start, payload.end, payload.reason))
            intake.breach()
            continue
        form = payload[0] if payload and packed else -1
        if form in PACKED_SIZE and len(payload) >= PACKED_SIZE[form]:
            intake.take_packed(form, payload)
            continue
        try:
            frame = decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            unreadable += 1
            intake.breach()
            continue
        intake.take(frame, payload)
    if isinstance(file, ZstdFile) and file.broken:
        ranges.append(LostRange(scanner.bytes_seen, scanner.bytes_seen, "compressed"))
        intake.breach()
    if not intake.frames:
        if not ranges and not unreadable:
            raise EmptyTraceError(f"{path} holds no frames: recording ended at once; record the run again.")
        remedy = "copy it again from where it came" if isinstance(file, ZstdFile) else "record the run again"
        raise TraceError(f"{path} starts as a trace does, but no frame in it is intact: {remedy}.")

    def losses(trace: Trace) -> Losses:
        return _losses(trace, intake, scanner.bytes_seen, tuple(ranges), damaged, unreadable)

    return Trace(path, version, intake, losses)


def _stays(intake: Intake, packed: StepColumns, requests: int) -> Residencies:
    """Who was in which slot, given that the end mark may count more frames than are there."""
    missing, admitted = _steps_missing(intake, packed), intake.admitted()

    def known() -> Residencies:
        return residencies(
            intake.moves(),
            admitted,
            steps_missing=missing > 0 or intake.overwritten is not None,
            from_start=intake.overwritten is None,
        )

    stays = known()
    if intake.breached:
        return stays
    explained = stays.admissions_lost + missing + requests - intake.requests_known
    if _frames_promised(intake) - intake.frames <= explained:
        return stays
    intake.breach_somewhere()
    return known()


def _steps_missing(intake: Intake, packed: StepColumns) -> int:
    """Steps that were recorded, were not given up by a ring, and are not there."""
    index, footer, ring = packed.numbers["index"], intake.footer, intake.overwritten
    last = int(index[-1]) + 1 if len(index) else 0
    return max(0, max(last, footer.steps if footer else 0) - len(index) - (ring.steps if ring else 0))


def _frames_promised(intake: Intake) -> int:
    """Frames that the file should hold according to its end mark; -1 without one."""
    if intake.footer is None:
        return -1
    # The frame that tells what a ring gave up is not one of those that were written.
    return intake.footer.frames - (intake.overwritten.frames - 1 if intake.overwritten else 0)


def _losses(
    trace: Trace, intake: Intake, size: int, ranges: tuple[LostRange, ...], damaged: bool, unreadable: int
) -> Losses:
    footer = intake.footer
    packed = trace._packed
    return Losses(
        bytes_total=size,
        ranges=ranges,
        preamble_damaged=damaged,
        frames_read=intake.frames,
        frames_promised=_frames_promised(intake),
        stop_reason=footer.reason if footer else "",
        stop_text=footer.text if footer else "",
        header_missing=intake.header is None,
        engine_missing=not intake.engines,
        last_step=intake.last_step,
        steps_missing=_steps_missing(intake, packed),
        steps_overwritten=intake.overwritten.steps if intake.overwritten else 0,
        admissions_lost=trace._stays.admissions_lost,
        requests_unknown=len(trace._ordinals) - intake.requests_known,
        frames_repeated=intake.repeated + packed.repeated,
        frames_reordered=intake.reordered + packed.reordered,
        frames_unreadable=unreadable + intake.impossible,
        malformed_parts=packed.malformed,
    )
