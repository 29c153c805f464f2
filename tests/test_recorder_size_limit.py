"""Recordings of a real engine within a size limit: they stop, or keep the newest steps, and generation goes on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import RecordingStopped, record
from cbtrace.recorder.size_limit import parse_size
from cbtrace.traces import Trace, UsageError, open_trace
from cbtrace.traces.invariants import check
from engines import Case, prompts, tiny_llama

LIMIT = 1 << 16
# More than twice the limit: short requests, so that much happens in few steps.
MANY = Case(prompts(700, 4, 12), new_tokens=6, settings={"num_blocks": 48, "max_batch_tokens": 64})
LONG = Case(prompts(3, 4, 12), new_tokens=1700, settings={"num_blocks": 340, "max_batch_tokens": 64})


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


def run(case: Case, llama: Any, path: Path, **options: Any) -> tuple[Trace, dict[str, list[int]], list[str]]:
    """Return the trace, the tokens and the recorder's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(path, **options), case.manager(llama) as manager:
            tokens = _feed(manager, case)
    return open_trace(path), tokens, [str(w.message) for w in caught if issubclass(w.category, RecordingStopped)]


def _feed(manager: Any, case: Case) -> dict[str, list[int]]:
    """A few requests at a time, as from clients: a ring always keeps those that are waiting."""
    tokens: dict[str, list[int]] = {}
    sent = 0
    while len(tokens) < len(case.inputs):
        while sent < len(case.inputs) and sent - len(tokens) < 24:
            manager.add_request(case.inputs[sent], request_id=f"r{sent}", max_new_tokens=case.new_tokens)
            sent += 1
        result = manager.get_result(timeout=120)
        assert result is not None and result.error is None
        if result.is_finished():
            tokens[result.request_id] = result.generated_tokens
    return tokens


@pytest.mark.engine
def test_at_the_limit_the_recording_stops_and_generation_goes_on(llama: Any, tmp_path: Path) -> None:
    trace, tokens, told = run(MANY, llama, tmp_path / "run.cbt", max_size=LIMIT)
    assert len(tokens) == 700 and {len(got) for got in tokens.values()} == {6}
    assert told == [f"cbtrace stopped recording run.cbt (max_size: {LIMIT} bytes); generation goes on unrecorded"]
    assert LIMIT - 2000 < (tmp_path / "run.cbt").stat().st_size <= LIMIT
    assert trace.footer is not None and trace.footer.reason == "max_size"
    assert trace.recovery.status == "stopped"
    assert check(trace) == list(trace.recovery.findings)


@pytest.mark.engine
@pytest.mark.parametrize("case", [MANY, LONG], ids=["many", "long"])
def test_a_ring_keeps_the_newest_steps(llama: Any, tmp_path: Path, case: Case) -> None:
    trace, tokens, told = run(case, llama, tmp_path / "run.cbt", max_size="64KiB", ring=True)
    assert told == [] and len(tokens) == len(case.inputs)
    assert (tmp_path / "run.cbt").stat().st_size <= LIMIT
    report = trace.recovery
    assert report.status == "ring" and [finding.slug for finding in report.findings] == ["steps-overwritten"]
    assert check(trace) == list(report.findings)
    assert report.steps_missing == 0 and report.steps_overwritten > 0
    index = trace.steps.index
    assert index.tolist() == list(range(int(index[0]), int(index[-1]) + 1))
    assert index[0] == report.steps_overwritten
    assert trace.geometry is not None and trace.header.name == "run"
    assert "model_loaded" in trace.memory.mark
    # The newest requests are there whole: their tokens can be counted, and their positions are known.
    last = max(int(row) for row in trace.tokens.request)
    assert trace.requests.generated[last] == case.new_tokens
    assert (trace.tokens.position > 0).all()
    assert (trace.step_requests.position >= 0).all()


@pytest.mark.engine
def test_every_engine_of_a_process_has_the_limit_for_itself(llama: Any, tmp_path: Path) -> None:
    small = Case(prompts(2, 4, 8), new_tokens=3)
    with record(tmp_path / "run.cbt", max_size=LIMIT) as recording:
        small.run_at_once(llama)
        small.run_at_once(llama)
    assert [open_trace(path).recovery.status for path in recording.paths] == ["clean", "clean"]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (70_000, 70_000),
        ("70000", 70_000),
        ("50MB", 50_000_000),
        ("50 mb", 50_000_000),
        ("1.5GiB", 3 << 29),
        ("64k", None),
        ("64KiB", 65_536),
        ("2T", 2 * 10**12),
    ],
)
def test_sizes(given: int | str, size: int | None) -> None:
    if size is None:
        with pytest.raises(UsageError, match="64 KiB at least"):
            parse_size(given)
    else:
        assert parse_size(given) == size


@pytest.mark.parametrize("given", ["", "MB", "-5MB", "5 parsecs", "1e9", "5MB5", "\u0665MB", "0", "1" * 5000])
def test_what_is_no_size_is_refused_in_one_sentence(given: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        record(tmp_path / "run.cbt", max_size=given)
    assert caught.value.slug == "bad-size" and "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert not list(tmp_path.iterdir())


def test_a_ring_without_a_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        record(tmp_path / "run.cbt", ring=True)
    assert caught.value.slug == "no-size-limit"
    assert not list(tmp_path.iterdir())
