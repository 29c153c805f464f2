"""Runs at the start of every Python of a program under ``cbtrace record``, and steps aside at once.

``cbtrace record`` replaces itself with the program, whose environment then has this folder first on ``PYTHONPATH`` and
the settings of the recording in ``CBTRACE_RECORD``. Here the folder is taken off ``sys.path`` again, two modules are
waited for, and the ``sitecustomize`` that the environment may have is run as if nothing had come before it:

* when ``transformers`` is imported, signals that would kill the process without a word are made to close the trace
  first, unless the program has a handler of its own for them;
* when Transformers' continuous batching is imported, its manager is made to start the recording as the first one is
  built. A process that never builds one writes no file.

Only what Python has loaded anyway is used until then: every child process of the program gets here too.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ENGINE = "transformers.generation.continuous_batching.continuous_api"
_CLOSING_SECONDS = 5.0
"""How long a signal waits for the trace to be closed before the process dies of it."""


class _Session:
    """The recording of this process: begun for the first continuous batching manager, closed at the end."""

    def __init__(self, settings: str) -> None:
        self._settings = settings
        self._owner = os.getpid()
        self._recording: Any = None
        self._begun = False
        self._ended = False
        # The first Python of the program speaks for all of it when nothing was recorded.
        os.environ.setdefault("CBTRACE_RECORD_MAIN", str(self._owner))

    def begin(self) -> None:
        """Start recording, once. What goes wrong is said, and costs the recording and never the program."""
        if self._begun:
            return
        self._begun, self._owner = True, os.getpid()
        try:
            self._recording = _open(self._read_settings())
            self._end_with_multiprocessing()
        except ImportError as error:
            _say(
                f"nothing is recorded, because the Python of the program ({sys.executable}) lacks {error.name}: "
                'run pip install "cbtrace[record]" in its environment',
                "record-extra-missing",
            )
        except Exception as error:
            _say(f"nothing is recorded: {error}", getattr(error, "slug", "failed"))

    def end(self, signal_name: str = "") -> None:
        """Close the trace and say what came of it, once. A child forked while recording has nothing to close."""
        if self._ended:
            return
        self._ended = True
        error = getattr(sys, "last_value", None)
        if error is not None and not self._begun and type(error).__name__ in ("MemoryError", "OutOfMemoryError"):
            self.begin()  # There was no memory for the model itself: that is worth a trace.
        process = os.getpid()
        if self._recording is None:
            if os.environ.get("CBTRACE_RECORD_MAIN") == str(process):
                self._say_nothing_recorded()
        elif process == self._owner:
            if error is not None:
                self._recording.note_failure(error)
            self._recording.close(signal_name)
            if self._recording.paths:
                self._say_outcome()

    def _say_outcome(self) -> None:
        from cbtrace.recorder.outcome import sentences

        settings = self._read_settings()
        replaced = settings["replaces"] is not None and str(self._recording.paths[0]) == settings["path"]
        for text, slug in sentences(self._recording, replaced=replaced):
            _say(text, slug)

    def _say_nothing_recorded(self) -> None:
        settings = self._read_settings()
        path, replaces = settings["path"], settings["replaces"]
        there = os.stat(path) if os.path.exists(path) else None
        kept = there is not None and [there.st_dev, there.st_ino, there.st_mtime_ns] == replaces
        # A new trace is there when a child has recorded.
        if not self._begun and (kept or there is None):
            _say(
                "the program ended without running continuous batching, so there is no trace of it "
                "(generate_batch and transformers serve --continuous-batching run it, generate does not)"
                + (f", and the old {path} was kept" if kept else ""),
                "no-engine",
            )

    def _read_settings(self) -> dict[str, Any]:
        import json

        settings: dict[str, Any] = json.loads(self._settings)
        return settings

    def _end_with_multiprocessing(self) -> None:
        # A forked worker of multiprocessing leaves through os._exit, after its own finalizers and without atexit's.
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self.end, exitpriority=-100)


def _open(settings: dict[str, Any]) -> Any:
    """Start the recording under the first name that no other process has taken."""
    from cbtrace.recorder import record
    from cbtrace.recorder.claim import claimed
    from cbtrace.recorder.ranks import rank_of_process
    from cbtrace.traces.errors import TraceExistsError

    path, overwrite, replaces = (settings.pop(name) for name in ("path", "overwrite", "replaces"))
    stem, suffix = os.path.splitext(path)
    with claimed(path, replaces) as first:
        try:
            # Ranks above 0 get names of their own from the recorder. Others race for the name that was asked for.
            return record(path, overwrite=overwrite and (first or rank_of_process()[0] > 0), **settings)
        except TraceExistsError:
            pass
    return record(f"{stem}.pid{os.getpid()}{suffix}", overwrite=overwrite, **settings)


class _Finder:
    """Sees imports go by, finds nothing itself, and is gone once the engine is imported."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return None, except for the engine: its own spec, made to patch the manager when it is loaded."""
        if name == "transformers":
            _close_before_dying(self._session)
        if name != _ENGINE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _after_loading(spec.loader, lambda engine: _begin_with_first_manager(self._session, engine))
        return spec


def _after_loading(loader: Any, act: Callable[[Any], None]) -> None:
    """Call ``act`` with the module once ``loader`` has executed it."""
    execute = loader.exec_module

    def execute_and_act(module: Any) -> None:
        del loader.exec_module
        execute(module)
        act(module)

    loader.exec_module = execute_and_act


def _begin_with_first_manager(session: _Session, engine: Any) -> None:
    import functools
    import threading

    manager = getattr(engine, "ContinuousBatchingManager", None)
    if manager is None:
        return
    original = manager.__init__
    lock = threading.Lock()

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with lock:
            if manager.__init__ is init:
                manager.__init__ = original
                session.begin()
        # The recorder has put a method of its own in this place.
        manager.__init__(self, *args, **kwargs)

    manager.__init__ = init


def _close_before_dying(session: _Session) -> None:
    """Let signals whose default is to kill the process close the trace first. The process still dies of them."""
    import signal
    import threading

    def close_and_die(number: int, _: Any) -> None:
        # From a thread: this one may hold a lock of the recorder's at this very moment.
        closing = threading.Thread(target=session.end, args=(signal.Signals(number).name,), daemon=True)
        try:
            closing.start()
            closing.join(_CLOSING_SECONDS)
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, close_and_die)


def _say(text: str, slug: str = "") -> None:
    try:
        if sys.__stderr__ is not None:
            print(f"cbtrace: {text}{f' [{slug}]' if slug else ''}", file=sys.__stderr__, flush=True)
    except (OSError, ValueError):
        pass  # The program closed its standard error; there is nobody to tell.


def _start() -> None:
    session = _Session(os.environ["CBTRACE_RECORD"])
    # Registered before anything else, so run after everything else.
    atexit.register(session.end)
    sys.meta_path.insert(0, _Finder(session))


if __name__ == "sitecustomize":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != _here]
    if "CBTRACE_RECORD" in os.environ:
        _start()
    # With this folder off the path, this is the environment's own module, or the ImportError that site expects.
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401
