"""Bands, lives, classes and slack: what the run page says of its requests, on runs whose truth is known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis.attribution import attribute
from cbtrace.site.analysis.bands import bands, pieces_of, singles
from cbtrace.site.analysis.classes import chunking, request_classes
from cbtrace.site.analysis.lifelines import STATES
from cbtrace.site.analysis.pieces import COLUMN, PIECES
from cbtrace.site.analysis.request_lives import Lives, RequestLives
from cbtrace.site.analysis.slack import block_slack
from cbtrace.site.build import build_site
from cbtrace.site.pages import request_data
from cbtrace.site.pages.request_data import request_details
from cbtrace.site.words import load_words
from cbtrace.traces import Trace
from cbtrace.traces.schema import EndReason
from packed_tables import groups, rows, table
from pages import read_links
from site_runs import busy_run, crowded_run, troubled_run
from trace_builder import CAPACITY, UNIT_BYTES, TraceBuilder, eventful


def lives_of(trace: Trace) -> RequestLives:
    """All requests, which are few."""
    (found,) = map(Lives(trace, 8).of, trace.request_spans())
    return found


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300))
def test_bands_split_all_rows_and_lose_no_nanosecond(values: list[int]) -> None:
    total = np.array(values, dtype=np.int64)
    pieces = np.zeros((len(values), len(PIECES)), dtype=np.int64)
    pieces[:, COLUMN["decode"]] = total // 3
    pieces[:, COLUMN["host"]] = total - total // 3
    found = {band.id: band for band in bands(total, pieces, np.ones_like(total))}
    parts = [band for name, band in found.items() if name != "all"]
    assert sum(band.n for band in parts) == found["all"].n == len(values)
    assert sum(band.total_ns for band in parts) == found["all"].total_ns == sum(values)
    for band in found.values():
        assert sum(band.pieces.values()) == band.total_ns
    single = {one.id: one for one in singles(total, pieces, np.ones_like(total))}
    ordered = sorted(values)
    assert single["max"].total_ns == ordered[-1]
    for name, q in (("p50", 50), ("p95", 95)):
        percentile = float(np.percentile(values, q))
        assert single[name].percentile_ns == percentile
        assert abs(single[name].total_ns - percentile) == min(abs(value - percentile) for value in values)
    if len(values) > 1 and ordered[-1] > ordered[-2]:
        assert "top" in found  # however few there are, the worst one is above p99


def test_nothing_has_no_bands() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert bands(empty, np.zeros((0, len(PIECES)), dtype=np.int64), empty) == []
    assert singles(empty, np.zeros((0, len(PIECES)), dtype=np.int64), empty) == []


def test_a_life_is_told_from_submit_to_its_last_token_without_a_gap(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    victim, other = build.submit(10, 3), build.submit(4, 9)
    build.admit(victim)
    build.admit(other)
    build.step({victim: 6, other: 4})
    build.step({victim: 4, other: 1})
    build.soft_reset(victim)
    for _ in range(3):
        build.step([other])
    build.admit(victim)
    build.step({victim: 11, other: 1})
    build.step([victim, other])
    build.finish(victim)
    build.step([other])
    build.finish(other)
    trace = build.close()
    lives = lives_of(trace).lives
    mine = np.flatnonzero(lives.request == 0)
    states = [STATES[state] for state in lives.state[mine]]
    assert states == ["queued", "prefill", "reset_wait", "recompute", "decode"]
    assert lives.start_ns[mine[0]] == trace.requests.submit_ns[0]
    assert lives.end_ns[mine[-1]] == trace.requests.last_token_ns[0]
    assert (lives.start_ns[mine[1:]] == lives.end_ns[mine[:-1]]).all()


@pytest.mark.parametrize("make", [busy_run, troubled_run, lambda path: eventful(path).close()])
def test_spans_are_in_order_and_never_overlap(tmp_path: Path, make: object) -> None:
    trace: Trace = make(tmp_path / "run.cbt")  # type: ignore[operator]
    lives = lives_of(trace).lives
    same = lives.request[1:] == lives.request[:-1]
    assert (lives.start_ns <= lives.end_ns).all()
    assert (lives.start_ns[1:][same] >= lives.end_ns[:-1][same]).all()


def test_classes_hold_every_completed_request_once_a_dimension(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", requests=30)
    longest = attribute(trace).longest_gap
    found = request_classes(trace, longest, CAPACITY * UNIT_BYTES)
    by_prompt = [one for one in found if one.dimension == "prompt_tokens"]
    assert sum(one.n for one in by_prompt) == 30
    assert [one.low for one in by_prompt] == sorted(one.low for one in by_prompt)
    assert all(one.high < other.low for one, other in pairwise(by_prompt))
    assert max(one.ttft_ms.max or 0 for one in by_prompt) == pytest.approx(
        float((trace.requests.first_token_ns - trace.requests.submit_ns).max()) / 1e6
    )
    assert sum(one.soft_resets for one in by_prompt) == int(trace.requests.soft_resets.sum())


def test_chunks_are_counted_with_what_ended_them(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    whole, chunked = build.submit(10, 1), build.submit(60, 1)
    build.admit(whole)
    build.admit(chunked)
    build.step({whole: 10, chunked: 22})  # 32 of 32: the budget
    build.step({chunked: 20})  # not full: something else
    build.step({chunked: 18})
    build.finish(whole)
    build.finish(chunked)
    trace = build.close()
    found = chunking(trace.steps, trace.chunks, 2, 32)
    assert (found.whole, found.chunked, found.chunks) == (1, 1, 3)
    assert (found.budget_full, found.other) == (1, 1)


def test_slack_is_what_was_given_out_and_not_written(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    request = build.submit(10, 3)
    build.admit(request)
    request.held = 16  # a block of 16 for 10 tokens
    build.step({request: 10})
    build.step([request])
    build.finish(request)
    trace = build.close()
    found = block_slack(trace.engines[0], trace.steps, trace.requests)
    assert found is not None
    assert found.mean_bytes == (6 + 5) / 2 * UNIT_BYTES
    assert found.known_steps == found.steps == 2


def test_slack_is_not_told_where_blocks_are_shared(tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    assert block_slack(trace.engines[0], trace.steps, trace.requests) is None


def test_the_data_of_each_request_adds_up(tmp_path: Path) -> None:
    trace = busy_run(tmp_path / "run.cbt", requests=20)
    ttft, parts, requests = attribute(trace).ttft, lives_of(trace), trace.requests
    for first, end in ((0, 20), (0, 7), (7, 20)):
        made = request_details(ttft, parts, first, end, 0)
        cut = [sum(piece["ns"] for piece in pieces) for pieces in groups(made["ttft"])]
        assert cut == (requests.first_token_ns - requests.submit_ns)[first:end].tolist()
        gap_pieces = iter(groups(made["gap_pieces"]))
        for gaps in groups(made["gaps"]):
            assert [gap["duration_us"] for gap in gaps] == sorted((gap["duration_us"] for gap in gaps), reverse=True)
            for gap in gaps:
                assert sum(piece["ns"] for piece in next(gap_pieces)) // 1000 == gap["duration_us"]
        for lives, request in zip(groups(made["lives"]), range(first, end), strict=True):
            spans = np.cumsum([[span["after_us"], span["length_us"]] for span in lives])
            own = parts.lives.request == request
            assert spans[0::2].tolist() == (parts.lives.start_ns[own] // 1000).tolist()
            assert spans[1::2].tolist() == (parts.lives.end_ns[own] // 1000).tolist()


@pytest.mark.parametrize("listed", [3, 4096])
def test_every_request_is_listed_with_its_instants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr(request_data, "LISTED_A_FILE", listed)
    trace = troubled_run(tmp_path / "run.cbt")
    requests = trace.requests
    longest = attribute(trace).longest_gap
    lists = list(request_data.request_lists(trace, longest, 0))
    assert [name for part in lists for name in part["id"]] == requests.id
    found = [request for part in lists for request in rows(part["columns"])]
    for name in ("visible", "admitted", "first_token", "last_token", "end"):
        for row, request in enumerate(found):
            instant, submit = int(getattr(requests, f"{name}_ns")[row]), int(requests.submit_ns[row])
            expected = request_data.UNKNOWN if instant < 0 else instant // 1000 - submit // 1000
            assert request[f"{name}_us"] == expected
    head = request_data.request_head(trace, longest, [0], 0, load_words())
    files = table(head["files"])
    for number, part in enumerate(lists):
        ends = requests.end_ns[number * listed :][: len(part["id"])]
        running = (ends < 0).any()
        assert files["end_us"][number] == (-request_data.UNKNOWN if running else int(ends.max()) // 1000)
    orders = table(head["orders"])
    assert sorted(orders["trouble"]) == list(range(len(requests.id)))
    worst = requests.end_reason[orders["trouble"][:3]].tolist()
    assert worst == [EndReason.FAILED, EndReason.CANCELLED, EndReason.RUNNING]


def test_a_page_is_bounded_whatever_the_number_of_requests(tmp_path: Path) -> None:
    sizes = []
    for requests in (100, 400):
        busy_run(tmp_path / f"{requests}.cbt", requests=requests, limit=4)
        report = build_site([tmp_path / f"{requests}.cbt"], tmp_path / f"site-{requests}")
        page = report.out / report.runs[0].page
        first = sum(path.stat().st_size for path in [page, *page.parent.glob("run.*.js")])
        sizes.append(first)
    assert sizes[1] < 1.5 * sizes[0]


def test_pieces_of_a_row_are_named() -> None:
    row = np.zeros(len(PIECES), dtype=np.int64)
    row[COLUMN["host"]] = 5
    assert pieces_of(row) == {"host": 5}


def test_the_first_load_of_a_crowded_run_is_bounded(tmp_path: Path) -> None:
    trace = crowded_run(tmp_path / "run.cbt")
    assert (len(trace.steps.index), len(trace.requests.id)) == (5000, 500)
    report = build_site([tmp_path / "run.cbt"], tmp_path / "site")
    page = report.out / report.runs[0].page
    first = read_links(page)
    loaded = {(page.parent / address).resolve() for address in first.addresses if address.endswith((".js", ".css"))}
    assert not any("vega" in path.name for path in loaded)  # its charts are painted without it
    assert page.stat().st_size + sum(path.stat().st_size for path in loaded) <= 2_500_000
    cuts = attribute(trace)
    assert (cuts.gaps.pieces.sum(axis=1) == cuts.gaps.total_ns).all()
    assert (cuts.ttft.pieces.sum(axis=1) == cuts.ttft.total_ns).all()
    # Steps with a prompt and a number of decodes that no decode-only step has: there is no estimate to split them by.
    assert cuts.gaps.count @ cuts.gaps.pieces[:, COLUMN["unattributed"]] < 0.01 * cuts.gaps.durations.sum()
