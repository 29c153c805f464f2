"""Batches under way: whose tokens they compute, when requests come and go meanwhile."""

from __future__ import annotations

from cbtrace.recorder.requests import RequestLedger, RequestRecord
from cbtrace.recorder.steps import OpenSteps, StepDraft


def admitted(ledger: RequestLedger, name: str, steps: OpenSteps) -> RequestRecord:
    ledger.submit(name, 1, 0)
    record = ledger.arrive(name)
    assert record is not None
    ledger.take_slot(record)
    record.admitted_step = steps.next_index
    return record


def launched(steps: OpenSteps, *members: RequestRecord) -> StepDraft:
    draft = steps.begin()
    draft.decode_mask = sum(record.bit for record in members)
    steps.launch(draft)
    return draft


def test_a_batch_under_way_computes_nothing_for_who_got_a_slot_after_it() -> None:
    """An asynchronous engine: the old holder ends while a batch with it is under way, and its slot is given on."""
    ledger, steps = RequestLedger(), OpenSteps()
    old = admitted(ledger, "old", steps)
    under_way = launched(steps, old)
    steps.left(old)
    ledger.end(old)
    new = admitted(ledger, "new", steps)
    assert new.slot == 0, "the slot of the one that ended"
    assert steps.tokens_under_way(new) == 0
    steps.left(new)
    assert under_way.useless == (old.ordinal,)


def test_batches_of_its_own_residency_are_counted_and_dropped() -> None:
    ledger, steps = RequestLedger(), OpenSteps()
    record = admitted(ledger, "one", steps)
    first, second = launched(steps, record), launched(steps, record)
    assert steps.tokens_under_way(record) == 2
    steps.left(record)
    assert first.useless == second.useless == (record.ordinal,)
