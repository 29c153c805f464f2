"""The same workloads on every version: equal where the engines are equal, and different as the documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cbtrace.recorder.supported import TESTED
from engine_versions import DOCUMENT, GENERATIONS, SCENARIOS, Scenario, table
from engines import recorded, tiny_gemma2, tiny_llama
from test_recorder_scenarios import SECTORS, assert_sound


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {"llama": tiny_llama(), "gemma2": tiny_gemma2()}


@pytest.mark.engine
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_figures_are_those_of_the_version(scenario: Scenario, models: dict[str, Any], tmp_path: Path) -> None:
    trace, outputs = recorded(scenario.case, models[scenario.model], tmp_path / "run.cbt")
    assert_sound(trace, outputs)
    found = {name: read(trace) for name, read in scenario.figures}
    assert found == {name: values[SECTORS and len(values) > 1] for (name, _), values in scenario.figures.items()}


def test_every_difference_has_a_reason() -> None:
    for scenario in SCENARIOS:
        differs = any(len(values) > 1 for values in scenario.figures.values())
        assert differs == bool(scenario.reason)
        assert all(len(set(values)) == len(values) for values in scenario.figures.values())


def test_the_page_shows_these_figures_and_names_the_tested_versions() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    assert page.endswith(table()), "write it anew: PYTHONPATH=tests python -m engine_versions"
    assert " and ".join(GENERATIONS).split(" and ") == list(TESTED)
    assert f"{', '.join(TESTED[:-1])} and {TESTED[-1]}" in page
