"""Replacing methods for a while, and giving every one of them back.

A hook stands in for one method of a class or an object. Several hooks may stack on the same method (two recordings at
once, or a profiler over ours) and may be taken off in any order: taking one off the middle splices the chain, so that
after the last one is gone the original object is in its place again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Holder(Protocol):
    """Holds what a stand-in stands for."""

    original: Any


Around = Callable[[Holder], Callable[..., Any]]
"""Builds the stand-in. It reads ``original`` at each call, since splicing may change it."""

_HOOK = "__cbtrace_hook__"
_ABSENT = object()


class Hook:
    """One stand-in. ``original`` is what it stands for: the method, or the hook below it in the chain."""

    __slots__ = ("name", "original", "owned", "owner", "stand_in")

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self.owner = owner
        self.name = name
        # Of a class we must keep the plain function (not what attribute access makes of it) to put it back as it was.
        below = vars(owner).get(name, _ABSENT)
        self.owned = below is not _ABSENT
        self.original: Any = below if self.owned else getattr(owner, name)
        self.stand_in = around(self)
        functools.update_wrapper(self.stand_in, self.original)
        setattr(self.stand_in, _HOOK, self)
        setattr(owner, name, self.stand_in)

    def remove(self) -> bool:
        """Take the stand-in away, whatever has been put over it since; return whether that was possible."""
        if vars(self.owner).get(self.name, _ABSENT) is self.stand_in:
            if self.owned:
                setattr(self.owner, self.name, self.original)
            else:
                delattr(self.owner, self.name)
            return True
        above = getattr(vars(self.owner).get(self.name), _HOOK, None)
        while above is not None:
            if above.original is self.stand_in:
                above.original, above.owned = self.original, self.owned
                return True
            above = getattr(above.original, _HOOK, None)
        # Somebody else's wrapper holds us: we cannot leave, but a hook that is not live only passes calls on.
        return False


@dataclass
class HookSet:
    """The hooks of one watcher, and the hook points it looked for in vain. Once removed, it takes no more hooks."""

    hooks: list[Hook] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    removed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, owner: Any, name: str, around: Around, *, label: str = "") -> bool:
        """Hook ``owner.name``; note it as missing, and change nothing, when there is no such callable."""
        return self.add_passing(owner, name, around, label=label).stands

    def add_passing(self, owner: Any, name: str, around: Around, *, label: str = "") -> PassingHook:
        """Hook ``owner.name`` as :meth:`add` does, for as long as the returned hook is not lifted."""
        passing = PassingHook(self, owner, name, around)
        try:
            if not callable(getattr(owner, name)):
                raise TypeError(f"{name} is not callable")
            passing.put()
        except Exception:
            # An engine we do not know may lack the method or forbid setting it: that costs fields, never the run.
            self.missing.append(label or name)
            passing.possible = False
        return passing

    def remove(self) -> None:
        """Give back every method, newest first."""
        with self.lock:
            self.removed = True
            with contextlib.suppress(IndexError):  # the garbage collector may do the same amid this
                while True:
                    self.hooks.pop().remove()


class PassingHook:
    """A hook that stands only while it can tell something: one that stands costs every step."""

    __slots__ = ("_around", "_hook", "_name", "_owner", "_set", "possible")

    def __init__(self, hooks: HookSet, owner: Any, name: str, around: Around) -> None:
        self._set, self._owner, self._name, self._around = hooks, owner, name, around
        self._hook: Hook | None = None
        self.possible = True
        """False when there is nothing to hook: putting it then does nothing."""

    @property
    def stands(self) -> bool:
        """Whether it is in place."""
        return self._hook is not None

    def put(self) -> None:
        """Put it in place, unless it is or its set has been removed.

        The stand-in is a new one each time: whoever kept an old one, or wrapped it, can call it without coming back
        here.
        """
        with self._set.lock:
            if self._hook is None and self.possible and not self._set.removed:
                self._hook = Hook(self._owner, self._name, self._around)
                self._set.hooks.append(self._hook)

    def lift(self) -> None:
        """Take it away. It stays when somebody else's wrapper holds it."""
        with self._set.lock:
            if self._hook in self._set.hooks and self._hook is not None and self._hook.remove():
                self._set.hooks.remove(self._hook)
                self._hook = None
