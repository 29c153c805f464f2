"""The table at the end of ``cbtrace run``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.commands.experiment_table import experiment_table
from cbtrace.recorder.experiments import Workload, run_static
from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.models import generation_config, load_model
from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.take_up import new_experiment
from cbtrace.recorder.experiments.workload import PlannedRequest
from cbtrace.traces.experiment import Correctness

PLAN = """
name = "two kinds"
repeats = 1
[model]
source = "random:tiny"
[workload]
kind = "synthetic"
requests = 3
prompt_tokens = { kind = "fixed", tokens = 4 }
new_tokens = { kind = "fixed", tokens = 2 }
[[variants]]
stage = 1
kind = "static"
batch_size = 3
"""


@pytest.mark.engine
def test_the_table_counts_padding_and_says_why_numbers_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(ModelSource("random:tiny"), tmp_path)
    lengths = [(3, 4), (10, 2), (7, 1)]
    requests = tuple(PlannedRequest(f"r{n}", [1] * prompt, new, 0) for n, (prompt, new) in enumerate(lengths))
    config = generation_config(Generation(), model)
    run_static(model, Workload("w", requests, True, {}), tmp_path / "s.cbt", generation_config=config, batch_size=3)
    experiment = new_experiment(parse_plan(PLAN, tmp_path))
    baseline, static = experiment.runs
    baseline.status, baseline.failure, baseline.phase, baseline.text = "failed", "oom", "prefill", "[no] memory."
    static.status, static.trace, static.correctness = "done", "s.cbt", Correctness(3, 3, {})
    monkeypatch.setenv("COLUMNS", "80")
    experiment_table(experiment, tmp_path)
    shown = capsys.readouterr().out
    [row] = [line.split() for line in shown.splitlines() if line.split()[:1] == ["static"]]
    # A batch of 3 rows: 30 tokens for prompts of 20, then 3 times 3 for the 4 that are still wanted.
    assert row[1] == "1/1" and row[6] == "38.5" == f"{100 * (39 - 24) / 39:.1f}"
    assert row[7:] == ["3/3", "-"]
    assert "baseline: oom in prefill. [no] memory." in shown
    assert max(map(len, shown.splitlines())) <= 80
