"""Requests as the recorder keeps them apart: incarnations of ids that come again, and memory that does not grow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cbtrace.recorder.requests as requests_module
from cbtrace.recorder.requests import RequestLedger


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60), st.integers(1, 4))
def test_incarnations_of_live_ids_are_never_lost(acts: list[tuple[str, bool]], kept: int) -> None:
    """Submit an id and have it seen, or end it; with room for few ids, those alive still count on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests_module, "IDS_KEPT", kept)
        ledger = RequestLedger()
        alive: dict[str, list[int]] = {}
        most = 0
        for name, ends in acts:
            if ends:
                if name in ledger.current:
                    ledger.end(ledger.current[name])
                    del alive[name]
                continue
            record, incarnation = ledger.submit(name, 1, 0)
            assert incarnation not in alive.get(name, ()), "two live requests would be one"
            assert not alive.get(name) or incarnation == alive[name][-1] + 1
            alive.setdefault(name, []).append(incarnation)
            assert ledger.arrive(name) is record
            most = max(most, len(alive))
            assert len(ledger._incarnations) <= kept + 2 * most


def test_ids_that_stay_alive_do_not_keep_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "IDS_KEPT", 100)
    ledger = RequestLedger()
    for number in range(40):
        ledger.submit(f"stays_{number}", 1, 0)
        ledger.arrive(f"stays_{number}")
    for number in range(20_000):
        ledger.submit(f"req_{number}", 1, 0)
        ledger.end(ledger.arrive(f"req_{number}"))  # type: ignore[arg-type]
    assert len(ledger._incarnations) <= 142
    assert ledger.submit("stays_7", 1, 0)[1] == 1


def test_ids_that_never_come_again_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "IDS_KEPT", 100)
    ledger = RequestLedger()
    for number in range(1_000):
        ledger.submit(f"req_{number}", 1, 0)
        ledger.end(ledger.arrive(f"req_{number}"))  # type: ignore[arg-type]
    assert len(ledger._incarnations) == 100
    assert ledger.submit("req_999", 1, 0)[1] == 1
    assert ledger.submit("req_0", 1, 0)[1] == 0
