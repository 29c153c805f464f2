"""Recording from Python: ``with record("run.cbt"): ...`` and ``attach(manager, "run.cbt")``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cbtrace.recorder.attach import ManagerHooks, Watches
from cbtrace.recorder.engine.classes import manager_class
from cbtrace.recorder.engine_watch import EngineWatch, is_out_of_memory
from cbtrace.recorder.errors import RecordError
from cbtrace.recorder.fingerprint import fingerprint
from cbtrace.recorder.guard import measure_frame
from cbtrace.recorder.options import Options
from cbtrace.recorder.ranks import rank_of_process, run_id
from cbtrace.recorder.sink import Sink, warn_once
from cbtrace.recorder.size_limit import parse_size
from cbtrace.traces.errors import TraceExistsError, UsageError
from cbtrace.traces.schema import Event, EventKind, Header, Scalar, Severity
from cbtrace.traces.writer import TraceWriter


class Recording:
    """A recording under way; leaves the engine as it found it when closed.

    Each engine of the process is a run and gets a trace of its own: the first goes to ``path``, the next to ``path``
    with ``-2`` before the suffix, and so on. The first trace exists from the start, so that a folder that cannot be
    written is an error at once and not after the work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        overwrite: bool = False,
        token_ids: bool = False,
        paths: bool = False,
        nvml: bool = True,
        gpu_time: bool = True,
        keep_user_peaks: bool = False,
        facts: Mapping[str, Scalar] | None = None,
        max_size: int | str | None = None,
        ring: bool = False,
    ) -> None:
        if ring and max_size is None:
            raise UsageError(
                "A ring needs a limit to keep to: say how large the trace may be, as in 50MB.",
                slug="no-size-limit",
            )
        self._max_bytes = None if max_size is None else parse_size(max_size)
        self._ring = ring
        self._options = Options(token_ids, paths, nvml, gpu_time, keep_user_peaks)
        self._rank, self._world_size = rank_of_process()
        self._path = _with_rank(Path(path), self._rank)
        self._name = name if name is not None else Path(path).stem
        self._tags = {str(key): str(value) for key, value in (tags or {}).items()}
        self._facts = dict(facts or {})
        self._planned: dict[str, int] = {}
        self._overwrite = overwrite
        self._lock = threading.Lock()
        self._closed = False
        self._ended_by = ""
        self.began_ns = time.time_ns()
        self.paths: list[Path] = []
        """The traces written so far; once closed, those that nobody has removed meanwhile."""
        self._spare: Sink | None = self._open(self._path)
        self._watches = Watches(self._make_watch)
        self._hooks = ManagerHooks(self._watches.of)

    @property
    def engines(self) -> int:
        """Engines recorded so far."""
        return len(self._watches.sinks)

    @property
    def steps(self) -> int:
        """Steps recorded so far, over all engines."""
        return sum(sink.steps for sink in self._watches.sinks)

    def plan(self, request_id: str, planned_monotonic_ns: int) -> None:
        """Tell when a request was planned to be submitted, on ``time.monotonic_ns``. To be called before it is."""
        self._planned[request_id] = planned_monotonic_ns

    def install(self) -> None:
        """Take hold of every engine of the process from here on.

        Raises:
            RecordError: Transformers is missing or too old; the trace is removed again.
        """
        try:
            missing = self._hooks.install(manager_class())
        except ImportError as error:
            self._discard()
            raise RecordError(
                "Transformers with continuous batching is not installed here: "
                'install the recorder\'s part with pip install "cbtrace[record]".',
                slug="no-transformers",
            ) from error
        self._tell_missing(missing)

    def install_on(self, manager: Any) -> None:
        """Take hold of one manager, before or after its start."""
        self._tell_missing(self._hooks.install_on(manager))
        watch = self._watches.of(manager)
        if watch is None:
            return
        try:
            watch.created(manager)
        except Exception as error:
            watch.sink.fail(error)

    @property
    def stopped(self) -> dict[Path, tuple[str, str]]:
        """Traces whose recording stopped early, and why: see :attr:`Sink.stopped_by`."""
        return {sink.path: sink.stopped_by for sink in self._watches.sinks if sink.stopped_by}

    def close(self, ended_by: str = "") -> None:
        """Give back every method and close the traces. Idempotent.

        ``ended_by`` is the signal or the class of error that ends the program, when one does: the end mark says so.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._hooks.remove()
        self._watches.close(ended_by or self._ended_by)
        if self._spare is not None:
            text = "No continuous-batching engine was created while this was recorded."
            self._spare.notice("no-engine", Severity.WARNING, text)
            self._spare.close(ended_by or self._ended_by)
        self.paths[:] = [path for path in self.paths if path.exists()]

    def note_failure(self, error: BaseException) -> None:
        """The program fails with this error: running out of memory before any engine is a phase of its own."""
        if not isinstance(error, SystemExit):
            self._ended_by = type(error).__name__
        spare = self._spare
        if spare is not None and is_out_of_memory(error):
            text = f"model load: {type(error).__name__}"
            spare.emit(Event(EventKind.OUT_OF_MEMORY, spare.now(), 0, text=text))

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.note_failure(error)
        self.close()

    def _make_watch(self) -> EngineWatch | None:
        with self._lock:
            if self._closed:
                return None
            sink, self._spare = self._spare, None
            if sink is None:
                sink = self._open_next()
            return EngineWatch(sink, self._options, self._planned) if sink is not None else None

    def _open_next(self) -> Sink | None:
        """Open a trace for one more engine, under the next number that is free. An engine that cannot be recorded is
        told once and left alone."""
        number = len(self.paths) + 1
        while True:
            try:
                return self._open(_numbered(self._path, number))
            except TraceExistsError:
                number += 1
            except Exception as error:
                warn_once(f"cbtrace does not record a further engine: {error}; generation goes on unrecorded")
                return None

    def _open(self, path: Path) -> Sink:
        epoch_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        writer = TraceWriter(path, overwrite=self._overwrite, max_bytes=self._max_bytes, ring=self._ring)
        sink = Sink(writer, path, epoch_ns, measure_frame())
        sink.emit(
            Header(
                run_id=run_id(self._world_size),
                name=self._name if not self.paths else f"{self._name}-{len(self.paths) + 1}",
                tags=self._tags,
                tool_version=_version(),
                mono_ns=epoch_ns,
                wall_ns=wall_ns,
                rank=self._rank,
                world_size=self._world_size,
                stored=self._options.stored(),
                fingerprint=fingerprint(paths=self._options.paths, settings=self._options.facts()) | self._facts,
            )
        )
        self.paths.append(path)
        return sink

    def _discard(self) -> None:
        if self._spare is not None:
            self._spare.close()
            with contextlib.suppress(OSError):
                self._spare.path.unlink()
            self._spare = None
        self.paths.clear()

    def _tell_missing(self, missing: list[str]) -> None:
        if self._spare is not None:
            self._spare.tell_missing(missing)


def record(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    overwrite: bool = False,
    token_ids: bool = False,
    paths: bool = False,
    nvml: bool = True,
    gpu_time: bool = True,
    keep_user_peaks: bool = False,
    facts: Mapping[str, Scalar] | None = None,
    max_size: int | str | None = None,
    ring: bool = False,
) -> Recording:
    """Record every continuous-batching engine that this process runs, until the recording is closed.

    >>> with record("run.cbt", name="baseline", tags={"model": "llama-1b"}):
    ...     model.generate_batch(inputs)

    Recording never changes tokens, never raises into generation and undoes all its hooks at the end. When something
    goes wrong, it stops with one warning and generation goes on.

    Args:
        path: the trace to create. A second engine in the same process goes to ``path`` with ``-2`` added, a tensor
            parallel rank above 0 to ``path`` with ``.rank1`` added.
        name: how reports call the run; the file's stem by default.
        tags: free labels shown and filtered by in reports.
        overwrite: replace a trace that exists.
        token_ids: store generated token ids (by default only lengths and hashes are).
        paths: store file paths in the fingerprint.
        nvml: sample the GPU through NVML every 100 ms.
        gpu_time: time each step on the GPU with two events.
        keep_user_peaks: leave ``torch.cuda.max_memory_allocated()`` to your own code. By default the recorder resets
            the peak at each of its samples, so that no transient is missed; your code then sees the peak since then.
        facts: further conditions of the run for the fingerprint, under dotted names such as ``workload.requests``.
        max_size: what each trace may take on the disk, as bytes or as in ``"50MB"`` and ``"1.5GiB"``; at least 64 KiB.
            At the limit the recording stops, and the trace says so.
        ring: at the limit, give up the oldest steps instead, and go on. The header, the engine, budget marks, the
            newest events and the requests alive are always kept.

    Raises:
        cbtrace.traces.CbtraceError: the trace cannot be created, or Transformers is not installed.
        OSError: the folder cannot be written.
    """
    recording = Recording(
        path,
        name=name,
        tags=tags,
        overwrite=overwrite,
        token_ids=token_ids,
        paths=paths,
        nvml=nvml,
        gpu_time=gpu_time,
        keep_user_peaks=keep_user_peaks,
        facts=facts,
        max_size=max_size,
        ring=ring,
    )
    recording.install()
    return recording


def attach(manager: Any, path: str | os.PathLike[str], **options: Any) -> Recording:
    """Record one manager, before or after its ``start()``; options as for :func:`record`.

    Of requests that were submitted before, the submit time is unknown and said to be so.
    """
    recording = Recording(path, **options)
    recording.install_on(manager)
    return recording


def _with_rank(path: Path, rank: int) -> Path:
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _version() -> str:
    from importlib.metadata import version

    return version("cbtrace")
