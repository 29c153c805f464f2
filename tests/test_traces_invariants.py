"""Checks: silent on sound traces, and each of them loud on the one thing it watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from cbtrace.traces import TraceWriter, catalogue, explain, invariants, open_trace, recovery
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import Admit, End, Frame, Request, Severity, Step, StepDetail
from cbtrace.traces.stepcode import pack_chunks, pack_ordinals, pack_times
from trace_builder import CAPACITY, TraceBuilder, eventful

Change = Callable[[Frame], Frame | None]


def rewritten(path: Path, frames: list[Frame]) -> list[str]:
    """Write these frames instead and return the slugs of what is found."""
    with TraceWriter(path, overwrite=True) as writer:
        for frame in frames:
            writer.write(frame)
    return [finding.slug for finding in check(open_trace(path))]


def changed(path: Path, change: Change) -> list[str]:
    frames = [change(frame) or frame for frame in eventful(path).frames]
    return rewritten(path, frames)


def test_a_sound_trace_has_no_findings(tmp_path: Path) -> None:
    assert check(eventful(tmp_path / "run.cbt").close()) == []


def step(index: int, **fields: object) -> Change:
    return lambda frame: replace(frame, **fields) if isinstance(frame, Step) and frame.index == index else None


def end(request: int, **fields: object) -> Change:
    return lambda frame: replace(frame, **fields) if isinstance(frame, End) and frame.request == request else None


def submit(request: int, **fields: object) -> Change:
    return lambda frame: replace(frame, **fields) if isinstance(frame, Request) and frame.request == request else None


def detail(index: int, *chunks: tuple[int, int, int, int], wasted: tuple[int, ...] = ()) -> Change:
    return step(index, detail=StepDetail(chunks=pack_chunks(chunks), wasted=pack_ordinals(wasted)))


@pytest.mark.parametrize(
    ("slug", "change"),
    [
        ("kv-not-conserved", step(2, kv_free=CAPACITY + 1)),
        ("step-times-invalid", step(3, times=b"too short")),
        ("clock-backwards", step(4, times=pack_times(0, 1, 2, 3, 4, 5))),
        ("request-out-of-order", end(1, t_ns=5)),
        ("request-out-of-order", submit(4, submit_ns=10**12)),
        ("tokens-not-conserved", end(1, generated=5)),
        ("prompt-not-conserved", submit(0, prompt_tokens=21)),
        ("recompute-not-conserved", detail(6, (0, 10, 0, 0))),  # step 6 computes ten tokens of request 0 again
        (
            "recompute-not-conserved",
            detail(0, (0, 0, 12, 0), (1, 7, 0, 1)),
        ),  # step 0 computes twelve for the first time
        ("member-not-admitted", detail(2, (4, 5, 0, 0))),
        ("member-not-admitted", step(2, decode=b"\x0b")),
        ("member-twice", detail(2, (0, 0, 0, 2))),
        ("attribution-sum", detail(2, wasted=(4,))),
    ],
)
def test_each_rule_sees_what_it_watches(tmp_path: Path, slug: str, change: Change) -> None:
    found = changed(tmp_path / "run.cbt", change)
    assert slug in found


def test_a_second_end_is_found(tmp_path: Path) -> None:
    build = eventful(tmp_path / "run.cbt")
    build.write(End(1, build.now, build.steps, 3, 4, 0))
    assert [finding.slug for finding in check(build.close())] == ["ended-twice"]


def test_a_membership_without_any_admission_is_found(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(4)
    build.admit(request)
    build.step({request: 4})
    frames = [frame for frame in build.frames if not isinstance(frame, Admit)]
    decode = Step(1, pack_times(*range(10**7, 10**7 + 6)), -1, b"\x01", 0, 0, 0, 1, 0, 0)
    assert "member-not-admitted" in rewritten(tmp_path / "run.cbt", [*frames, decode])


def test_requests_around_damage_are_not_accused(tmp_path: Path) -> None:
    build = eventful(tmp_path / "run.cbt")
    build.footer()
    for place, frame in enumerate(build.frames[2:-1], start=2):
        found = rewritten(tmp_path / "run.cbt", build.frames[:place] + build.frames[place + 1 :])
        broken = [slug for slug in found if explain(slug).severity == Severity.BROKEN]
        assert not broken, (frame, broken)


def test_every_finding_is_in_the_catalogue_with_cause_and_remedy() -> None:
    slugs = [message.slug for message in catalogue()]
    assert slugs == sorted(set(slugs))
    for message in [*recovery._MESSAGES, *invariants._MESSAGES]:
        assert message.slug in slugs
    for message in catalogue():
        assert message.cause.endswith(".")
        assert message.remedy.endswith(".")
