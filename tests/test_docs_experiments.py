"""The examples of docs/experiments.md do what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.models import generation_config, load_model
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.settings import engine_config
from cbtrace.recorder.experiments.templates import template_text
from cbtrace.recorder.whatif.recording import recording
from cbtrace.traces import open_trace

DOCS = Path(__file__).parents[1] / "docs" / "experiments.md"
OWN_LOOP, WHOLE = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)

pytestmark = pytest.mark.engine


def test_a_workload_runs_in_a_loop_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = load_model(ModelSource("random:tiny"), tmp_path)
    names: dict[str, Any] = {
        "model": model,
        "generation_config": generation_config(Generation(), model),
        "continuous_batching_config": engine_config({"page_size": 16, "num_blocks": 64}, "cpu"),
    }
    exec(OWN_LOOP, names)
    assert capsys.readouterr().out == "True True\n"
    assert len(open_trace("continuous.cbt").requests.id) == len(open_trace("static.cbt").requests.id) == 32
    assert open_trace("continuous.cbt").header.name == "64 blocks"


def test_an_experiment_runs_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text, _, _ = template_text("quick").replace("repeats = 3", "repeats = 1").partition("# Stage 1")
    (tmp_path / "plan.toml").write_text(text)
    exec(WHOLE, {})
    assert capsys.readouterr().out == "[('baseline', 'done')]\n"
    (trace,) = Path("experiment").rglob("*.cbt")
    assert recording(open_trace(trace)).workload, "cbtrace whatif takes the runs of the shortest plan"


def test_every_key_of_a_plan_is_described() -> None:
    from cbtrace.recorder.experiments import plan_spec as plan

    text = DOCS.read_text(encoding="utf-8")
    kinds = (plan.Plan, plan.ModelSource, plan.Generation, plan.Variant, plan.TimeLimits, plan.Slos)
    keys = {name for kind in kinds for name in kind.__struct_encode_fields__} - {"format"}
    missing = {key for key in keys if not re.search(rf"[`{{\[ ]{key}[`\].]", text)}
    assert not missing
