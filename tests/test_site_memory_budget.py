"""The GPU's memory: terms that add up to the device."""

from __future__ import annotations

from pathlib import Path

from cbtrace.site.analysis.memory_budget import marks, memory_budget
from cbtrace.site.pages.budget_section import memory_section
from cbtrace.site.words import load_words
from cbtrace.traces.schema import Engine, Memory
from trace_builder import TraceBuilder

GIB = 1 << 30


def recorded(path: Path, *, device: bool = True, name: str = "synthetic") -> TraceBuilder:
    build = TraceBuilder(path, name=name)
    total = 100 * GIB if device else -1
    for mark, allocated in (
        ("model_loaded", 10),
        ("cache_created", 60),
        ("inputs_created", 61),
        ("warmed_up", 63),
        ("before_first_request", 63),
    ):
        build.write(Memory(build.now, mark, allocated * GIB, (allocated + 1) * GIB, -1, -1, 70 * GIB, total))
        build.now += 100
    request = build.submit(3, 2)
    build.admit(request)
    build.step({request: 3})
    build.write(Memory(build.now, "", 63 * GIB, 70 * GIB, 66 * GIB, 70 * GIB, 75 * GIB if device else -1, total))
    build.step([request])
    build.write(Memory(build.now, "", 63 * GIB, 70 * GIB, 64 * GIB, 70 * GIB, 74 * GIB if device else -1, total))
    build.finish(request)
    return build


def test_the_terms_add_up_to_the_device(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "run.cbt").close()
    budget = memory_budget(trace.memory)
    assert budget is not None
    terms = {term.name: term.bytes // GIB for term in budget.terms}
    assert terms == {
        "weights": 10,
        "kv_cache": 50,
        "static_inputs": 1,
        "warm_up": 2,
        "activations": 3,
        "allocator_slack": 4,
        "outside_allocator": 5,
        "free": 25,
    }
    assert budget.unattributed == 0
    assert sum(term.bytes for term in budget.terms) + budget.unattributed == budget.device_total == 100 * GIB


def test_what_was_predicted_stands_beside_what_was_measured(tmp_path: Path) -> None:
    build = recorded(tmp_path / "run.cbt")
    engine = build.frames[1]
    assert isinstance(engine, Engine)
    engine.predicted_memory = {"kv_cache": 48 * GIB, "kv_trash": 2 * GIB, "kv_indices": GIB, "activation_peak": 2 * GIB}
    build.write(engine)
    rows = {row.label: row for row in memory_section(build.close(), load_words()).rows}
    shown = {label: (row.measured, row.predicted) for label, row in rows.items()}
    space = "\N{NO-BREAK SPACE}"
    assert shown["KV cache"] == (f"50{space}GiB", f"50{space}GiB")
    assert shown["Static inputs"] == (f"1{space}GiB", f"1{space}GiB")
    assert shown["Activation peak above it"] == (f"3{space}GiB", f"2{space}GiB")
    assert shown["Weights"][1] == "\N{EM DASH}"  # the engine's model does not charge for them


def test_without_a_device_there_is_no_budget_but_there_are_marks(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "run.cbt", device=False).close()
    assert memory_budget(trace.memory) is None
    assert [mark.mark for mark in marks(trace.memory)][:2] == ["model_loaded", "cache_created"]
    section = memory_section(trace, load_words())
    assert section.rows == []
    assert len(section.marks) == 5
    assert "not measured" in section.title
