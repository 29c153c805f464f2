"""One real run with soft resets, forks and cancels, from the recording to every export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder import record
from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.export.perfetto import write_perfetto
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import EndReason, EventKind
from engines import Case, drain, prompts, tiny_llama
from test_site_summary_from_tables import recomputed, summarize, summary_json
from test_traces_perfetto import strict, well_formed

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Little KV, several answers a prompt, and two requests that are taken back while they run."""
    path = tmp_path_factory.mktemp("real") / "run.cbt"
    generation = {"num_return_sequences": 2, "do_sample": True}
    case = Case(prompts(6, 10, 30), new_tokens=60, settings={"num_blocks": 20}, generation=generation)
    llama: Any = tiny_llama()
    with record(path), case.manager(llama) as manager:
        ids = [manager.add_request(inputs, max_new_tokens=60) for inputs in case.inputs]
        victims = [manager.add_request(inputs, max_new_tokens=5000) for inputs in prompts(2, 5, 9)]
        done = drain(manager, 4)
        for victim in victims:
            manager.cancel_request(victim)
        drain(manager, 2 * len(ids) - len(done))
    return open_trace(path)


def test_it_was_the_run_that_was_wanted(trace: Trace) -> None:
    kinds = set(trace.events.kind.tolist())
    assert kinds >= {EventKind.SOFT_RESET, EventKind.FORK, EventKind.CANCEL_REQUESTED}
    reasons = trace.requests.end_reason.tolist()
    assert reasons.count(EndReason.CANCELLED) >= 2 and reasons.count(EndReason.LENGTH) >= 8


def test_it_is_sound(trace: Trace) -> None:
    assert trace.recovery.whole
    assert check(trace) == [] and check_cuts(trace) == []


def test_its_export_for_perfetto_is_well_formed(trace: Trace, tmp_path: Path) -> None:
    write_perfetto(trace, tmp_path / "run.json")
    events = strict((tmp_path / "run.json").read_text())
    well_formed(events)
    assert sum(event["ph"] == "n" for event in events) == len(trace.tokens.step)
    resets = int((trace.events.kind == EventKind.SOFT_RESET).sum())
    assert 0 < sum(event["ph"] == "s" for event in events) <= resets
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events)
    names = {event["name"] for event in events if event["ph"] == "i"}
    assert {"soft reset", "fork", "cancel requested"} <= names


def test_every_value_of_its_summary_is_that_of_its_tables(trace: Trace, tmp_path: Path) -> None:
    found = json.loads(json.dumps(summary_json(summarize(trace))))
    assert found == json.loads(json.dumps(recomputed(trace.path, tmp_path / "tables")))
