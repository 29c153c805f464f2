"""Hooks that stand only while they can tell something come and go, and harm nobody who took hold of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import attach
from cbtrace.recorder.hooks import Holder, HookSet
from engines import Case, prompts, tiny_llama


class Owner:
    """Has one method."""

    def method(self) -> str:
        """The method."""
        return "own"


def counting(calls: list[str], name: str) -> Callable[[Holder], Callable[..., Any]]:
    def around(hook: Holder) -> Callable[..., Any]:
        def stand_in(*args: Any) -> Any:
            calls.append(name)
            return hook.original(*args)

        return stand_in

    return around


def test_it_comes_and_goes_and_goes_for_good_with_its_set() -> None:
    owner, hooks, calls = Owner(), HookSet(), []
    passing = hooks.add_passing(owner, "method", counting(calls, "a"))
    assert passing.stands and owner.method() == "own"
    passing.lift()
    passing.lift()
    assert not passing.stands and vars(owner) == {} and owner.method() == "own"
    passing.put()
    passing.put()
    assert owner.method() == "own" and calls == ["a", "a"]
    hooks.remove()
    passing.put()
    assert vars(owner) == {} and not hooks.hooks


def test_two_sets_on_one_method_lift_theirs_in_any_order() -> None:
    owner, calls = Owner(), []
    sets = HookSet(), HookSet()
    lower, upper = (
        each.add_passing(owner, "method", counting(calls, name)) for each, name in zip(sets, "ab", strict=True)
    )
    lower.lift()
    assert owner.method() == "own" and calls == ["b"]
    lower.put()
    upper.lift()
    assert owner.method() == "own" and calls == ["b", "a"]
    sets[0].remove()
    assert vars(owner) == {}


@pytest.mark.parametrize("lifted_before", [False, True])
def test_a_wrapper_of_somebody_else_never_makes_a_loop(lifted_before: bool) -> None:
    owner, hooks, calls = Owner(), HookSet(), []
    passing = hooks.add_passing(owner, "method", counting(calls, "a"))
    held = owner.method
    if lifted_before:
        passing.lift()
    owner.method = lambda: f"({held()})"  # type: ignore[method-assign]
    passing.lift()
    passing.put()
    assert owner.method() == "(own)"
    hooks.remove()
    assert owner.method() == "(own)"
    del owner.method
    assert owner.method() == "own"


def test_what_is_not_there_is_noted_and_never_put() -> None:
    hooks = HookSet()
    passing = hooks.add_passing(Owner(), "gone", counting([], "a"), label="Owner.gone")
    passing.put()
    assert hooks.missing == ["Owner.gone"] and not passing.stands


@pytest.mark.engine
def test_a_step_without_waiting_requests_passes_through_five_hooks(tmp_path: Path) -> None:
    """Each costs every step: the others stand only while requests wait, or are cancelled."""
    case = Case(prompts(2, 10, 20), new_tokens=8)
    manager = tiny_llama().init_continuous_batching(case.generation_config(), case.config())
    processor = manager.batch_processor = manager._create_batch_processor()
    scheduler = processor.scheduler
    recording = attach(manager, tmp_path / "run.cbt")

    def hooked() -> set[str]:
        return {name for name in vars(scheduler) if name.startswith(("_process", "_try", "clear"))}

    while_waiting = {name for name in ("_process_candidates", "_try_to_meet_safety_margin") if hasattr(scheduler, name)}
    manager.add_requests(case.inputs, max_new_tokens=8)
    standing = []
    while processor.prepare_next_batch():
        standing.append(hooked())
        manager._generation_step()
        processor.update_batch()
        if len(standing) == 3:
            scheduler.set_request_cancellation("nobody")
            assert hooked() == {"clear_cancelled_requests"}
            manager.add_request([1, 2, 3], max_new_tokens=2)
    assert standing == [set()] * len(standing), "all that waited is admitted in the step that meets it"
    assert while_waiting, "and these stood in between, or its admission would have had no reason"
    recording.close()
