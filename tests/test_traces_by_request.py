"""Pairs of steps and requests are the same in both orders, whatever is missing and in whichever parts they come."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbtrace.traces import Trace, by_request, open_trace
from cbtrace.traces.pairs import joined, ranges
from site_runs import busy_run
from trace_builder import eventful

SAMPLES = sorted((Path(__file__).parent / "fixtures").glob("*.cbt"))
COLUMNS = ("request", "prefill", "decode", "recompute", "position", "new_token", "wasted")


def same_in_both_orders(trace: Trace) -> int:
    """Compare all pairs; returns how many there are."""
    blocks = list(trace.by_request())
    assert [block.first for block in blocks] == [0, *(block.end for block in blocks[:-1])][: len(blocks)]
    assert not blocks or blocks[-1].end == len(trace.requests.id)
    pairs, table = joined([block.pairs for block in blocks]), trace.step_requests
    order = np.lexsort((table.step, table.request))
    assert trace.steps.index[pairs.row].tolist() == table.step[order].tolist()
    for name in COLUMNS:
        assert getattr(pairs, name).tolist() == getattr(table, name)[order].tolist(), name
    for block in blocks:
        of = block.pairs
        assert ((of.request >= block.first) & (of.request < block.end)).all()
        plain = np.ones(len(of.row), dtype=bool)
        plain[block.chunks] = False
        assert (of.decode[plain] == 1).all() and not (of.prefill + of.recompute)[plain].any()
        assert block.given.tolist() == np.flatnonzero(of.new_token).tolist()
    numbers = [trace.token_numbers(block).tolist() for block in blocks]
    assert [number for part in numbers for number in part] == trace.tokens.position.tolist()
    return len(pairs.row)


@pytest.mark.parametrize("pairs", [1, 7, 1 << 18])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_recordings_are_the_same_in_both_orders(path: Path, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_request, "PART_PAIRS", pairs)
    assert same_in_both_orders(open_trace(path)) > 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from([1, 30, 1 << 18]), st.sampled_from([1, 3, 256]))
def test_damaged_traces_are_the_same_in_both_orders(tmp_path: Path, seed: int, pairs: int, group: int) -> None:
    """Bytes are taken out, zeroed and repeated, so that admissions, rosters and steps are missing or out of place."""
    chance, path = random.Random(seed), tmp_path / "run.cbt"
    path.unlink(missing_ok=True)
    if chance.random() < 0.5:
        eventful(path, roster_every=chance.choice((0, 2, 4))).close()
    else:
        busy_run(path, seed=seed)
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 5)):
        at, size = chance.randrange(600, len(data)), chance.choice((1, 30, 100, 400))
        if chance.random() < 0.5:
            del data[at : at + size]
        else:
            to = chance.randrange(600, len(data))
            data[to:to] = data[at : at + size]
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_request, "PART_PAIRS", pairs)
        patch.setattr(by_request, "GROUP", group)
        same_in_both_orders(open_trace(path))


def test_parts_begin_at_groups_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_request, "PART_PAIRS", 150)
    monkeypatch.setattr(by_request, "GROUP", 4)
    trace = busy_run(tmp_path / "run.cbt", requests=18, limit=20)
    assert [(block.first, block.end) for block in trace.by_request()] == [(0, 4), (4, 8), (8, 12), (12, 18)]
    monkeypatch.setattr(by_request, "PART_PAIRS", 5)  # fewer than one request has
    assert [(block.first, block.end) for block in trace.by_request()] == [(at, at + 1) for at in range(18)]


def test_ranges_follow_one_another() -> None:
    found = ranges(np.array([5, 9, 1]), np.array([2, 0, 3]))
    assert found.tolist() == [5, 6, 1, 2, 3]
    none = np.zeros(0, dtype=np.int64)
    assert ranges(none, none).tolist() == []
