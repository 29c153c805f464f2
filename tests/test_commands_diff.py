"""``cbtrace diff``: text, JSON, markdown and the gate say the same, and nothing is read backwards."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cbtrace.commands import run
from cbtrace.site.diff_json import DIFF_SCHEMA
from cbtrace.traces.experiment import Experiment, RunEntry, StageEntry, VariantEntry, write_experiment
from cbtrace.traces.schema import Facts
from compared_runs import repeats, slower_pair, timed_run
from conftest import Cbtrace
from site_runs import HOSTILE

DOCS = (Path(__file__).parent.parent / "docs" / "diff.md").read_text(encoding="utf-8")
SAMPLES = Path(__file__).parent.parent / "traces" / "samples"
TTFT = "ttft_ms.p95"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Diff = Callable[..., Done]


@pytest.fixture
def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Diff:
    """``cbtrace diff ARGUMENTS`` in this process, in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["cbtrace", "diff", *arguments])
        code = run()
        return Done(code, *capfd.readouterr())

    return call


def read(diff: Diff, *arguments: str) -> dict[str, Any]:
    result = diff(*arguments, "--format", "json")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def row(text: str, label: str) -> str:
    """The line of the table that begins with a label, with single blanks."""
    return next(" ".join(line.split()) for line in text.splitlines() if line.strip(" |").startswith(label))


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    slower_pair(tmp_path)
    return tmp_path


def test_text_json_markdown_and_gate_agree_on_the_hand_made_pair(pair: Path, diff: Diff) -> None:
    sides = ("baseline", "candidate")
    found = read(diff, *sides)
    ttft = found["values"][TTFT]
    assert (ttft["word"], ttft["why"], ttft["direction"]) == ("worse", "beyond_noise", "slower")
    assert ttft["change"] == pytest.approx(0.1, abs=0.001) and 0.09 < ttft["change_low"] < ttft["change_high"] < 0.11
    assert (found["headline"]["word"], found["headline"]["worse"]) == ("worse", [TTFT])
    others = {key: it for key, it in found["values"].items() if not key.startswith("ttft_ms")}
    assert {it["word"] for it in others.values()} <= {"within_noise", "cannot_tell"}

    text = diff(*sides).stdout
    assert "\nB is worse than A: TTFT p95 +10.0 % (slower)." in text
    assert row(text, "TTFT p95") == "TTFT p95 [ms] 8 8.8 +0.8 +10.0 % +9.2 to +10.8 % slower worse"
    markdown = diff(*sides, "--format", "markdown").stdout
    assert markdown.startswith("### B is worse than A: TTFT p95 +10.0 % (slower).")
    assert row(markdown, "TTFT p95") == "| TTFT p95 | 8 ms | 8.8 ms | +10.0 % | +9.2 to +10.8 % | slower | **worse** |"

    gate = diff(*sides, "--fail-if", f"{TTFT} > +5%", "--fail-if", "e2e_ms.p95 > +5%")
    assert gate.returncode == 1
    assert "FAIL  ttft_ms.p95 > +5%: holds beyond noise." in gate.stdout
    assert "pass  e2e_ms.p95 > +5%: does not hold." in gate.stdout
    assert diff(*sides, "--fail-if", f"{TTFT} > +15%").returncode == 0
    assert diff(*sides, "--fail-if", f"{TTFT} > +10%").returncode == 3


def test_exchanging_the_sides_flips_all_of_them(pair: Path, diff: Diff) -> None:
    there, back = read(diff, "baseline", "candidate"), read(diff, "candidate", "baseline")
    for key, one in there["values"].items():
        other = back["values"][key]
        assert other["word"] == {"better": "worse", "worse": "better"}.get(one["word"], one["word"]), key
        if one["difference"] is not None:
            assert (other["difference"], other["low"], other["high"]) == (-one["difference"], -one["high"], -one["low"])
            assert (other["direction"] == one["direction"]) is (one["direction"] == "equal")
    assert (back["headline"]["word"], back["headline"]["better"]) == ("better", [TTFT])
    text = diff("candidate", "baseline").stdout
    assert "\nB is better than A: TTFT p95 \N{MINUS SIGN}9.1 % (faster)." in text
    assert row(text, "TTFT p95").endswith("-0.8 -9.1 % -9.8 to -8.4 % faster better".replace("-", "\N{MINUS SIGN}"))
    assert diff("candidate", "baseline", "--fail-if", f"{TTFT} > +5%").returncode == 0
    assert diff("candidate", "baseline", "--fail-if", f"{TTFT} < -5%").returncode == 1


def test_the_verdict_comes_first_and_comparability_and_correctness_before_any_number(
    pair: Path, cbtrace: Cbtrace
) -> None:
    text = cbtrace("diff", "baseline", "candidate", "--fail-if", f"{TTFT} > +5%").stdout
    parts = ("B is worse than A", "Comparable?", "num_blocks 4096 -> 2048", "Correct?", "means over runs", "Conditions")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "\x1b[" not in text, "no color without a terminal"


def test_a_terminal_gets_colors_unless_it_wants_none(pair: Path, diff: Diff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[31mworse" in diff("baseline", "candidate").stdout
    assert "\x1b[32mbetter" in diff("candidate", "baseline").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in diff("baseline", "candidate").stdout


def test_one_run_a_side_cannot_tell(pair: Path, diff: Diff) -> None:
    result = diff("baseline/run-0.cbt", "candidate/run-0.cbt", "--fail-if", f"{TTFT} > +5%")
    assert result.returncode == 3
    assert "Cannot tell from one run" in result.stdout
    assert row(result.stdout, "TTFT p95").endswith("+10.0 % slower cannot tell")
    assert "worse" not in result.stdout


UNLIKE: list[tuple[str, dict[str, Facts]]] = [
    ("hardware", {"conditions": {"hardware.gpu.name": "NVIDIA H100"}}),
    ("model", {"model": {"layers": 4}}),
    ("number type", {"model": {"dtype": "float32"}}),
    ("workload", {"conditions": {"workload.digest": "another"}}),
    ("versions", {"conditions": {"software.transformers": "5.17.0"}}),
]


@pytest.mark.parametrize(("category", "described"), UNLIKE)
def test_unlike_runs_are_warned_of(category: str, described: dict[str, Facts], tmp_path: Path, diff: Diff) -> None:
    timed_run(tmp_path / "a.cbt")
    timed_run(tmp_path / "b.cbt", **described)  # type: ignore[arg-type]
    text = diff("a.cbt", "b.cbt").stdout
    text = " ".join(text.split())
    assert f"Unlike runs, in {category}: " in text
    assert "The changes below are shown under this warning, and cannot be attributed to a setting." in text
    name, value = next(iter(next(iter(described.values())).items()))
    assert re.search(rf"Conditions that differ: \S*{name} .* -> {value}", text)


def test_two_variables_are_warned_of(tmp_path: Path, diff: Diff) -> None:
    timed_run(tmp_path / "a.cbt")
    timed_run(tmp_path / "b.cbt", requested={"num_blocks": 64, "max_batch_tokens": 64})
    timed_run(tmp_path / "c.cbt", requested={"scheduler_type": "prefill_first"}, resolved={"safety_margin": 0.0})
    several = " ".join(diff("a.cbt", "b.cbt").stdout.split())
    assert "Several settings differ: max_batch_tokens, num_blocks." in several
    assert "An effect cannot be attributed to any one of them." in several
    assert "Settings that differ: max_batch_tokens 256 -> 64; num_blocks 4096 -> 64" in several
    resolved = " ".join(diff("a.cbt", "c.cbt").stdout.split())
    assert "One setting was changed (scheduler_type), and the engine worked with other values" in resolved
    assert "safety_margin 0.15 -> 0.0" in resolved


def test_repeats_of_one_setting_get_no_verdict_unless_a_tag_says_what_changed(tmp_path: Path, diff: Diff) -> None:
    repeats(tmp_path / "a", 3, seed=1)
    repeats(tmp_path / "b", 3, seed=1, slower=1.5)
    repeats(tmp_path / "tagged-a", 3, seed=1, tags={"commit": "1a2b"})
    repeats(tmp_path / "tagged-b", 3, seed=1, slower=1.5, tags={"commit": "3c4d"})
    same = diff("a", "b", "--fail-if", f"{TTFT} > +5%")
    assert same.returncode == 3
    assert "A and B are runs of the same settings, so that what they differ by is noise." in same.stdout
    assert not re.search(r"\b(better|worse)\b", same.stdout)
    tagged = diff("tagged-a", "tagged-b", "--fail-if", f"{TTFT} > +5%")
    assert tagged.returncode == 1
    assert "the tags say that something else differs: commit." in tagged.stdout
    assert "Tags that differ: commit 1a2b -> 3c4d" in tagged.stdout


def test_sides_that_were_not_recorded_in_turn_are_told(tmp_path: Path, diff: Diff) -> None:
    for name, start, prefill in (("a", 0, 12e6), ("b", 9, 18e6)):
        (tmp_path / name).mkdir()
        for i in range(3):
            blocks: Facts = {"num_blocks": 64 if start else 96}
            timed_run(tmp_path / name / f"{i}.cbt", prefill_ns=prefill + i, recorded_s=start + i, requested=blocks)
    text = " ".join(diff("a", "b").stdout.split())
    assert "B is worse than A" in text and "It may be drift: the sides were not recorded in turn." in text
    assert "All runs of one side were recorded before the first of the other" in text


def test_outputs_that_differ_are_told_before_speed(tmp_path: Path, diff: Diff) -> None:
    timed_run(tmp_path / "a.cbt", tokens=True)
    timed_run(tmp_path / "b.cbt", tokens=True, other_token=(1, 5), failing=1, requested={"num_blocks": 64})
    text = " ".join(diff("a.cbt", "b.cbt").stdout.split())
    assert "B: 3 of 4 requests are complete; 1 failed (RuntimeError)." in text
    assert "other tokens in 1 of 3 pairs of requests, first at request request_1, token 5 (4 in A, 9999 in B)" in text
    assert text.index("other tokens") < text.index("means over runs")


def test_sides_can_be_lists(pair: Path, diff: Diff) -> None:
    a, b = ([f"{side}/run-{i}.cbt" for i in range(3)] for side in ("baseline", "candidate"))
    found = read(diff, *a, "vs", *b)
    assert [run["trace"] for run in found["a"]] == a and [run["trace"] for run in found["b"]] == b
    assert found["values"][TTFT]["runs_a"] == 3


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (["baseline"], "unclear-sides"),
        (["baseline", "candidate", "baseline"], "unclear-sides"),
        (["baseline", "vs"], "unclear-sides"),
        (["baseline", "vs", "candidate", "vs", "baseline"], "unclear-sides"),
        (["baseline", "baseline"], "run-twice"),
        (["baseline", "vs", "candidate", "baseline/run-1.cbt"], "run-twice"),
        (["baseline", "vs", "candidate", "predicted.cbt"], "prediction-among-runs"),
        (["baseline", "empty"], "no-traces"),
        (["baseline", "candidate", "--fail-if", "ttft_ms.p95 > 5%"], "bad-condition"),
        (["baseline/run-0.cbt", "candidate", "-o", "baseline/run-0.cbt"], "output-is-input"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], slug: str, pair: Path, diff: Diff) -> None:
    (pair / "empty").mkdir()
    timed_run(pair / "predicted.cbt", predicted=True)
    result = diff(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(f"[{slug}]\n")


def test_variants_of_an_experiment_are_named(pair: Path, diff: Diff) -> None:
    variants = ("baseline", "candidate", "broken", "waiting")
    status = {"broken": "failed", "waiting": "planned"}
    runs = [
        RunEntry(f"{variant}-{i}", variant, 1, i, status.get(variant, "done"), f"{variant}/run-{i}.cbt")
        for variant in variants
        for i in range(5)
    ]
    for failed in runs[10:15]:
        failed.failure, failed.phase = "oom", "cache creation"
    entries = [VariantEntry(variant, 1, "continuous", "default") for variant in variants]
    write_experiment(Experiment("e", {}, "", [StageEntry(1, "one")], entries, runs, {}), pair)
    found = json.loads(diff("--experiment", ".", "baseline", "candidate", "--format", "json").stdout)
    assert [run["trace"] for run in found["a"]] == [f"baseline/run-{i}.cbt" for i in range(5)]
    for names, says in (
        (("baseline", "nonesuch"), "baseline, candidate, broken"),
        (("baseline", "broken"), "failed (oom in cache creation)"),
        (("baseline", "waiting"), "was finished"),
        (("baseline",), "two of its variants"),
    ):
        result = diff("--experiment", ".", *names)
        assert result.returncode == 2 and says in result.stderr
    assert "experiment.json" in diff("--experiment", "baseline", "a", "b").stderr


@pytest.mark.parametrize(("name", "starts"), [("out.json", "{"), ("out.md", "### "), ("out.txt", "A  baseline")])
def test_a_file_is_written_by_its_ending_and_the_verdict_is_printed(
    name: str, starts: str, pair: Path, diff: Diff
) -> None:
    result = diff("baseline", "candidate", "-o", name, "--fail-if", f"{TTFT} > +5%")
    assert result.returncode == 1
    assert result.stdout.startswith("B is worse than A: TTFT p95") and "FAIL  ttft_ms.p95" in result.stdout
    assert (pair / name).read_text().startswith(starts)
    assert diff("baseline", "candidate", "-o", f"none/{name}").stderr.endswith("[file-unwritable]\n")


def test_a_page_is_one_file_and_says_the_same(pair: Path, diff: Diff) -> None:
    result = diff("baseline", "candidate", "-o", "diff.html", "--fail-if", f"{TTFT} > +5%")
    assert result.returncode == 1
    assert result.stdout.startswith("B is worse than A: TTFT p95") and result.stdout.endswith("Wrote diff.html\n")
    page = re.sub(r"<(script|style)>.*?</\1>", "", (pair / "diff.html").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page), "everything is inside"
    read = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "B is worse than A: TTFT p95 +10.0 % (slower)." in read, "without scripts, too"
    assert "one setting differs: num_blocks" in read
    (pair / "mine.html").write_text("mine")
    assert diff("baseline", "candidate", "-o", "mine.html").returncode == 2
    assert (pair / "mine.html").read_text() == "mine"


def test_a_file_that_exists_is_kept_unless_it_may_be_replaced(pair: Path, diff: Diff) -> None:
    (pair / "notes.md").write_text("mine")
    refused = diff("baseline", "candidate", "-o", "notes.md")
    assert (refused.returncode, (pair / "notes.md").read_text()) == (1, "mine")
    assert refused.stderr.endswith("[trace-exists]\n") and "--overwrite" in refused.stderr
    assert diff("baseline", "candidate", "-o", "notes.md", "--overwrite").returncode == 0
    assert (pair / "notes.md").read_text().startswith("### B is worse than A")


def test_hostile_names_are_text(tmp_path: Path, diff: Diff) -> None:
    hostile = f"{HOSTILE}\n| x | [a](http://x.test) @everyone #1 `code` \x1b[31m"
    for name in "ab":
        timed_run(
            tmp_path / f"{name}.cbt", tags={"t": f"{name} {hostile}"}, conditions={"hardware.cpu": name + hostile}
        )
    markdown = diff("a.cbt", "b.cbt", "--format", "markdown").stdout
    assert "<script" not in re.sub(r"\\.", "", markdown)
    assert "@everyone" not in markdown and "#1 " not in markdown and "://x.test" not in markdown
    assert all("\x1b" not in text and "\u202e" not in text for text in (markdown, diff("a.cbt", "b.cbt").stdout))
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {8}


def test_real_recordings(diff: Diff) -> None:
    """Static against continuous batching, recorded on an H200: other work is told, tokens are compared."""
    found = read(diff, str(SAMPLES / "h200-static.cbt"), str(SAMPLES / "h200-baseline-1.cbt"))
    assert (found["comparability"]["kind"], found["comparability"]["unlike"]) == ("unlike", ["batching"])
    assert found["headline"]["why"] == "one_run"
    outputs = found["correctness"]["outputs_b"]
    assert (outputs["state"], outputs["pairs"], outputs["unpaired"]) == ("compared", 96, 0)
    assert outputs["equal"] + outputs["differing"] == 96
    assert found["values"][TTFT]["direction"] == "faster"


def test_the_json_form_is_documented(pair: Path, diff: Diff) -> None:
    found = read(diff, "baseline", "candidate", "--fail-if", f"{TTFT} > +5%")
    assert found["schema"] == DIFF_SCHEMA and f"This is schema {DIFF_SCHEMA}" in DOCS
    keys = [
        *found,
        *found["a"][0],
        *found["headline"],
        *found["comparability"],
        *found["comparability"]["settings"][0],
        *found["correctness"],
        *found["correctness"]["ended_a"],
        *found["correctness"]["outputs_b"],
        *found["values"][TTFT],
        *found["gates"][0],
    ]
    documented = set(re.findall(r"`([a-z_]+)`", DOCS))
    assert set(keys) <= documented
