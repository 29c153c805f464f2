"""Models in folders: what is asked of them, and what is said when they do not have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cbtrace.recorder.experiments import Fixed, PromptsSpec, build_workload
from cbtrace.recorder.experiments.model_source import ModelSource
from cbtrace.recorder.experiments.models import load_encoder, vocabulary_size
from cbtrace.recorder.experiments.spec_error import SpecError


@pytest.fixture
def model(tmp_path: Path) -> ModelSource:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 40}))
    return ModelSource(source="./model")


def prompts(folder: Path, line: str, model: ModelSource) -> list[list[int]]:
    (folder / "prompts.jsonl").write_text(line)
    spec = PromptsSpec(file="prompts.jsonl", new_tokens=Fixed(tokens=4))
    workload = build_workload(spec, seed=0, vocabulary=40, folder=folder, encode=load_encoder(model, folder))
    return [request.prompt for request in workload.requests]


def test_prompts_of_token_ids_need_no_tokenizer(tmp_path: Path, model: ModelSource) -> None:
    assert prompts(tmp_path, '{"tokens": [3, 1]}', model) == [[3, 1]]


def test_prompts_of_text_need_one(tmp_path: Path, model: ModelSource) -> None:
    with pytest.raises(SpecError, match="no tokenizer of") as caught:
        prompts(tmp_path, '{"text": "hello"}', model)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_none_is_named(tmp_path: Path, model: ModelSource) -> None:
    assert vocabulary_size(model, tmp_path) == 40
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(SpecError, match="cannot be loaded: check its name"):
        vocabulary_size(model, tmp_path)
