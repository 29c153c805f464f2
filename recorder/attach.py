"""Where the recorder takes hold of Transformers.

The one patch point of the engine is ``ContinuousBatchingManager._create_batch_processor``: it is stable over all
supported versions and every way in goes through it (``generate_batch``, the context manager, ``transformers serve``, a
manager of one's own). Everything inside the engine is hooked on the instances it returns. A few more methods of the
same class are hooked because they run before an engine exists, on the caller's side: without them the settings as
requested, and requests submitted while the cache is still being made, would not be seen.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from cbtrace.recorder.engine.classes import processor_class
from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.hooks import Around, Holder, HookSet
from cbtrace.recorder.model_facts import config_facts
from cbtrace.recorder.sink import Sink
from cbtrace.traces.schema import EventKind, Facts

_WHOLE = {"model", "generation_config", "continuous_batching_config", "input_queue"}
"""Attributes of every manager whose construction has ended."""

FindWatch = Callable[[Any], "EngineWatch | None"]
"""Returns the watch that records a manager, or ``None`` when nothing is to be recorded."""


class ManagerHooks:
    """The hooks on ``ContinuousBatchingManager`` (on the class, or on one instance of it)."""

    def __init__(self, find: FindWatch) -> None:
        self._find = find
        self._hooks = HookSet()
        self._class: type = object

    def install(self, manager_class: type) -> list[str]:
        """Hook the class; return the names of methods it lacks."""
        add = self._hooks.add
        self._class = manager_class
        add(manager_class, "__init__", self._around_init)
        for name, act in self._methods().items():
            add(manager_class, name, self._around(act))
        # The moment between cache and inputs is only seen where the processor's own construction begins.
        processors = processor_class(manager_class)
        if processors is not None:
            add(processors, "__init__", self._around_processor_init)
        return self._hooks.missing

    def install_on(self, manager: Any) -> list[str]:
        """Hook one manager only; return the names of methods it lacks."""
        for name, act in self._methods().items():
            self._hooks.add(manager, name, self._around(act, manager))
        return self._hooks.missing

    def remove(self) -> None:
        """Give back every method."""
        self._hooks.remove()

    def _methods(self) -> dict[str, Any]:
        return {
            "_create_batch_processor": self._create_processor,
            "add_request": self._add_request,
            "cancel_request": self._cancel_request,
            "start": self._start,
            "stop": self._stop,
            "join": self._join,
            "_handle_critical_error": self._critical,
        }

    def _around(self, act: Any, manager: Any = None) -> Around:
        """Build a stand-in that behaves as ``act(watch, manager, call, args, kwargs)``: of a class's method unless the
        manager is given.

        ``call`` makes the engine's own call. It is made exactly once, also when the watch cannot be had or fails.
        """

        def around(hook: Holder) -> Callable[..., Any]:
            def stand_in(*args: Any, **kwargs: Any) -> Any:
                owner = manager if manager is not None else self._manager_of(args)
                watch = self._safe_find(owner) if owner is not None else None
                call = _Once(hook.original, args, kwargs)
                if watch is None or not watch.sink.live:
                    return call()
                given = args if manager is not None else args[1:]
                try:
                    act(watch, owner, call, given, kwargs)
                except BaseException as error:
                    if error is call.error:
                        raise
                    if not isinstance(error, Exception):
                        raise
                    watch.sink.fail(error)
                return call()

            return stand_in

        return around

    def _manager_of(self, args: tuple[Any, ...]) -> Any:
        """Return the manager that a method of the class was called on, if it is one: tests also call such methods on
        mocks, or on objects that were never initialized, and those are none of our business."""
        manager = args[0] if args else None
        if issubclass(type(manager), self._class) and vars(manager).keys() >= _WHOLE:
            return manager
        return None

    def _safe_find(self, manager: Any) -> EngineWatch | None:
        with contextlib.suppress(Exception):
            return self._find(manager)
        return None

    # What each method tells ------------------------------------------------------------------------------------------

    def _around_init(self, hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            config = kwargs.get("continuous_batching_config", args[3] if len(args) > 3 else None)
            requested: Facts = {}
            # The manager may resolve values in the very object it was given, so it is read before.
            with contextlib.suppress(Exception):
                requested = config_facts(config) if config is not None else {}
            result = hook.original(*args, **kwargs)
            manager = self._manager_of(args)
            watch = self._safe_find(manager) if manager is not None else None
            if watch is not None and watch.sink.live:
                try:
                    watch.requested = requested
                    watch.created(manager)
                except Exception as error:
                    watch.sink.fail(error)
            return result

        return stand_in

    def _create_processor(self, watch: EngineWatch, manager: Any, call: _Once, _args: Any, _kwargs: Any) -> None:
        watch.cache_begins(manager)
        with _current_watch(watch):
            try:
                processor = call()
            except Exception as error:
                watch.out_of_memory(watch.sink.now(), error)
                raise
        watch.engine_created(manager, processor)

    def _around_processor_init(self, hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            watch = getattr(_creating, "watch", None)
            if watch is not None:
                try:
                    watch.inputs_begin()
                except Exception as error:
                    watch.sink.fail(error)
            return hook.original(*args, **kwargs)

        return stand_in

    def _add_request(self, watch: EngineWatch, manager: Any, call: _Once, _args: Any, _kwargs: Any) -> None:
        watch.created(manager)
        watch.submit_begins(watch.sink.now())
        call()

    def _cancel_request(self, watch: EngineWatch, _manager: Any, call: _Once, args: Any, kwargs: Any) -> None:
        watch.cancel_requested(watch.sink.now(), (*args, *kwargs.values())[0])
        call()

    def _start(self, watch: EngineWatch, manager: Any, call: _Once, _args: Any, _kwargs: Any) -> None:
        watch.created(manager)
        if not manager.is_running():
            watch.session(watch.sink.now(), EventKind.SESSION_START)
        call()

    def _stop(self, watch: EngineWatch, manager: Any, call: _Once, args: Any, kwargs: Any) -> None:
        started = getattr(manager, "_generation_thread", None) is not None
        watch.keeps_engine = bool(kwargs.get("keep_for_next_session", args[2] if len(args) > 2 else False))
        call()
        if started:
            watch.session(watch.sink.now(), EventKind.SESSION_STOP)

    def _join(self, watch: EngineWatch, manager: Any, call: _Once, _args: Any, _kwargs: Any) -> None:
        call()
        if not manager.is_running():
            watch.thread_ended()

    def _critical(
        self, watch: EngineWatch, _manager: Any, call: _Once, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        error, *rest = [*args, *kwargs.values()]
        watch.fatal(watch.sink.now(), error, rest[0] if rest else None)
        call()


class _Once:
    """The engine's own call: made at most once, its outcome kept; a failure of ours can neither repeat nor drop it."""

    __slots__ = ("_args", "_done", "_kwargs", "_original", "_result", "error")

    def __init__(self, original: Any, args: Any, kwargs: Any) -> None:
        self._original, self._args, self._kwargs = original, args, kwargs
        self._done = False
        self._result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        if not self._done:
            self._done = True
            try:
                self._result = self._original(*self._args, **self._kwargs)
            except BaseException as error:
                self.error = error
                raise
        if self.error is not None:
            raise self.error
        return self._result


_creating = threading.local()


@contextlib.contextmanager
def _current_watch(watch: EngineWatch) -> Any:
    """While a processor is created on this thread, its parts know whom to tell."""
    before = getattr(_creating, "watch", None)
    _creating.watch = watch
    try:
        yield
    finally:
        _creating.watch = before


class Watches:
    """The watch of each manager, made at first sight. Once its manager is gone, a watch is closed as soon as the next
    one is made, so that a program with many managers has few files open."""

    def __init__(self, make: Callable[[], EngineWatch | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_manager: weakref.WeakKeyDictionary[Any, EngineWatch | None] = weakref.WeakKeyDictionary()
        self._open: list[tuple[weakref.ref[Any], EngineWatch]] = []
        self.sinks: list[Sink] = []
        """Of all watches made so far."""

    def of(self, manager: Any) -> EngineWatch | None:
        """Return the manager's watch, making it if there is none yet."""
        with self._lock:
            if manager not in self._by_manager:
                self._close_orphans()
                watch = self._make()
                self._by_manager[manager] = watch
                if watch is not None:
                    weakref.finalize(manager, watch.manager_gone).atexit = False
                    self.sinks.append(watch.sink)
                    self._open.append((weakref.ref(manager), watch))
            return self._by_manager[manager]

    def close(self, ended_by: str) -> None:
        """Close all of them; see :meth:`Sink.close`."""
        with self._lock:
            watches, self._open = self._open, []
        for _, watch in watches:
            watch.close(ended_by)

    def _close_orphans(self) -> None:
        for manager, watch in self._open:
            if manager() is None:
                watch.close()
        self._open = [(manager, watch) for manager, watch in self._open if manager() is not None]
