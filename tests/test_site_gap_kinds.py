"""Gaps that are counted together are the gaps themselves: every number of them, whatever the parts they come in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbtrace.site.analysis import gaps as gaps_module
from cbtrace.site.analysis.attribution import attribute, slowest_kinds
from cbtrace.site.analysis.bands import BANDS, bands, singles
from cbtrace.site.analysis.distribution import curve, describe
from cbtrace.site.analysis.gaps import GapCuts, longest_places
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.site.analysis.quantiles import Counted, quantiles
from cbtrace.site.analysis.request_lives import Lives
from cbtrace.site.analysis.spreading import Finished, Result
from cbtrace.traces import by_request
from site_gaps import every_gap, true_gaps
from site_runs import mixed_run


def rows_of(gaps: GapCuts) -> list[tuple[int, ...]]:
    """Steps, length, absence and pieces of each gap."""
    columns = [gaps.first_step, gaps.last_step, gaps.start_ns, gaps.total_ns, gaps.absent_steps, gaps.pieces]
    return list(map(tuple, np.column_stack(columns).tolist()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most_apart", [1, 1 << 16])
@pytest.mark.parametrize("pairs", [1, 40, 1 << 18])
def test_kinds_are_all_gaps_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most_apart: int, pairs: int
) -> None:
    monkeypatch.setattr(gaps_module, "MOST_APART", most_apart)
    monkeypatch.setattr(by_request, "PART_PAIRS", pairs)
    trace = mixed_run(tmp_path / "run.cbt", seed)
    gaps, cuts = every_gap(trace), attribute(trace)
    found = zip(gaps.request.tolist(), gaps.position.tolist(), gaps.total_ns.tolist(), strict=True)
    assert list(found) == true_gaps(trace)
    counted: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(rows_of(cuts.gaps), cuts.gaps.count.tolist(), strict=True):
        counted[row] += count
    assert counted == Counter(rows_of(gaps))
    firsts = list(zip(cuts.gaps.request.tolist(), cuts.gaps.position.tolist(), strict=True))
    assert firsts == sorted(firsts)
    of = {
        (request, position): row
        for request, position, row in zip(gaps.request, gaps.position, rows_of(gaps), strict=True)
    }
    assert [of[first] for first in firsts] == rows_of(cuts.gaps)  # each stands for itself and for those after it
    longest = np.full(len(trace.requests.id), -1)
    np.maximum.at(longest, gaps.request, gaps.total_ns)
    assert cuts.longest_gap.tolist() == longest.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_every_figure_is_that_of_the_gaps_one_by_one(tmp_path: Path, seed: int) -> None:
    trace = mixed_run(tmp_path / "run.cbt", seed, requests=60)
    gaps, cuts = every_gap(trace), attribute(trace)
    alone = np.ones_like(gaps.total_ns)
    assert describe(cuts.gaps.durations) == describe(gaps.total_ns)
    assert curve(cuts.gaps.durations) == curve(gaps.total_ns)
    kinds = (cuts.gaps.total_ns, cuts.gaps.pieces, cuts.gaps.count)
    assert bands(*kinds) == bands(gaps.total_ns, gaps.pieces, alone)
    for (_, low, high), band in zip(BANDS, bands(*kinds), strict=True):
        above = -1 if low == 0 else np.percentile(gaps.total_ns, low)
        inside = (gaps.total_ns > above) & (gaps.total_ns <= np.percentile(gaps.total_ns, high))
        assert (band.n, band.total_ns) == (inside.sum(), gaps.total_ns[inside].sum())
        assert band.pieces.get("decode", 0) == gaps.pieces[inside, COLUMN["decode"]].sum()
    for one, other in zip(singles(*kinds), singles(gaps.total_ns, gaps.pieces, alone), strict=True):
        assert (one.id, one.percentile_ns, one.total_ns, one.pieces) == (
            other.id,
            other.percentile_ns,
            other.total_ns,
            other.pieces,
        )
        assert cuts.gaps.request[one.row] == gaps.request[other.row]
        assert cuts.gaps.position[one.row] == gaps.position[other.row]


@pytest.mark.parametrize("seed", range(4))
def test_the_slowest_gaps_are_told_exactly_where_equal_ones_are_cut_off(tmp_path: Path, seed: int) -> None:
    trace = mixed_run(tmp_path / "run.cbt", seed)
    gaps, kinds = every_gap(trace), attribute(trace).gaps
    worst = np.argsort(-gaps.total_ns, kind="stable")
    for most in range(1, len(worst) + 1):
        found = slowest_kinds(trace, kinds, most)
        assert found.count.sum() == most
        assert (found.count @ found.pieces).tolist() == gaps.pieces[worst[:most]].sum(axis=0).tolist()
        assert (np.diff(found.total_ns) <= 0).all()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(10**6), 10**15), st.integers(0, 30)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), max_size=8),
)
def test_quantiles_of_counted_values_are_numpy_s(pairs: list[tuple[int, int]], at: list[float]) -> None:
    pairs = [*pairs, (pairs[0][0], 1)]
    values, counts = np.array(pairs, dtype=np.int64).T
    written_out = np.repeat(values, counts)
    at = [*at, 0.5, 0.95, 0.99, 1.0]
    assert quantiles(Counted(values, counts), at).tolist() == np.quantile(written_out, at).tolist()
    assert Counted(values, counts).max() == written_out.max()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20)), max_size=80), st.integers(1, 9))
def test_the_longest_of_each_request_are_the_first_of_equals(pairs: list[tuple[int, int]], most: int) -> None:
    pairs.sort(key=lambda pair: pair[0])
    request, total = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    order = sorted(range(len(pairs)), key=lambda row: (request[row], -total[row]))
    rank: Counter[int] = Counter()
    expected = []
    for row in order:
        rank[int(request[row])] += 1
        if rank[int(request[row])] <= most:
            expected.append(row)
    assert longest_places(request, total, most).tolist() == sorted(expected)


@pytest.mark.parametrize("most_apart", [3, 1 << 16])
def test_parts_may_be_finished_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_apart: int) -> None:
    monkeypatch.setattr(gaps_module, "MOST_APART", most_apart)
    monkeypatch.setattr(by_request, "PART_PAIRS", 40)
    trace = mixed_run(tmp_path / "run.cbt", 3)

    def shuffled(work: Callable[[int], Result], count: int) -> Finished[Result]:
        order = np.random.default_rng(0).permutation(count).tolist()
        assert count > 5 and order != sorted(order)
        for number in order:
            yield number, work(number)

    turns, found = attribute(trace), attribute(trace, shuffled)
    assert found.longest_gap.tolist() == turns.longest_gap.tolist()
    for name in ("gaps", "ttft"):
        for column in getattr(turns, name).__dataclass_fields__:
            assert getattr(getattr(found, name), column).tolist() == getattr(getattr(turns, name), column).tolist()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 400))
def test_parts_change_nothing_of_requests(tmp_path: Path, seed: int, pairs: int) -> None:
    """Lives, gaps and stays of requests are the same in whichever parts they come."""
    path = tmp_path / "run.cbt"
    path.unlink(missing_ok=True)
    trace = mixed_run(path, seed)
    (whole,) = map(Lives(trace, 2).of, trace.request_spans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_request, "PART_PAIRS", pairs)
        patch.setattr(by_request, "GROUP", 4)
        parts = list(map(Lives(trace, 2).of, trace.request_spans()))
    assert (parts[0].first, parts[-1].end) == (0, len(trace.requests.id))
    assert [part.end for part in parts[:-1]] == [part.first for part in parts[1:]]
    for name in ("lives", "gaps", "stays"):
        for column in getattr(whole, name).__dataclass_fields__:
            joined = np.concatenate([getattr(getattr(part, name), column) for part in parts])
            assert joined.tolist() == getattr(getattr(whole, name), column).tolist()
