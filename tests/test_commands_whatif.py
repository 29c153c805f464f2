"""``cbtrace whatif``: tables, JSON, files, and what it says to wrong input."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from cbtrace.commands import run as run_command
from cbtrace.recorder import record
from cbtrace.recorder.whatif.neighbours import neighbours
from cbtrace.recorder.whatif.settings import CHANGEABLE
from cbtrace.site.analysis.comparison import compare, measured_run
from cbtrace.site.analysis.summary import summarize
from cbtrace.traces import open_trace
from cbtrace.traces.experiment import Experiment, RunEntry, StageEntry, VariantEntry, write_experiment
from cbtrace.traces.predictions import PREDICTIONS_FILE, read_predictions
from engines import VERSION, Case, prompts, tiny_llama

pytestmark = pytest.mark.engine

H200 = [
    Path(str(files("cbtrace.traces") / "samples" / f"{name}.cbt"))
    for name in ("h200-5.24.0-soft-resets", "h200-num-blocks-64-1")
]
"""Recorded on a GPU."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, llama = tmp_path_factory.mktemp("traces"), tiny_llama()
    paths = []
    for blocks in (64, 14):
        paths.append(folder / f"blocks-{blocks}.cbt")
        with record(paths[-1]):
            Case(prompts(10, 10, 40), new_tokens=24, settings={"num_blocks": blocks}).run_at_once(llama)
    return paths


def whatif(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["cbtrace", "whatif", *map(str, arguments)])
    return run_command()


def test_table_of_one_setting(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whatif(monkeypatch, traces[0], "--set", "num_blocks=14") == 0
    out = capsys.readouterr().out
    labels = [line[:24].strip() for line in out.splitlines()]
    assert {"measured", "predicted, as it was", "num_blocks=14"} <= set(labels) and "error, at most" not in labels
    assert "is not known from one recording" in out and "A prediction is no measurement" in out


def test_errors_come_from_recordings_left_out(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whatif(monkeypatch, *traces, "--set", "num_blocks=20", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [left["run"] for left in found["left_out"]] == ["blocks-64", "blocks-14"]
    for left in found["left_out"]:
        assert left["errors"]["soft_resets"] == 0, "all requests came at once: the schedule does not depend on times"
        assert left["errors"]["throughput_generated_tps"] != 0
    assert found["measured"]["soft_resets"] == 0
    assert found["predictions"][0]["changes"] == {"num_blocks": 20}


def test_sweep_writes_a_predicted_trace_each(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = (traces[0], "--sweep", "num_blocks=3,14,64", "--set", "safety_margin=0.1", "-o", folder)
    assert whatif(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert "num_blocks=3 the engine would come to a dead end" in out
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["safety_margin-0.1_num_blocks-14.cbt", "safety_margin-0.1_num_blocks-64.cbt"]
    assert all(open_trace(path).header.predicted for path in folder.iterdir())
    assert whatif(monkeypatch, *arguments) == 1 and "[trace-exists]" in capsys.readouterr().err


def test_a_prediction_gets_no_verdict(traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.cbt"
    assert whatif(monkeypatch, traces[0], "--set", "num_blocks=14", "-o", out) == 0
    sides = [[measured_run(trace, summarize(trace))] * 3 for trace in map(open_trace, (traces[0], out))]
    found = compare(*sides)
    assert found.comparability.kind == "predicted"
    assert (found.headline.word, found.headline.why) == ("cannot_tell", "predicted")
    assert {value.judgement.word for value in found.values} <= {"cannot_tell", "within_noise"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "num_blocks"), "not of the form KEY=VALUE"),
        (("--set", "num_blocks=many"), "num_blocks is a whole number from 1 to 1e+15, not 'many'"),
        (("--set", "num_blocks=0"), "num_blocks is a whole number from 1"),
        (("--set", "safety_margin=nan"), "safety_margin is a number from 0 to 1"),
        (("--set", "cpu_offload_space=inf"), "cpu_offload_space is a number from 0"),
        (("--set", "max_requests_per_batch=1" + 30 * "0"), "max_requests_per_batch is a whole number from 1 to 1e+15"),
        (("--set", "use_cuda_graph=1"), "use_cuda_graph is true or false"),
        (("--set", "seed=1"), "known are num_blocks"),
        (("--set", "num_blocks=1", "--sweep", "num_blocks=1,2"), "num_blocks is given twice"),
        (("--set", "num_blocks=9", "--solve", "ttft_ms.p95 800"), "is not METRIC OPERATOR NUMBER"),
        (("--set", "num_blocks=9", "--solve", "ttft_ms.p95 < 1 GiB"), "ttft_ms.p95 does not come in GiB"),
        (("--set", "num_blocks=9", "--solve", "luck < 1"), "there is no metric luck"),
        (("--set", "num_blocks=9", "--maximize", "luck"), "there is no metric luck"),
        (
            ("--set", "num_blocks=9", "--maximize", "soft_resets"),
            "--maximize orders several settings, and one is named",
        ),
        (("--set", "safety_margin=50"), "safety_margin is a number from 0 to 1, not '50'"),
        (("--sweep", "scheduler_type=fifo,lottery"), "scheduler_type is one of fifo, prefill_first, not 'lottery'"),
        (
            ("--set", "num_blocks=9", "--solve", "ttft_ms.p95 <= 1 s", "--solve", "ttft_ms.p95 >= 2000"),
            "no setting can keep both 'ttft_ms.p95 >= 2000' and 'ttft_ms.p95 <= 1 s'",
        ),
        (("--set", "num_blocks=9", "--solve", "steps < 2", "--solve", "steps >= 2"), "no setting can keep both"),
    ],
)
def test_wrong_usage_is_one_sentence(
    arguments: tuple[str, ...],
    said: str,
    traces: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert whatif(monkeypatch, traces[0], *arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1 and shown.out == ""


@pytest.mark.parametrize("named", ["twice", "as a copy"])
def test_a_run_that_is_named_twice_is_refused(
    named: str,
    traces: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Predicted from its own copy, it would make predictions look certain."""
    other = traces[0] if named == "twice" else tmp_path / "copy.cbt"
    if other != traces[0]:
        other.write_bytes(traces[0].read_bytes())
    assert whatif(monkeypatch, traces[0], traces[1], other, "--set", "num_blocks=14") == 2
    shown = capsys.readouterr()
    assert f"{other} holds the same run as {traces[0]}" in shown.err and "[run-twice]" in shown.err
    assert shown.err.count("\n") == 1 and shown.out == ""


def test_limits_that_leave_a_range_are_no_contradiction(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--solve", "soft_resets >= 0", "--solve", "soft_resets <= 0")
    assert whatif(monkeypatch, traces[0], "--set", "num_blocks=64", *limits) == 0
    assert "1. num_blocks=64" in capsys.readouterr().out


def test_offloading_to_more_memory_than_the_host_has_is_refused_and_the_unit_is_told(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ram = open_trace(traces[0]).header.fingerprint["hardware.ram_bytes"]
    assert isinstance(ram, int)
    fits, too_much = ram // 2**30, ram // 2**30 + 1
    assert whatif(monkeypatch, traces[0], "--sweep", f"cpu_offload_space={fits},{too_much}", "--json") == 0
    kept, refused = json.loads(capsys.readouterr().out)["predictions"]
    assert kept["values"] is not None and refused["refused"]["slug"] == "whatif-setting"
    assert f"cpu_offload_space is in GiB, and {too_much}" in refused["refused"]["text"]
    assert whatif(monkeypatch, traces[0], "--set", f"cpu_offload_space={fits}") == 0
    assert "cpu_offload_space is in GiB." in capsys.readouterr().out


def test_the_trace_itself_is_never_written_over(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = traces[0].read_bytes()
    for output in traces:
        assert whatif(monkeypatch, *traces, "--set", "num_blocks=14", "-o", output, "--overwrite") == 2
        assert "[output-is-input]" in capsys.readouterr().err
    assert traces[0].read_bytes() == before


def test_pages_and_info_say_predicted(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, site = tmp_path / "p.cbt", tmp_path / "site"
    assert whatif(monkeypatch, traces[0], "--set", "num_blocks=14", "-o", out) == 0
    monkeypatch.setattr("sys.argv", ["cbtrace", "build", str(traces[0]), str(out), "-o", str(site), "-j", "1"])
    assert run_command() == 0
    pages = {page.parent.name: page.read_text(encoding="utf-8") for page in (site / "runs").glob("*/index.html")}
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["cbtrace", "info", str(out)])
    assert run_command() == 0 and ", not measured\n" in capsys.readouterr().out
    index = (site / "index.html").read_text(encoding="utf-8")
    assert index.count("predicted, not measured") == 1
    marked = [name for name, text in pages.items() if "predicted, not measured" in text]
    assert len(pages) == 2 and len(marked) == 1


def test_settings_that_keep_the_limits_come_best_first(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*traces, "--sweep", "num_blocks=3,14,20,64", "--solve", "soft_resets <= 0")
    assert whatif(monkeypatch, *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    kept = [p for p in found["predictions"] if p["values"] is not None and p["values"]["soft_resets"] == 0]
    assert 0 < len(kept) < 3
    best_first = sorted(kept, key=lambda p: -p["values"]["throughput_generated_tps"])
    assert found["worth_running"] == [p["changes"] for p in best_first]
    assert whatif(monkeypatch, *arguments) == 0
    assert "1. num_blocks=64" in capsys.readouterr().out
    assert whatif(monkeypatch, traces[0], "--sweep", "num_blocks=14", "--solve", "soft_resets < 1") == 0
    assert "None of these settings is predicted to keep soft_resets < 1" in capsys.readouterr().out


def test_a_limit_that_the_error_may_break_is_named(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one recording the error is not known, so that any limit may be missed."""
    assert whatif(monkeypatch, traces[0], "--sweep", "num_blocks=64", "--solve", "ttft_ms.p95 < 100 s") == 0
    assert "may miss ttft_ms.p95 < 100 s" in capsys.readouterr().out
    assert whatif(monkeypatch, *traces, "--sweep", "num_blocks=64", "--solve", "ttft_ms.p95 < 100 s") == 0
    assert "may miss" not in capsys.readouterr().out


def test_without_settings_those_around_the_recorded_ones_are_tried(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = traces[1]
    assert whatif(monkeypatch, tight) == 0
    out = capsys.readouterr().out
    tried = [line.split()[0] for line in out.splitlines() if line.startswith(tuple(CHANGEABLE))]
    assert {"num_blocks=7", "num_blocks=28", "safety_margin=0.0", "scheduler_type=prefill_first"} <= set(tried)
    assert len(tried) == len(set(tried))
    assert "num_blocks=14" not in tried and not any(one.startswith("use_async_batching") for one in tried)
    assert "1. num_blocks=2" in out, "a cache that soft resets are met in is made larger first"


def test_values_around_the_recorded_one_that_come_to_the_same_are_tried_once(traces: list[Path]) -> None:
    trace = open_trace(traces[0])
    trace.engines[0].resolved["max_batch_tokens"] = 512
    tried = [one["max_batch_tokens"] for one in neighbours(trace) if "max_batch_tokens" in one]
    assert tried == [64, 128, 256, 1024], "a sixteenth and an eighth of it are raised to the least"


def test_equal_values_of_a_sweep_are_one_row(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (traces[0], "--sweep", "num_blocks=14,14,014,20", "--sweep", "safety_margin=0,0.00", "--json")
    assert whatif(monkeypatch, *arguments) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["changes"]["num_blocks"] for one in found] == [14, 20]


def experiment(folder: Path, traces: list[Path]) -> Experiment:
    """A finished experiment of these traces: a baseline, then a variant with fewer blocks."""
    (folder / "runs").mkdir(parents=True)
    names = ("baseline", "num_blocks=14")
    for name, trace in zip(names, traces, strict=True):
        (folder / "runs" / f"{name}.cbt").write_bytes(trace.read_bytes())
    made = Experiment(
        name="small",
        plan={},
        plan_digest="",
        stages=[StageEntry(1, "Baseline"), StageEntry(3, "KV cache")],
        variants=[
            VariantEntry("baseline", 1, "continuous", "default"),
            VariantEntry("num_blocks=14", 3, "continuous", "default", "baseline", {"num_blocks": 14}),
        ],
        runs=[
            RunEntry(f"{name}-r1", name, 1 + 2 * at, 1, "done", f"runs/{name}.cbt", seconds=3.0)
            for at, name in enumerate(names)
        ],
        workloads={},
        slos={"ttft_p95_ms": 60_000},
    )
    write_experiment(made, folder)
    return made


def test_predictions_of_an_experiment_are_kept_in_its_folder(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    experiment(folder, traces)
    assert whatif(monkeypatch, folder, "--sweep", "num_blocks=3,14,20") == 0
    out = capsys.readouterr().out
    assert f"Wrote {folder / PREDICTIONS_FILE}" in out
    kept = read_predictions(folder)
    assert kept is not None
    assert (kept.base, kept.learned_from) == ("baseline-r1", ["baseline-r1", "num_blocks=14-r1"])
    assert kept.base_run_id == open_trace(traces[0]).header.run_id
    assert [one.changes for one in kept.settings] == [{"num_blocks": 3}, {"num_blocks": 14}, {"num_blocks": 20}]
    dead, tight, _ = kept.settings
    assert "would come to a dead end" in dead.refused and dead.values is None
    measured = summarize(open_trace(traces[1]))
    assert tight.values is not None and tight.values["soft_resets"] == measured.soft_resets > 0
    assert "about 2 in 3 new predictions can be expected to" in out
    assert kept.errors["throughput_generated_tps"] is not None and kept.errors["soft_resets"] == 0


def test_runs_of_an_experiment_that_cannot_be_replayed_are_not_learned_from(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    experiment(folder, traces)
    cut = folder / "runs" / "num_blocks=14.cbt"
    cut.write_bytes(cut.read_bytes()[:-2000])
    assert whatif(monkeypatch, folder, "--set", "num_blocks=20") == 0
    out = capsys.readouterr().out
    assert "Not learned from: num_blocks=14.cbt cannot be replayed, because the trace is not whole" in out
    assert "is not known from one recording" in out


def test_a_copied_run_of_an_experiment_is_not_learned_from_and_is_not_new_on_its_page(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    experiment(folder, [traces[0], traces[0]])
    assert whatif(monkeypatch, folder, "--set", "num_blocks=20") == 0
    assert "num_blocks=14.cbt holds the same run as" in capsys.readouterr().out
    kept, run_id = read_predictions(folder), open_trace(traces[0]).header.run_id
    assert kept is not None and kept.learned_from == ["baseline-r1"] and kept.errors == {}
    assert kept.considered == {"baseline-r1": run_id, "num_blocks=14-r1": run_id}


@pytest.mark.parametrize("what", ["empty", "no baseline", "with more"])
def test_a_folder_without_what_it_takes_is_refused(
    what: str,
    traces: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "study"
    named: list[Path] = [folder]
    if what == "empty":
        folder.mkdir()
    else:
        made = experiment(folder, traces)
        made.runs[0].status = "failed"
        write_experiment(made, folder)
    if what == "with more":
        named.append(traces[0])
    assert whatif(monkeypatch, *named) == 2
    shown = capsys.readouterr()
    said = {"empty": "holds no experiment.json", "no baseline": "nothing to replay", "with more": "folder alone"}
    assert said[what] in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert not (folder / PREDICTIONS_FILE).exists()


def test_settings_predicted_before_are_kept_while_the_recordings_are_the_same(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    experiment(folder, traces)
    assert whatif(monkeypatch, folder, "--sweep", "num_blocks=20,30") == 0
    assert whatif(monkeypatch, folder, "--sweep", "num_blocks=30,40") == 0
    assert "arlier predictions" not in capsys.readouterr().err
    kept = read_predictions(folder)
    assert kept is not None
    assert [one.changes["num_blocks"] for one in kept.settings] == [30, 40, 20]
    (folder / "runs" / "num_blocks=14.cbt").unlink()
    assert whatif(monkeypatch, folder, "--set", "num_blocks=50") == 0
    alone = read_predictions(folder)
    assert alone is not None and alone.learned_from == ["baseline-r1"]
    assert [one.changes["num_blocks"] for one in alone.settings] == [50], "the others were predicted by another model"
    said = capsys.readouterr().err
    assert "Earlier predictions (3) were learned from other recordings" in said and "are replaced" in said
    (folder / PREDICTIONS_FILE).write_text("{")
    assert whatif(monkeypatch, folder, "--set", "num_blocks=50") == 0
    assert read_predictions(folder) == alone
    assert "The earlier predictions are replaced, because they cannot be read" in capsys.readouterr().err


def test_memory_is_told_where_a_device_was_recorded_and_what_does_not_fit_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {path: open_trace(path).header.fingerprint["software.transformers"] for path in H200}
    sample = next((path for path, version in versions.items() if version == VERSION), None)
    if sample is None:  # a version without a recording from a GPU: those of others are refused
        assert whatif(monkeypatch, H200[0], "--set", "num_blocks=99") == 1
        assert "[replay-other-version]" in capsys.readouterr().err
        return
    blocks = open_trace(sample).engines[0].resolved["num_blocks"]
    assert isinstance(blocks, int)
    assert whatif(monkeypatch, sample, "--sweep", f"num_blocks={2 * blocks},{10**7}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    larger, too_large = found["predictions"]
    unit = open_trace(sample).engines[0].predicted_memory["kv_cache"]
    assert larger["memory_bytes"] - found["own_memory_bytes"] >= unit, "twice the blocks are twice the KV cache"
    assert too_large["refused"]["slug"] == "predicted-does-not-fit" and too_large["values"] is None
    assert "would not fit on the device" in too_large["refused"]["text"]
    assert whatif(monkeypatch, sample, "--set", f"num_blocks={2 * blocks}") == 0
    out = capsys.readouterr().out
    assert "memory, GiB" in out and "Memory is the engine's own estimate: for the recorded settings it is" in out
    peak = summarize(open_trace(sample)).peak_memory_bytes
    assert peak is not None and f"{peak / 2**30:.3g} GiB were measured" in out
