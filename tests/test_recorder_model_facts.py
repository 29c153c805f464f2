"""Facts of real models, settings and managers."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import transformers
from transformers.generation.configuration_utils import CompileConfig

from cbtrace.recorder.facts import NONE, UNSET, digest
from cbtrace.recorder.model_facts import config_facts, generation_facts, model_facts, sampled_weight_hash
from engines import BLOCK, Case, tiny_gemma2, tiny_llama


def test_a_llama_is_described_by_its_own_numbers():
    model = tiny_llama()
    facts = model_facts(model)
    assert facts | {"weights_sample": None} == {
        "architecture": "LlamaForCausalLM",
        "type": "llama",
        "name": None,
        "revision": None,
        "parameters": model.num_parameters(),
        "parameter_bytes": 4 * model.num_parameters(),
        "buffer_bytes": sum(buffer.nbytes for buffer in model.buffers()),
        "dtype": "float32",
        "device": "cpu",
        "quantization": NONE,
        "attention": model.config._attn_implementation,
        "layers": 2,
        "layers.full_attention": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocabulary": 512,
        "sliding_window": NONE,
        "max_positions": model.config.max_position_embeddings,
        "tied_embeddings": False,
        "weights_sample": None,
        "tensor_parallel": 1,
    }
    assert str(facts["weights_sample"]).startswith("blake2b:")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts)) == facts


def test_a_hybrid_model_has_its_layers_counted_by_attention():
    model = tiny_gemma2()
    facts = model_facts(model)
    assert (facts["layers.sliding_attention"], facts["layers.full_attention"]) == (4, 2)
    assert facts["sliding_window"] == 32
    assert facts["tied_embeddings"] is True
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters()), "tied ones count once"


def test_the_attention_is_the_one_that_the_engine_switched_to():
    model = tiny_llama()
    case = Case([])
    model.init_continuous_batching(generation_config=case.generation_config(), continuous_batching_config=case.config())
    expected = "paged|sdpa" if before_sectors() else "sdpa"
    assert model_facts(model)["attention"] == model.config._attn_implementation == expected


def before_sectors() -> bool:
    return int(transformers.__version__.split(".")[1]) < 20


def test_mixed_dtypes_and_quantization_are_told():
    model = tiny_llama()
    model.lm_head.to(torch.bfloat16)
    model.config.quantization_config = {"quant_method": "fp8"}
    facts = model_facts(model)
    assert facts["dtype"] == "bfloat16,float32"
    assert facts["quantization"] == "fp8"
    assert facts["parameter_bytes"] == 4 * model.num_parameters() - 2 * model.lm_head.weight.numel()


@pytest.mark.parametrize(
    ("name", "commit", "stored"),
    [
        ("meta-llama/Llama-3.1-8B", None, True),
        ("gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e", True),
        ("gpt2", None, False),
        ("my-secret-checkpoint", None, False),
        ("/home/alice/models/llama", None, False),
        ("./models/llama", "607a30d783dfa663caf39e06633721c8d4cfcd7e", False),
        ("~/llama", None, False),
        ("C:\\models\\llama", None, False),
        ("a/b/c", None, False),
        ("", None, False),
    ],
)
def test_a_hub_name_is_stored_and_a_folder_is_not(name: str, commit: str | None, stored: bool):
    model = tiny_llama()
    model.config._name_or_path = name
    model.config._commit_hash = commit
    assert model_facts(model)["name"] == (name if stored else None)
    assert model_facts(model)["revision"] == commit
    assert model_facts(model, paths=True)["name"] == (name or None)


def test_a_folder_that_looks_like_a_hub_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny_llama().save_pretrained(tmp_path / "alice" / "private")
    monkeypatch.chdir(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained("alice/private")
    assert model_facts(model)["name"] is None


def weights(model: Any) -> str | None:
    return sampled_weight_hash(model.named_parameters())


def test_the_weight_hash_tells_models_apart_and_the_same_model_together(tmp_path: Path):
    model = tiny_llama()
    assert weights(model) == weights(tiny_llama()) is not None
    model.save_pretrained(tmp_path)
    assert weights(transformers.AutoModelForCausalLM.from_pretrained(tmp_path)) == weights(model)
    assert weights(copy.deepcopy(model).to(torch.bfloat16)) != weights(model)
    torch.manual_seed(1)
    assert weights(transformers.LlamaForCausalLM(model.config)) != weights(model)
    tuned = copy.deepcopy(model)
    with torch.no_grad():
        tuned.model.layers[1].self_attn.q_proj.weight += 1e-3
    assert weights(tuned) != weights(model)


def test_the_weight_hash_reads_a_few_values_only(monkeypatch: pytest.MonkeyPatch):
    """Whole weights must not be moved: at most 16 tensors of 32 values go to the CPU."""
    moved = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.numel()) or real(tensor))
    assert weights(tiny_gemma2())
    assert len(moved) == 16
    assert max(moved) <= 32


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float16, torch.float64, torch.bool])
def test_any_dtype_and_layout_can_be_sampled(dtype: torch.dtype):
    values = torch.arange(12).reshape(3, 4).to(dtype).t()
    changed = values.clone()
    changed.view({1: torch.uint8, 2: torch.int16, 8: torch.int64}[dtype.itemsize])[0, 0] ^= 1
    hashes = {sampled_weight_hash(iter([("w", tensor)])) for tensor in (values, values.clone(), changed)}
    assert len(hashes) == 2
    scalar_hash = sampled_weight_hash(iter([("scale", torch.tensor(1.0)), ("empty", torch.empty(0, 3))]))
    assert scalar_hash is not None


def test_weights_that_are_elsewhere_have_no_hash():
    assert weights(tiny_llama().to("meta")) is None
    facts = model_facts(tiny_llama().to("meta"))
    assert (facts["weights_sample"], facts["device"], facts["parameters"]) == (
        None,
        "meta",
        tiny_llama().num_parameters(),
    )


def test_generation_is_described_as_the_engine_applies_it():
    model = tiny_llama()
    case = Case([], generation={"do_sample": True, "temperature": 0.7, "eos_token_id": [1, 2]}, settings={"seed": 5})
    manager = model.init_continuous_batching(
        generation_config=case.generation_config(), continuous_batching_config=case.config()
    )
    facts = generation_facts(manager.generation_config, manager)
    assert facts["do_sample"] is True
    assert facts["temperature"] == 0.7
    assert facts["eos_token_id"] == "1,2"
    assert facts["max_new_tokens"] == 48
    assert facts["top_k"] == UNSET
    assert facts["seed"] == 5
    processors = [type(processor).__name__ for processor in manager.logit_processor.logits_processor]
    assert processors, "temperature needs one"
    assert facts["logits_processors"] == ",".join(processors)


def test_settings_are_told_as_asked_and_as_settled():
    model = tiny_llama()
    case = Case([])
    asked = case.config()
    requested = config_facts(asked)
    manager = model.init_continuous_batching(
        generation_config=case.generation_config(), continuous_batching_config=asked
    )
    resolved = config_facts(manager.continuous_batching_config)
    assert set(requested) == set(resolved) == set(vars(asked))
    assert requested["use_cuda_graph"] == UNSET
    assert resolved["use_cuda_graph"] == "False,False"
    assert requested["max_requests_per_batch"] == UNSET
    assert resolved["max_requests_per_batch"] == 1024
    assert requested["num_blocks"] == resolved["num_blocks"] == 64
    assert requested.get("page_size", requested.get("block_size")) == BLOCK


def test_a_compile_configuration_is_flattened_and_holds_no_path():
    config = Case([]).config()
    config.varlen_compile_config = CompileConfig(mode="default", options={"trace.dir": "/home/alice", "epilogue": True})
    config.decode_compile_config = CompileConfig(backend=compile_nothing)
    facts = config_facts(config)
    assert facts["varlen_compile_config.mode"] == "default"
    assert facts["varlen_compile_config.fullgraph"] is False
    assert facts["varlen_compile_config.dynamic"] == UNSET
    assert facts["varlen_compile_config.options.epilogue"] is True
    assert facts["varlen_compile_config.options.trace.dir"] == digest("/home/alice")
    assert facts["decode_compile_config.backend"] == "compile_nothing"
    assert "alice" not in str(facts)


def compile_nothing(graph: Any, inputs: Any) -> Any:
    return graph


def test_garbage_is_unknown_and_never_an_error():
    for garbage in (None, object(), SimpleNamespace(config=None), SimpleNamespace(config=SimpleNamespace())):
        facts = model_facts(garbage)
        assert facts.pop("architecture") == type(garbage).__name__
        assert facts.pop("tensor_parallel") == 1  # as the engine has it: what has no device mesh is not split
        assert {name for name, value in facts.items() if value not in (None, NONE)} == set()
        assert set(generation_facts(garbage, garbage).values()) == {None}
    assert config_facts(None) == config_facts(3) == {}
