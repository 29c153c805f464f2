"""The KV cache of a hybrid model by group of layers: exact where every block is known, and true of a real engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.kv_groups import kv_by_group
from cbtrace.site.pages.kv_section import kv_section
from cbtrace.site.pages.timeline_data import timeline_data
from cbtrace.site.words import load_words
from cbtrace.traces import Trace
from cbtrace.traces.schema import Engine, KvGroup
from engines import Case, prompts, recorded, tiny_gemma2
from packed_tables import table
from trace_builder import UNIT_BYTES, TraceBuilder

WINDOW, PAGE = 8, 4


def hybrid(path: Path) -> TraceBuilder:
    """Two groups: blocks of 4 tokens, one of them with a window of 8."""
    build = TraceBuilder(path)
    engine = build.frames[1]
    assert isinstance(engine, Engine)
    engine.kv.groups = [
        KvGroup("sliding_attention", 2, 2 * UNIT_BYTES, PAGE, WINDOW),
        KvGroup("full_attention", 1, UNIT_BYTES, PAGE),
    ]
    build.write(engine)
    return build


def run(path: Path) -> Trace:
    build = hybrid(path)
    first, second = build.submit(6, 10), build.submit(3, 3)
    build.admit(first)
    build.step({first: 6})  # 2 blocks of each group
    build.admit(second)
    build.step({first: 1, second: 3})  # 7 and 3 tokens: 2 + 1
    build.soft_reset(first)
    build.step([second])  # 4 tokens: 1 block
    build.finish(second)
    build.admit(first)
    build.step({first: first.pending + 1})  # 8 tokens: 2 blocks
    for _ in range(3):
        build.step([first])  # 9 to 11 tokens: 3 blocks, the window keeps 2
    build.finish(first)
    return build.close()


def test_blocks_follow_from_positions_resets_and_ends(tmp_path: Path) -> None:
    trace = run(tmp_path / "run.cbt")
    found = kv_by_group(trace)
    assert found is not None
    assert [(group.name, group.window) for group in found.groups] == [("sliding_attention", 8), ("full_attention", -1)]
    sliding, full = (used // UNIT_BYTES for used in found.used)
    assert full.tolist() == [2, 3, 1, 2, 3, 3, 3]
    assert sliding.tolist() == [2 * blocks for blocks in (2, 3, 1, 2, 2, 2, 2)]
    tokens = np.array([6, 7 + 3, 4, 8, 9, 10, 11])
    kept = np.array([6, 7 + 3, 4, 8, 8, 8, 8])
    assert (found.written[1] == tokens * UNIT_BYTES // PAGE).all()
    assert (found.written[0] == kept * 2 * UNIT_BYTES // PAGE).all()


def test_groups_and_what_they_do_not_explain_are_the_recorded_use(tmp_path: Path) -> None:
    trace = run(tmp_path / "run.cbt")
    found = kv_by_group(trace)
    assert found is not None
    assert (found.used.sum(axis=0) + found.unexplained == trace.steps.kv_used).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.booleans()), min_size=1, max_size=6))
def test_nothing_is_held_by_requests_that_are_gone(tmp_path: Path, wanted: list[tuple[int, int, bool]]) -> None:
    path = tmp_path / "run.cbt"
    path.unlink(missing_ok=True)
    build = hybrid(path)
    for prompt, limit, reset in wanted:
        request = build.submit(prompt, limit)
        build.admit(request)
        build.step({request: prompt})
        if reset:
            build.soft_reset(request)
            build.admit(request)
            build.step({request: request.pending + 1})
        while request.generated < request.limit:
            build.step([request])
        build.finish(request)
    found = kv_by_group(build.close())
    assert found is not None
    reached = [member.position + member.prefill + member.decode + member.recompute for member in build.truth]
    assert found.used[1].tolist() == [-(-tokens // PAGE) * UNIT_BYTES for tokens in reached]
    assert (found.used[0] <= WINDOW // PAGE * 2 * UNIT_BYTES).all()


def test_a_model_with_one_kind_of_layers_is_not_divided(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(3, 1)
    build.admit(request)
    build.step({request: 3})
    build.finish(request)
    assert kv_by_group(build.close()) is None


def test_a_real_hybrid_engine_holds_what_its_positions_say(tmp_path: Path) -> None:
    inputs = prompts(5, 10, 60) + prompts(1, 90, 91, seed=3)
    trace, _ = recorded(Case(inputs, new_tokens=24, settings={"num_blocks": 40}), tiny_gemma2(), tmp_path / "run.cbt")
    found = kv_by_group(trace)
    assert found is not None
    assert found.explained > 0.98
    assert (found.unexplained == 0).mean() > 0.9
    slack = found.slack
    assert slack is not None
    assert 0 < slack.mean_share < 0.5  # blocks of 16 tokens, requests of 10 to 114
    words = load_words()
    timeline = timeline_data(trace, 0, words)
    rows = table(timeline.overview["rows"])
    assert rows["group_used_0"] == found.used[0].tolist()
    told = kv_section(trace, None, timeline.groups, words)
    assert told.groups == []  # no budget, no table
    assert np.array(rows["group_used_1"]).max() > 0
