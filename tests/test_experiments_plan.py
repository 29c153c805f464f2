"""Plans: every mistake is one sentence with its line and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.recorder.experiments.plan import parse_plan, read_plan
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.recorder.experiments.stages import variants_of
from cbtrace.recorder.experiments.templates import template_names, template_text
from cbtrace.recorder.experiments.toml_lines import TomlLines
from conftest import Cbtrace

PLAN = """\
name = "study"
repeats = 2

[model]
source = "random:tiny"

[workload]
kind = "synthetic"
requests = 8
[workload.prompt_tokens]
kind = "percentiles"
points = { 50 = 10, 95 = 30 }
[workload.new_tokens]
kind = "fixed"
tokens = 8

[[variants]]
stage = 2
vary = "max_batch_tokens"
values = [16, 32]

[[variants]]
stage = 3
set = { num_blocks = "50%" }
"""

CHANGE = 'set = { num_blocks = "50%" }'
MISTAKES = [
    ("unknown key", "repeats = 2", "repeat = 2", 2, "no key 'repeat': did you mean repeats?"),
    ("wrong type", "repeats = 2", 'repeats = "2"', 2, "repeats: must be int, got str"),
    ("out of range", "repeats = 2", "repeats = 0", 2, "repeats: must be int >= 1"),
    ("missing key", 'name = "study"\n', "", 1, "lacks 'name'"),
    ("unknown shape", "random:tiny", "random:tyny", 5, "did you mean random:tiny?"),
    ("no such model", "random:tiny", "./nowhere", 5, "There is no model in './nowhere'"),
    ("hub without revision", "random:tiny", "owner/model", 5, "add its revision"),
    ("unknown distribution", 'kind = "percentiles"', 'kind = "percentile"', 11, "name one of empirical, fixed"),
    ("percentile out of range", "95 = 30", "150 = 30", 12, "Percentile 150 is out of range"),
    ("percentile of half a token", "95 = 30", "95 = 3.5", 12, "must be int, got float"),
    ("unknown setting", '"max_batch_tokens"', '"max_batch_token"', 19, "did you mean max_batch_tokens?"),
    ("wrong value", "[16, 32]", '[16, "x"]', 20, 'a share of the baseline\'s value such as "50%"'),
    ("no values", "values = [16, 32]\n", "", 19, "It has no values"),
    ("unknown stage", "stage = 3", "stage = 7", 23, "must be int <= 4"),
    ("unknown setting in set", "num_blocks", "num_block", 24, "did you mean num_blocks?"),
    (
        "two variables",
        '{ num_blocks = "50%" }',
        '{ num_blocks = "50%", safety_margin = 0.1 }',
        24,
        "changes 2 variables",
    ),
    ("nothing changed", CHANGE, 'needs = "cuda"', 22, "changes nothing"),
    ("unknown parent", CHANGE, 'from = "x"\nset = { num_blocks = 1 }', 24, "no variant 'x'"),
    ("unknown workload", CHANGE, 'workload = "chat"', 24, "add [workloads.chat]"),
    (
        "unknown pin",
        CHANGE,
        'set = { num_blocks = 3 }\npin = ["seed"]',
        25,
        "seed cannot be pinned",
    ),
    ("static without size", CHANGE, 'kind = "static"', 24, "needs a batch_size"),
    ("size without static", CHANGE, f"batch_size = 4\n{CHANGE}", 24, "batch_size is for static batching"),
    ("rule without static", CHANGE, f'batch_by = "length"\n{CHANGE}', 24, "batch_by is for static batching"),
    (
        "static of a variant",
        CHANGE,
        'kind = "static"\nbatch_size = 4\nfrom = "max_batch_tokens=16"',
        26,
        "takes nothing over",
    ),
    (
        "same name",
        CHANGE,
        'name = "max_batch_tokens=16"\nset = { num_blocks = 3 }',
        24,
        "already",
    ),
    ("unknown choice", "repeats = 2", 'order = "shuffled"', 2, "(name one of interleaved, by_stage, random)"),
    ("unknown kind of variant", CHANGE, 'kind = "statc"', 24, "(name one of continuous, static)"),
    ("nobody's home", "random:tiny", "~nobody-of-this-name/model", 5, "There is no model in"),
    ("endless name", "random:tiny", "m" * 5000, 5, "There is no model in"),
    ("negative seed", 'random:tiny"', 'random:tiny"\nseed = -1', 6, "model.seed: must be int >= 0"),
    ("unknown device", 'random:tiny"', 'random:tiny"\ndevice = "gpu"', 6, "name auto, cuda or cpu"),
    ("negative end token", "[workload]", "[generation]\nend_token = -1\n[workload]", 8, "end_token: must be int >= 0"),
    ("no sampling", "[workload]", "[generation]\ntop_k = 5\n[workload]", 8, "top_k has no effect without do_sample"),
    ("a value twice", "[16, 32]", "[16, 16]", 20, "16 stands there twice"),
    ("values of nothing", CHANGE, f"values = [3]\n{CHANGE}", 24, "values belongs to vary"),
    ("pinned and changed", CHANGE, f'{CHANGE}\npin = ["num_blocks"]', 25, "num_blocks is changed here"),
    (
        "variant of static",
        CHANGE,
        f'kind = "static"\nbatch_size = 4\n[[variants]]\nstage = 3\nfrom = "static"\n{CHANGE}',
        28,
        "static is static batching",
    ),
    ("too deep", "repeats = 2", "repeats = " + "[" * 5000 + "]" * 5000, 1, "nested too deeply"),
    ("not TOML", "requests = 8", "requests =", 9, "correct the TOML"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: int, words: str) -> None:
    assert old in PLAN
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_plan(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line {line}: ")
    assert words in text and "\n" not in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("extra", "line", "words"),
    [
        ('[workloads.chat]\nkind = "replay"\nfile = "gone.csv"\n', 27, "There is no file gone.csv"),
        ('[workloads.chat]\nkind = "replay"\nfile = "gone.csv"\nsped = 2\n', 28, "workloads.chat has no key 'sped'"),
        ('[workloads.default]\nkind = "replay"\nfile = "gone.csv"\n', 25, "choose another name"),
        ('[settings]\nnum_blocks = "50%"\n', 26, "cannot be a share of itself"),
        ("[slos]\nttft_p95_ms = -1\n", 26, "slos.ttft_p95_ms"),
    ],
)
def test_a_mistake_further_down_is_told_with_its_line(tmp_path: Path, extra: str, line: int, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN + extra)
    with pytest.raises(SpecError, match=f"line {line}: ") as caught:
        read_plan(path)
    assert words in str(caught.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN, encoding="utf-8-sig")
    assert read_plan(path).name == "study"


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.toml cannot be read") as caught:
        read_plan(tmp_path / "nowhere.toml")
    assert caught.value.slug == "plan-not-found"


def test_a_right_plan_is_read() -> None:
    plan = parse_plan(PLAN, Path())
    assert plan.repeats == 2 and plan.order == "interleaved" and plan.model.dtype == "float32"


def test_two_variables_are_allowed_when_asked_for() -> None:
    text = PLAN.replace('{ num_blocks = "50%" }', "{ num_blocks = 3, safety_margin = 0.1 }\ntogether = true")
    assert parse_plan(text, Path()).variants[1].together


@pytest.mark.parametrize("name", template_names())
def test_every_template_is_right(name: str) -> None:
    plan = parse_plan(template_text(name), Path())
    assert {variant.stage for variant in variants_of(plan)} == {1, 2, 3, 4}


def test_lines_of_nested_tables() -> None:
    lines = TomlLines(
        'a = 1\n[b]\nc.d = 2\n"e f" = 3\n[[g]]\nh = 1\n[[g]]\nh = { i = 2, j = 3 }\n[g.k]\nl = [\n 1,\n]\n'
    )
    assert lines.line_of(("a",)) == 1
    assert lines.line_of(("b",)) == 2
    assert lines.line_of(("b", "c", "d")) == 3
    assert lines.line_of(("b", "e f")) == 4
    assert lines.line_of(("g", 0, "h")) == 6
    assert lines.line_of(("g", 1, "h", "j")) == 8
    assert lines.line_of(("g", 1, "k", "l")) == 10
    assert lines.line_of(("g", 1, "missing")) == 7


def test_init_writes_a_plan_that_check_accepts_and_keeps_what_is_there(cbtrace: Cbtrace, tmp_path: Path) -> None:
    assert cbtrace("plan", "init").returncode == 0
    assert "is correct: 16 variants, 48 runs" in cbtrace("plan", "check", "plan.toml").stdout
    (tmp_path / "plan.toml").write_text("mine")
    refused = cbtrace("plan", "init")
    assert refused.returncode == 2 and "plan-exists" in refused.stderr
    assert (tmp_path / "plan.toml").read_text() == "mine"


def test_show_and_dry_run_need_no_torch(cbtrace: Cbtrace, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not to be imported')")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    shown = cbtrace("workload", "show", "plan.toml", "--requests", "3", env=environment)
    assert shown.returncode == 0 and "r00002" in shown.stdout and "r00003" not in shown.stdout
    dry = cbtrace("run", "plan.toml", "--dry-run", env=environment)
    assert dry.returncode == 0, dry.stderr
    assert "max_batch_tokens=32" in dry.stdout and "8 of 8 runs are left" in dry.stdout


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (["run", "plan.toml"], "usage"),
        (["run", "gone.toml", "-o", "x"], "plan-not-found"),
        (["run", "plan.toml", "-o", "full"], "folder-not-empty"),
        (["workload", "show", "plan.toml", "--workload", "x"], "usage"),
        (["plan", "init", "--template", "x"], "usage"),
    ],
)
def test_wrong_command_lines(cbtrace: Cbtrace, tmp_path: Path, arguments: list[str], slug: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    result = cbtrace(*arguments)
    assert result.returncode == 2
    assert f"[{slug}]" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "x").exists()
