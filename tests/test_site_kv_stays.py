"""What a request held of the KV cache: as many blocks as the engine took back, in every recording of a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.site.analysis.kv_stays import kv_stays
from cbtrace.traces import open_trace
from trace_builder import UNIT_BYTES, TraceBuilder

TESTS = Path(__file__).parent
REAL = sorted(TESTS.parent.glob("traces/samples/*.cbt"))


def test_stays_begin_with_admissions_and_end_with_resets_offloads_and_ends(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(6, 8)
    build.admit(request, prefix_hit=2)
    build.step({request: 4})
    build.step([request])
    build.soft_reset(request)  # at 7 tokens
    build.admit(request)
    build.step({request: request.pending + 1})  # 8 tokens
    build.offload(request)
    build.restore(request)
    build.step([request])
    build.finish(request)
    stays = kv_stays(build.close())
    assert stays.start.tolist() == [2, 0, 8]
    assert stays.prefix_hit.tolist() == [2, 0, 0]
    assert stays.reached.tolist() == stays.blocks.tolist() == [7, 8, 9]  # blocks of one token
    assert stays.bytes.tolist() == [7 * UNIT_BYTES, 8 * UNIT_BYTES, 9 * UNIT_BYTES]
    assert stays.left.tolist() == [1, 2, 0]
    assert stays.recorded_blocks.tolist() == [7, 8, -1]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_engines_took_back_as_many_blocks(path: Path) -> None:
    stays = kv_stays(open_trace(path))
    told = stays.recorded_blocks >= 0
    assert (stays.blocks[told] == stays.recorded_blocks[told]).all()
    assert (stays.reached >= 0).all()


def test_some_of_them_did() -> None:
    assert sum(int((kv_stays(open_trace(path)).recorded_blocks >= 0).sum()) for path in REAL) > 40


def test_a_run_of_nothing_has_no_stays(tmp_path: Path) -> None:
    assert len(kv_stays(TraceBuilder(tmp_path / "run.cbt").close()).request) == 0
