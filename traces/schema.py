"""What a trace holds: the frames, field by field.

A trace is a preamble (:data:`MAGIC`, then :data:`FORMAT_VERSION`) and a sequence of frames. Each frame is one struct of
this module as a msgpack array whose first element is its tag, or as a packed record (:mod:`.codec`) that says the same.
A reader ignores elements beyond those it knows and fills in the defaults of those that are missing, so fields are only
ever appended, with a default.

Conventions
-----------
* Times (``*_ns``) are integer nanoseconds of the recording process's monotonic clock, counted from
  :attr:`Header.mono_ns`; ``-1`` is "never" or "unknown".
* Sizes are bytes, except KV amounts in :class:`Step`, counted in *units* of :attr:`KvGeometry.unit_bytes`.
* ``request`` is a request's *ordinal*: its number within the trace, from 0, never reused. Two requests submitted under
  the same id have different ordinals (and :attr:`Request.incarnation` 0, 1, ...).
* ``step`` in a frame that is not a :class:`Step` is the index of the next step to be scheduled at that moment: the
  first step that can see the change.
* Every step stands on its own: no field is relative to another frame, so a lost frame costs only itself.
"""

from __future__ import annotations

import enum

from msgspec import Struct

MAGIC = b"CBTRACE\n"
FORMAT_VERSION = 3

Scalar = str | int | float | bool | None
Facts = dict[str, Scalar]
"""Named facts under dotted keys (``software.torch``). ``None`` means *unknown*, and is never a guess."""


class AdmissionStop(enum.IntEnum):
    """Why a step admitted no further waiting request."""

    NOTHING_WAITING = 0
    TOKEN_BUDGET = 1
    REQUEST_CAP = 2
    CACHE_BUDGET = 3
    KV_BLOCKS = 4
    SAFETY_MARGIN = 5
    BLOCKED_AFTER_OFFLOAD = 6
    UNKNOWN = 7


class EndReason(enum.IntEnum):
    """How a request ended. ``RUNNING``: the trace ends before the request does."""

    RUNNING = 0
    EOS = 1
    LENGTH = 2
    CANCELLED = 3
    FAILED = 4


class EventKind(enum.IntEnum):
    """What an :class:`Event` tells. The fields that each kind fills are listed beside it."""

    SOFT_RESET = 1  # request, tokens = KV entries to recompute, blocks = blocks it held
    OFFLOAD = 2  # request, tokens = KV entries kept on the CPU, blocks, bytes, duration of the round
    RESTORE = 3  # request, blocks, bytes, duration of the round
    GRAPH_CAPTURE = 4  # duration, tokens = graph key id
    WARMUP_BEGIN = 5
    WARMUP_END = 6  # duration
    FORK = 7  # request = child, tokens = inherited KV entries, blocks = parent's ordinal
    CANCEL_REQUESTED = 8  # request
    OUT_OF_MEMORY = 9  # text = phase: class
    FATAL_ERROR = 10  # text = class of the error
    OVERSIZE = 11  # request, tokens = prompt + limit, bytes = capacity in tokens: it will stop the engine
    SESSION_START = 12  # the generation thread starts
    SESSION_STOP = 13
    CACHE_EVICTION = 14  # blocks = cached prefix blocks given up
    PREFIX_MATCH = 15  # request, tokens: matched, yet not scheduled in the same step


class StepFlag(enum.IntFlag):
    """Bits of :attr:`Step.flags`."""

    DECODE_FAST_PATH = 1
    GRAPH_HIT = 2
    GRAPH_CAPTURED = 4
    ADMISSION_BLOCKED = 8  # the engine admits nothing new since an offload
    ASYNC = 16


class RequestFlag(enum.IntFlag):
    """Bits of :attr:`Request.flags`."""

    STREAMING = 1
    SUBMIT_UNSEEN = 2  # the recorder was attached later: submit_ns is when the request was first seen
    FORKED = 4  # child of another request: submit_ns is the parent's


class ChunkFlag(enum.IntFlag):
    """Bits in the flags byte of a chunk (:attr:`StepDetail.chunks`)."""

    NEW_TOKEN = 1  # the step ends the prefill: a token comes out
    DECODE = 2  # one of its tokens is a decode: the newest token, processed for the first time


class Severity(enum.IntEnum):
    """How bad a finding is: worth knowing, doubtful, something is lost, or nothing can be used."""

    INFO = 0
    WARNING = 1
    DATA_LOSS = 2
    BROKEN = 3


class KvGroup(Struct):
    """One group of layers with a block pool or allocator of its own."""

    name: str
    layers: int
    block_bytes: int
    tokens_per_block: int
    window: int = -1
    """Sliding window in tokens; -1 for full attention."""


class KvGeometry(Struct):
    """The KV cache as it was allocated. ``capacity_units * unit_bytes`` bytes can hold requests; ``reserved_bytes``
    more are allocated and never given out (the engine's trash blocks)."""

    unit_bytes: int
    capacity_units: int
    reserved_bytes: int
    capacity_tokens: int
    """Whole-model tokens that fit; a lower bound for models with sliding windows."""
    groups: list[KvGroup]
    unit_name: str = "block"


class Header(Struct, array_like=True, tag=1):
    """First frame: who recorded what, on which clock, and what was stored."""

    run_id: str
    name: str
    tags: dict[str, str]
    tool_version: str
    mono_ns: int
    """``time.monotonic_ns()`` at the start: the zero of all times."""
    wall_ns: int
    """``time.time_ns()`` at the same instant."""
    rank: int
    world_size: int
    stored: list[str]
    """Opt-ins beyond lengths, ids and hashes: ``token_ids``, ``paths``."""
    fingerprint: Facts
    predicted: bool = False


class Engine(Struct, array_like=True, tag=2):
    """An engine was found and hooked; its resolved settings and the cache it made."""

    t_ns: int
    adapter: str
    """``blocks`` (one pool of equal blocks) or ``sectors`` (one allocator an attention type)."""
    verified: bool
    """Whether this version of Transformers is one that cbtrace was tested on."""
    requested: Facts
    resolved: Facts
    model: Facts
    generation: Facts
    kv: KvGeometry
    missing: list[str]
    """Hook points that were not found: their fields are absent."""
    predicted_memory: dict[str, int]
    """Bytes by term of the engine's own memory model at the resolved sizes; empty when unknown."""


class Request(Struct, array_like=True, tag=3):
    """A request was submitted."""

    request: int
    id: str
    incarnation: int
    parent: int
    prompt_tokens: int
    max_new_tokens: int
    submit_ns: int
    flags: int = 0
    planned_ns: int = -1
    prompt_hash: bytes = b""
    """8 bytes of BLAKE2b over the prompt's token ids: pairs requests of two runs without storing them."""
    generated_before: int = 0
    """Tokens it had before the recorder saw it (only with ``SUBMIT_UNSEEN``)."""


class Visible(Struct, array_like=True, tag=4):
    """The generation loop handed a request to the scheduler (again after a soft reset or an offload)."""

    request: int
    t_ns: int


class Admit(Struct, array_like=True, tag=5):
    """A request became active: it holds ``slot`` from ``step`` on, until it ends, is soft reset or offloaded.

    ``serial`` counts admissions from 0, so that a lost one is noticed. ``start`` tokens of KV were there before any
    was computed: by a prefix hit (``prefix_hit`` of them), a restore from the CPU, or a fork. ``computed`` is how many
    positions of this request had been computed at any time before (0 at first; more after a soft reset).
    """

    serial: int
    request: int
    slot: int
    step: int
    t_ns: int
    residency: int
    start: int
    prefix_hit: int
    computed: int


class Roster(Struct, array_like=True, tag=6):
    """All slots in use before ``step``: lets a reader that lost admissions find its way again."""

    step: int
    next_serial: int
    slots: list[int]
    """Alternately slot and request."""
    serials: list[int]
    """The admission serial of each occupied slot, in the same order."""
    positions: list[int] = []
    """KV entries of each before ``step``, in the same order; empty or -1 when the recorder does not know them. Makes a
    reader independent of steps it does not have."""
    delivered: list[int] = []
    """Tokens of each before ``step``, those of steps still under way included; likewise."""


class StepDetail(Struct, array_like=True):
    """The parts of a step that are seldom there."""

    chunks: bytes | None = None
    """Requests that did anything but one plain decode: rows of :data:`CHUNK_FIELDS` (request, prefill, recompute,
    flags)."""
    wasted: bytes | None = None
    """uint32 ordinals whose token of this step was computed and dropped."""
    starved: bytes | None = None
    """uint32 ordinals of active requests that got no KV."""
    attempts: int = 1
    """Calls of the scheduler until something could be scheduled."""
    groups: bytes | None = None
    """Models with several KV groups: int32 (free, cached) in blocks for each group, in order."""


class Step(Struct, array_like=True, tag=7):
    """One batch, written when its results were applied."""

    index: int
    times: bytes
    """uint64 start, then five deltas of equal width (3, 4 or 8 bytes, little-endian), each from the instant before:
    scheduled, prepared, launched, ready, done. *start*: the engine begins to prepare the batch; *scheduled*: the
    scheduler has returned; *prepared*: inputs are written; *launched*: the launch returned (synchronous engines have
    waited for the result here); *ready*: the host has the results; *done*: requests are updated."""
    gpu_ns: int
    """Device time between the first and the last kernel of the step, -1 unknown."""
    decode: bytes
    """Bit set over slots (bit i of byte i//8, least significant first): requests that decode exactly one token."""
    kv_free: int
    """Units free when the step was scheduled, without cached ones."""
    kv_cached: int
    """Units that hold a reusable prefix and belong to no request."""
    waiting: int
    """Requests left waiting when the step was scheduled."""
    active: int
    """Requests active when the step was scheduled."""
    stop: int
    flags: int
    graph: int = 0
    """Id of the :class:`GraphKey` whose padded sizes were used; 0 when sizes are not padded."""
    detail: StepDetail | None = None


class End(Struct, array_like=True, tag=8):
    """A request reached its terminal state."""

    request: int
    t_ns: int
    step: int
    reason: int
    generated: int
    blocks: int
    """KV blocks held when it ended, over all groups, shared ones included; -1 unknown."""
    output_hash: bytes = b""
    error: str = ""
    """Class of the error of a failed request, never its text."""


class Event(Struct, array_like=True, tag=9):
    """Something happened; see :class:`EventKind` for the fields each kind fills."""

    kind: int
    t_ns: int
    step: int
    request: int = -1
    tokens: int = -1
    blocks: int = -1
    bytes: int = -1
    duration_ns: int = -1
    text: str = ""


class Memory(Struct, array_like=True, tag=10):
    """Memory as the allocator and the device report it. Peaks are since the previous sample. -1 unknown."""

    t_ns: int
    mark: str
    """Name of a budget mark (``model_loaded``, ``cache_created``, ``inputs_created``, ``warmed_up``,
    ``before_first_request``) or empty for a plain sample."""
    allocated: int = -1
    reserved: int = -1
    peak_allocated: int = -1
    peak_reserved: int = -1
    device_used: int = -1
    device_total: int = -1
    host_rss: int = -1


class Gpu(Struct, array_like=True, tag=11):
    """One NVML sample of the whole device."""

    t_ns: int
    utilization: int = -1
    memory_used: int = -1
    power_mw: int = -1
    sm_clock_mhz: int = -1
    memory_clock_mhz: int = -1
    temperature_c: int = -1
    throttle: int = -1
    """NVML's bit mask of throttle reasons."""
    processes: int = -1
    """Compute processes on the device, this one included."""


class Clock(Struct, array_like=True, tag=12):
    """Both clocks at one instant, repeated, so that drift and sleep are seen."""

    t_ns: int
    wall_ns: int


class GraphKey(Struct, array_like=True, tag=13):
    """Padded sizes of a batch, interned. ``kv`` is 0 on the decode fast path, which has no padded KV length."""

    id: int
    decode_fast_path: bool
    queries: int
    kv: int


class TokenIds(Struct, array_like=True, tag=14):
    """Opt-in: the generated token ids of a request, int32 little-endian."""

    request: int
    ids: bytes


class Notice(Struct, array_like=True, tag=15):
    """The recorder says something about the recording itself."""

    t_ns: int
    slug: str
    severity: int
    text: str


class Footer(Struct, array_like=True, tag=16):
    """Last frame: why the recording ended and what it cost."""

    t_ns: int
    reason: str
    """``closed``, or why the recorder stopped early: ``disk_full``, ``io_error``, ``recorder_error``, ``max_size``."""
    steps: int
    requests: int
    frames: int
    """Frames written, this one and those given up by a ring included."""
    cost_ns: int
    """Time spent inside the recorder on the generation thread."""
    cost_p50_ns: int
    """Per step."""
    cost_p99_ns: int
    text: str = ""


class Overwritten(Struct, array_like=True, tag=17):
    """A ring gave up what came before ``step``, for want of room. Written behind the frames it always keeps (header,
    engines, budget marks, notices, graph keys, events, the requests then alive) and before the roster of ``step``."""

    step: int
    steps: int
    """Steps given up since the recording began."""
    frames: int
    """All frames given up since the recording began."""


Frame = (
    Header
    | Engine
    | Request
    | Visible
    | Admit
    | Roster
    | Step
    | End
    | Event
    | Memory
    | Gpu
    | Clock
    | GraphKey
    | TokenIds
    | Notice
    | Footer
    | Overwritten
)

CHUNK_FIELDS = (("request", "<u4"), ("prefill", "<u4"), ("recompute", "<u4"), ("flags", "<u1"))
"""One row of :attr:`StepDetail.chunks`, packed without padding: 13 bytes."""
CHUNK_FORMAT = "<IIIB"
