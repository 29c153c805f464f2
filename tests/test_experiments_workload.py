"""Workloads: exactly what was asked for, the same from one seed every time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbtrace.recorder.experiments import (
    AtOnce,
    Bursts,
    Constant,
    Empirical,
    Fixed,
    Gamma,
    LogNormal,
    Percentiles,
    Poisson,
    PromptsSpec,
    ReplaySpec,
    SharedPrefix,
    SyntheticSpec,
    Uniform,
    Workload,
    build_workload,
)
from cbtrace.recorder.experiments.arrivals import Arrivals, draw_instants
from cbtrace.recorder.experiments.lengths import Lengths, draw_lengths
from cbtrace.recorder.experiments.preview import histogram, preview
from cbtrace.recorder.experiments.prompts import random_source
from cbtrace.recorder.experiments.spec_error import SpecError


def draw(lengths: Lengths, count: int = 5000, folder: Path = Path()) -> np.ndarray:
    return np.array(draw_lengths(lengths, count, random_source(3, "test"), folder))


def synthetic(**changes: object) -> SyntheticSpec:
    fields = {"requests": 20, "prompt_tokens": Uniform(low=2, high=60), "new_tokens": Uniform(low=1, high=9)} | changes
    return SyntheticSpec(**fields)  # type: ignore[arg-type]


def built(spec: object, seed: int = 1, **options: object) -> Workload:
    return build_workload(spec, seed=seed, vocabulary=512, **options)  # type: ignore[arg-type]


def test_the_example_of_the_module_is_true() -> None:
    spec = SyntheticSpec(requests=8, prompt_tokens=Uniform(low=16, high=64), new_tokens=Fixed(tokens=32))
    assert [len(request.prompt) for request in built(spec).requests] == [52, 33, 55, 35, 27, 26, 35, 33]


def test_the_same_seed_gives_the_same_workload_on_every_machine() -> None:
    spec = synthetic(arrivals=Gamma(per_s=20, burstiness=0.5), prefix=SharedPrefix(rate=0.5, tokens=10, groups=2))
    assert built(spec) == built(spec)
    # A number written down: it changes when the way from a seed to a workload does, which nobody may do unnoticed.
    assert built(spec).facts["workload.digest"] == "c7ebea917c43c038"
    assert built(spec, seed=2).facts["workload.digest"] != built(spec).facts["workload.digest"]


def test_each_part_has_its_own_random_numbers() -> None:
    one, other = built(synthetic()), built(synthetic(arrivals=Poisson(per_s=5), new_tokens=Fixed(tokens=3)))
    assert [request.prompt for request in one.requests] == [request.prompt for request in other.requests]


def test_uniform_reaches_both_ends_and_nothing_beyond() -> None:
    assert set(draw(Uniform(low=3, high=6)).tolist()) == {3, 4, 5, 6}


def test_lognormal_has_its_median_and_spread() -> None:
    values = draw(LogNormal(median=100, sigma=0.5, low=1, high=100_000))
    assert abs(np.median(values) - 100) < 5
    assert abs(np.log(values).std() - 0.5) < 0.02
    assert draw(LogNormal(median=100, sigma=3, low=50, high=200)).min() == 50


def test_percentiles_are_met() -> None:
    values = draw(Percentiles(points={"0": 10, "50": 100, "95": 1000, "100": 1500}), 20_000)
    assert np.percentile(values, [50, 95]) == pytest.approx([100, 1000], rel=0.05)
    assert values.min() >= 10 and values.max() <= 1500


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ({"150": 3}, "out of range"),
        ({"-1": 3}, "out of range"),
        ({"p50": 3}, "no percentile"),
        ({"50": 30, "90": 3}, "let the tokens rise"),
        ({"50": 3, "50.0": 4}, "once"),
        ({}, "No percentile"),
    ],
)
def test_impossible_percentiles_are_refused(points: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        built(synthetic(prompt_tokens=Percentiles(points=points)))


def test_empirical_lengths_come_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("# tokens\n5\n\n700\n")
    assert set(draw(Empirical(file="lengths.txt"), 100, tmp_path).tolist()) == {5, 700}
    (tmp_path / "lengths.csv").write_text("id,tokens\na,8\nb,9\n")
    assert set(draw(Empirical(file="lengths.csv", column="tokens"), 100, tmp_path).tolist()) == {8, 9}


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("5\nabc\n", None, "line 2: 'abc'"),
        ("5\n0\n", None, "line 2: '0'"),
        ("", None, "holds no numbers"),
        ("id,tokens\na,8\n", "token", "line 1 has no column 'token'"),
        ("id,tokens\na,-8\n", "tokens", "line 2: '-8'"),
        ("10000001\n", None, "line 1: '10000001'"),
        ("\u20ac", None, "not a text in UTF-8"),
    ],
)
def test_a_bad_file_of_lengths_is_refused_by_line(tmp_path: Path, text: str, column: str | None, words: str) -> None:
    (tmp_path / "lengths").write_text(text, encoding="cp1252")
    with pytest.raises(SpecError, match=words):
        draw(Empirical(file="lengths", column=column), 10, tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.one_of(
        st.just(AtOnce()),
        st.builds(Constant, per_s=st.floats(0.01, 1e5)),
        st.builds(Poisson, per_s=st.floats(0.01, 1e5)),
        st.builds(Gamma, per_s=st.floats(0.01, 1e5), burstiness=st.floats(0.05, 50)),
        st.builds(Bursts, size=st.integers(1, 9), every_s=st.floats(0.001, 10)),
    ),
    count=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_instants_start_at_zero_and_never_run_backwards(arrivals: Arrivals, count: int, seed: int) -> None:
    instants = draw_instants(arrivals, count, random_source(seed))
    assert len(instants) == count and instants[0] == 0
    assert all(earlier <= later for earlier, later in pairwise(instants))


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gamma_gaps_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    gaps = np.diff(draw_instants(Gamma(per_s=10, burstiness=burstiness), 20_000, random_source(1))) / 1e9
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


@pytest.mark.parametrize(
    "arrivals",
    [
        Constant(per_s=1e-9),
        Poisson(per_s=1e-9),
        Gamma(per_s=1e-9, burstiness=0.001),
        Bursts(size=1, every_s=86400),
    ],
)
def test_arrivals_over_more_than_a_year_are_refused(arrivals: Arrivals) -> None:
    with pytest.raises(SpecError, match="more than a year") as caught:
        built(synthetic(requests=400, arrivals=arrivals))
    assert caught.value.at == ("arrivals",)


def test_a_replay_over_more_than_a_year_is_refused(tmp_path: Path) -> None:
    line = '{"timestamp": %s, "input_length": 4, "output_length": 4, "hash_ids": [1]}\n'
    (tmp_path / "trace.jsonl").write_text(line % 0 + line % 1000)
    assert built(ReplaySpec(file="trace.jsonl", speed=1e-6), folder=tmp_path).span_ns == 10**15
    with pytest.raises(SpecError, match="raise speed"):
        built(ReplaySpec(file="trace.jsonl", speed=1e-300), folder=tmp_path)
    with pytest.raises(SpecError, match="lower length_scale"):
        built(ReplaySpec(file="trace.jsonl", length_scale=1e6 * 5), folder=tmp_path)


def test_groups_without_requests_cost_nothing() -> None:
    few = built(synthetic(prefix=SharedPrefix(rate=1, tokens=10, groups=20)))
    assert built(synthetic(prefix=SharedPrefix(rate=1, tokens=10, groups=1_000_000))).requests == few.requests


def test_constant_and_bursts_are_exact() -> None:
    assert draw_instants(Constant(per_s=4), 3, random_source(1)) == [0, 250_000_000, 500_000_000]
    assert draw_instants(Bursts(size=2, every_s=1.5), 5, random_source(1)) == [
        0,
        0,
        1_500_000_000,
        1_500_000_000,
        3_000_000_000,
    ]


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(0, 1), tokens=st.integers(1, 80), groups=st.integers(1, 5), seed=st.integers(0, 50))
def test_prefixes_are_shared_within_a_group_and_nowhere_else(rate: float, tokens: int, groups: int, seed: int) -> None:
    workload = built(synthetic(prefix=SharedPrefix(rate=rate, tokens=tokens, groups=groups)), seed=seed)
    sharing = [request for request in workload.requests if request.prefix_group >= 0]
    assert len(sharing) == round(rate * 20)
    assert [len(r.prompt) for r in workload.requests] == [len(r.prompt) for r in built(synthetic(), seed=seed).requests]
    for request in sharing:
        assert request.prefix_tokens == min(tokens, len(request.prompt) - 1)
        for other in sharing:
            if other.prefix_group == request.prefix_group:
                shared = min(request.prefix_tokens, other.prefix_tokens)
                assert request.prompt[:shared] == other.prompt[:shared]


def test_prompts_come_from_a_file_with_limits_of_their_own(tmp_path: Path) -> None:
    lines = [{"tokens": [1, 2, 3]}, {"text": "ab", "new_tokens": 7}, {"tokens": [5], "extra": 1}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    spec = PromptsSpec(file="prompts.jsonl", new_tokens=Fixed(tokens=4))
    workload = built(spec, folder=tmp_path, encode=lambda text: [ord(letter) for letter in text])
    assert [(request.prompt, request.new_tokens) for request in workload.requests] == [
        ([1, 2, 3], 4),
        ([97, 98], 7),
        ([5], 4),
    ]
    assert workload.facts["workload.file"] == "prompts.jsonl"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"tokens": [1, 600]}', "line 1: token 600 is not one of the model's 512"),
        ('{"text": "a"}', "no tokenizer"),
        ('{"tokens": []}', "no prompt"),
        ('{"tokens": "a"}', "line 1"),
        ("nonsense", "line 1"),
        ('{"tokens": [1], "new_tokens": 0}', "new_tokens"),
    ],
)
def test_a_bad_prompt_is_refused_by_line(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(line)
    with pytest.raises(SpecError, match=words):
        built(PromptsSpec(file="prompts.jsonl", new_tokens=Fixed(tokens=4)), folder=tmp_path)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2224670,879,55\n"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,1,ChatGPT,472,18,490,Conversation log\n45,2,2,GPT-4,100,0,100,Conversation log\n"
    "118.5,3,3,ChatGPT,1087,230,1317,Conversation log\n"
)
MOONCAKE = "\n".join(
    json.dumps({"timestamp": at, "input_length": length, "output_length": new, "hash_ids": blocks})
    for at, length, new, blocks in [
        (0, 1200, 50, [0, 1, 2]),
        (2000, 1400, 9, [0, 1, 7]),
        (3000, 600, 5, [9, 10]),
        (3000, 1024, 5, [4, 1]),
    ]
)


def test_azure_is_replayed_with_speed_and_scale(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    spec = ReplaySpec(file="azure.csv", speed=2, length_scale=0.1, max_new_tokens=8)
    workload = built(spec, folder=tmp_path)
    assert [(len(r.prompt), r.new_tokens) for r in workload.requests] == [(37, 4), (40, 8), (88, 6)]
    assert [r.at_ns for r in workload.requests] == [0, round(4_314_579_000 / 2), round(4_541_877_000 / 2)]
    assert not workload.at_once


def test_burstgpt_is_replayed_without_requests_that_got_no_answer(tmp_path: Path) -> None:
    (tmp_path / "burst.csv").write_text(BURSTGPT)
    workload = built(ReplaySpec(file="burst.csv"), folder=tmp_path)
    assert [(len(r.prompt), r.new_tokens, r.at_ns) for r in workload.requests] == [
        (472, 18, 0),
        (1087, 230, 113_500_000_000),
    ]


@pytest.mark.parametrize("scale", [1.0, 1 / 16])
def test_mooncake_blocks_are_equal_where_their_ids_are(tmp_path: Path, scale: float) -> None:
    (tmp_path / "mooncake.jsonl").write_text(MOONCAKE)
    requests = built(ReplaySpec(file="mooncake.jsonl", length_scale=scale), folder=tmp_path).requests
    first, second, third, fourth = requests
    block = round(512 * scale)
    assert [len(request.prompt) for request in requests] == [round(n * scale) for n in (1200, 1400, 600, 1024)]
    assert first.prompt[: 2 * block] == second.prompt[: 2 * block]
    assert first.prompt[2 * block :] != second.prompt[2 * block : len(first.prompt)]
    assert fourth.prompt[block : 2 * block] == first.prompt[block : 2 * block]
    assert third.prompt[:block] not in (first.prompt[:block], fourth.prompt[:block])
    # Block 1 of the fourth is at the same place as in the others, but behind another first block: no common prefix.
    assert [request.prefix_tokens for request in requests] == [2 * block, 2 * block, 0, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "line 1 is in no known layout"),
        (AZURE + "yesterday,1,2\n", "line 5: 'yesterday'"),
        (AZURE + "2023-11-16 18:15:46.68,x,2\n", "line 5: 'x'"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n', "line 1"),
        ('{"timestamp": 0}\n', "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
    ],
)
def test_a_bad_recorded_trace_is_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(SpecError, match=words):
        built(ReplaySpec(file="trace"), folder=tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.csv cannot be read"):
        built(ReplaySpec(file="gone.csv"), folder=tmp_path)


def test_facts_hold_no_path(tmp_path: Path) -> None:
    (tmp_path / "secret-folder").mkdir()
    (tmp_path / "secret-folder" / "azure.csv").write_text(AZURE)
    workload = built(ReplaySpec(file="secret-folder/azure.csv"), folder=tmp_path)
    assert "secret-folder" not in str(workload.facts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200))
def test_a_histogram_counts_every_value(values: list[int]) -> None:
    lines = list(histogram(np.array(values)))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == len(values)
    assert len(lines) <= 12
    for line in lines:
        first, last = (int(word) for word in line.split()[:3:2])
        assert int(line.rsplit(" ", 1)[1]) == sum(first <= value <= last for value in values)


def test_a_preview_tells_totals() -> None:
    workload = built(synthetic(prefix=SharedPrefix(rate=1, tokens=5), arrivals=Poisson(per_s=3)))
    text = "\n".join(preview(workload, 1))
    assert str(sum(len(request.prompt) for request in workload.requests)) in text
    assert "20 requests in 1 groups, " in text and "Arrival in seconds" in text
