"""Memory marks and samples: what the allocator, the device and the process hold.

How the numbers add up
----------------------
The marks are taken in this order; A and R are ``allocated`` and ``reserved`` at a mark, and S is the sample with the
largest ``peak_reserved`` while requests ran:

===================== ========================== ===========================================================
mark                  taken                      its term
===================== ========================== ===========================================================
model_loaded          before the cache is made   *weights* = A (all that was allocated before the engine)
cache_created         the cache exists           *KV cache* = A - A(model_loaded)
inputs_created        static tensors exist       *static inputs* = A - A(cache_created)
warmed_up             after the warm-up          *graph pools* = R - R(inputs_created): graphs' private pools, and
                                                 what eager warm-up passes left behind
before_first_request  before the first step      A is the *resident* set
===================== ========================== ===========================================================

* *activation peak* = peak_allocated(S) - A(before_first_request). A replayed graph works inside its pool, which the
  allocator does not count as allocated: with graphs, this term is small and the pools hold the activations.
* *slack* = what is left of peak_reserved(S): reserved and in no term above. Without a warm-up, the pools of graphs that
  are captured later are in here, since the allocator does not tell them apart.
* *outside* = device_used(S) - reserved(S): the CUDA context, libraries, other processes.
* *free* = device_total - device_used(S).

These sum to the device's total but for reserved(S) - peak_reserved(S): memory given back between the peak and the
sample. That difference, and a term that comes out negative, is *unattributed*, and is shown as such.

Peaks
-----
Each sample resets PyTorch's peak statistics, so that its peak is the one since the sample before, however seldom
samples are. No peak is missed as long as samples are taken on the thread that allocates; the first sample's peak
reaches back to the start of the process. The price: ``torch.cuda.max_memory_allocated()`` in the user's own code then
reports the peak since our last sample. ``keep_user_peaks=True`` resets nothing. A sample then has a peak only when the
running maximum rose since the sample before (it is exact, because it happened in between); else its peak is -1.

Cost
----
Not due: one comparison (about 0.07 µs with the call). Due: one dictionary from the allocator
(``memory_stats_as_nested_dict``, without the flattening and sorting that make ``memory_stats`` dear), one query of the
driver and one read of ``/proc``, from a file that stays open (psutil opens it each time, at ten times the cost; it is
used where there is no ``/proc``). The engine's own ``get_device_and_memory_breakdown`` is never used: it empties the
cache and synchronizes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import IO, Any

from msgspec.structs import replace

from cbtrace.traces.schema import Memory

_Reading = dict[str, int]
"""Some of :class:`Memory`'s fields."""

DEFAULT_PERIOD_NS = 100_000_000
STATM = "/proc/self/statm"
_SILENT_PERIODS = 10
_WAVERING = 1 << 20


class MemoryProbe:
    """Takes :class:`~cbtrace.traces.schema.Memory` frames of one ``device`` (a ``torch.device`` or its name).

    ``clock`` gives the trace's time in nanoseconds. Sizes are bytes, and -1 where the device has no such number (on a
    CPU only ``host_rss`` is known). Never raises: a source that fails is given up, its fields are -1 from then on, and
    :attr:`reasons` says why. Use it from the engine's thread; it does not lock.
    """

    def __init__(
        self,
        device: Any,
        clock: Callable[[], int],
        *,
        period_ns: int = DEFAULT_PERIOD_NS,
        keep_user_peaks: bool = False,
    ) -> None:
        self.next_ns = 0
        """When the next sample is due, on ``clock``."""
        self.reasons: list[str] = []
        self._clock = clock
        self._period_ns = period_ns
        self._last: Memory | None = None
        """The newest sample that was given out, unless a mark came after it."""
        self._reset: Callable[[], object] | None = None
        self._running_peaks: _Reading = {}
        self._statm: IO[bytes] | None = None
        self._sources: dict[str, Callable[[], _Reading]] = {}
        self._attempt("the process's memory", self._watch_process)
        self._attempt("the device's memory", lambda: self._watch_device(device))
        if keep_user_peaks:
            self._reset = None
        if self._reset is None:
            self._running_peaks = _peaks(self._read())

    def sample(self, now_ns: int) -> Memory | None:
        """A sample if one is due at ``now_ns`` and says anything new, else ``None``.

        One that reads as the last one did is left out, for ten periods at most: nothing changed meanwhile, and no
        peak was higher. The process's memory always wavers a little: less than 1 MiB is no change.
        """
        if now_ns < self.next_ns:
            return None
        sample, last = self._take("", now_ns), self._last
        silent = last is not None and now_ns - last.t_ns < _SILENT_PERIODS * self._period_ns
        if silent and sample is not None and last is not None and _same(sample, last):
            return None
        self._last = sample
        return sample

    def mark(self, name: str) -> Memory | None:
        """A budget mark, now. ``None`` when nothing at all can be read."""
        self._last = None
        return self._take(name, self._clock())

    def close(self) -> None:
        """Take no more samples: close what was open for them."""
        self._sources.clear()
        if self._statm is not None:
            with contextlib.suppress(OSError):  # the program may have closed it: all that it did not know, for one
                self._statm.close()

    def _take(self, mark: str, now_ns: int) -> Memory | None:
        self.next_ns = now_ns + self._period_ns
        reading = self._read()
        if not reading:
            return None
        peaks = _peaks(reading)
        if self._reset is None:
            reading |= {name: -1 for name, peak in peaks.items() if peak <= self._running_peaks.get(name, -1)}
            self._running_peaks = peaks
        else:
            self._reset_peaks(peaks)
        return Memory(now_ns, mark, **reading)

    def _reset_peaks(self, peaks: _Reading) -> None:
        try:
            if self._reset is not None:
                self._reset()
        except Exception as error:
            # From here on the peaks are running maxima, as if the user had asked to keep them.
            self._reset, self._running_peaks = None, peaks
            self.reasons.append(f"peaks cannot be reset: {type(error).__name__}")

    def _read(self) -> _Reading:
        reading: _Reading = {}
        for name, source in list(self._sources.items()):
            reading |= self._attempt(name, source) or {}
        return reading

    def _attempt(self, name: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            self.reasons.append(f"{name} cannot be read: {type(error).__name__}")
            self._sources.pop(name, None)
            return None

    def _watch_process(self) -> None:
        try:
            statm = self._statm = open(STATM, "rb", buffering=0)  # noqa: SIM115 - stays open until close()
        except OSError:
            process = importlib.import_module("psutil").Process()
            self._sources["the process's memory"] = lambda: {"host_rss": process.memory_info().rss}
            return
        page = os.sysconf("SC_PAGE_SIZE")
        self._sources["the process's memory"] = lambda: {
            "host_rss": int(os.pread(statm.fileno(), 99, 0).split()[1]) * page
        }

    def _watch_device(self, device: Any) -> None:
        torch = importlib.import_module("torch")
        target = torch.device(device)
        if target.type in ("cuda", "xpu"):
            module: Any = getattr(torch, target.type)
            index = module.current_device() if target.index is None else target.index
            self._sources["the allocator's memory"] = lambda: _allocator(module, index)
            self._sources["the device's memory"] = lambda: _device(module, index)
            self._reset = lambda: module.reset_peak_memory_stats(index)
        elif target.type == "mps":
            self._sources["the allocator's memory"] = _mps


def _allocator(module: Any, index: int) -> _Reading:
    stats = module.memory_stats_as_nested_dict(index)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return {
        "allocated": allocated["current"],
        "reserved": reserved["current"],
        "peak_allocated": allocated["peak"],
        "peak_reserved": reserved["peak"],
    }


def _device(module: Any, index: int) -> _Reading:
    free, total = module.mem_get_info(index)
    return {"device_used": total - free, "device_total": total}


def _mps() -> _Reading:
    torch = importlib.import_module("torch")
    # Metal shares the machine's memory and keeps no peaks; its "driver" figure includes what the allocator caches.
    return {
        "allocated": torch.mps.current_allocated_memory(),
        "reserved": torch.mps.driver_allocated_memory(),
        "device_total": torch.mps.recommended_max_memory(),
    }


def _same(sample: Memory, last: Memory) -> bool:
    wavers = abs(sample.host_rss - last.host_rss) < _WAVERING
    return wavers and sample == replace(last, t_ns=sample.t_ns, host_rss=sample.host_rss)


def _peaks(reading: _Reading) -> _Reading:
    return {name: value for name, value in reading.items() if name.startswith("peak_")}
