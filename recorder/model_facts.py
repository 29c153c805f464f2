"""The model, its generation settings and the engine's settings as facts. Keys have no prefix of their own.

``None`` is unknown and ``"unset"`` a setting that was left to its default: the engine decides, and the resolved
settings say what. Read the model after its engine exists, since the engine may switch the attention implementation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cbtrace.recorder.facts import NONE, UNSET, collect, digest, scalar
from cbtrace.recorder.ranks import tensor_parallel_size
from cbtrace.traces.schema import Facts

_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_NAME_WITHOUT_OWNER = re.compile(r"[\w][\w.-]*")
_SAMPLED_TENSORS = 16
_SAMPLED_VALUES = 32
_GENERATION_SETTINGS = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "max_new_tokens",
    "max_length",
    "num_return_sequences",
    "num_beams",
    "eos_token_id",
    "pad_token_id",
)


def model_facts(model: Any, *, paths: bool = False) -> Facts:
    """What the model is. Sizes are bytes and counts are of this process (a rank's shard under tensor parallelism, over
    ``tensor_parallel`` ranks); shared (tied) parameters count once, packed ones (4 bits) as they are stored. Never
    raises."""
    config = _text_config(model)
    readers: dict[str, Callable[[], Any]] = {
        "architecture": lambda: type(model).__name__,
        "type": lambda: model.config.model_type,
        "name": lambda: _name(model.config, paths),
        "revision": lambda: getattr(model.config, "_commit_hash", None),
        "parameters": lambda: sum(_own_part(parameter).numel() for parameter in model.parameters()),
        "parameter_bytes": lambda: sum(_size(parameter) for parameter in model.parameters()),
        "buffer_bytes": lambda: sum(_size(buffer) for buffer in model.buffers()),
        "dtype": lambda: {_plain(parameter.dtype) for parameter in model.parameters()},
        "device": lambda: {str(parameter.device) for parameter in model.parameters()},
        "quantization": lambda: _quantization(model),
        "attention": lambda: config._attn_implementation,
        "layers": lambda: config.num_hidden_layers,
        "hidden_size": lambda: config.hidden_size,
        "intermediate_size": lambda: config.intermediate_size,
        "heads": lambda: config.num_attention_heads,
        "kv_heads": lambda: getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "head_dim": lambda: getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "vocabulary": lambda: config.vocab_size,
        "sliding_window": lambda: _or_none(config.sliding_window) if hasattr(config, "sliding_window") else NONE,
        "max_positions": lambda: config.max_position_embeddings,
        "tied_embeddings": lambda: config.tie_word_embeddings,
        "weights_sample": lambda: sampled_weight_hash(model.named_parameters()),
        "tensor_parallel": lambda: tensor_parallel_size(model),
    }
    facts = collect(readers)
    for kind, layers in _layers_by_attention(config).items():
        facts[f"layers.{kind}"] = layers
    return facts


def generation_facts(generation_config: Any, manager: Any) -> Facts:
    """How tokens are chosen and when a request ends, as the engine applies it. Never raises.

    ``logits_processors`` are the classes that the engine kept, in order. The hash of a chat template is not among
    them: the engine gets token ids and never sees the template.
    """
    readers: dict[str, Callable[[], Any]] = {
        "seed": lambda: _setting(manager.continuous_batching_config.seed),
        "logits_processors": lambda: [type(p).__name__ for p in _processors(manager)] or NONE,
    }
    return generation_setting_facts(generation_config) | collect(readers)


def generation_setting_facts(generation_config: Any) -> Facts:
    """The part of :func:`generation_facts` that does without an engine. Never raises."""
    return collect({name: partial(_setting_of, generation_config, name) for name in _GENERATION_SETTINGS})


def config_facts(cb_config: Any) -> Facts:
    """Every field of a ``ContinuousBatchingConfig``: a pair as ``varlen,decode``, the fields of a nested compile
    configuration under dotted names, a text that could be a path as a hash. Empty for anything else. Never raises."""
    try:
        return dict(_flat("", _fields(cb_config)))
    except Exception:
        return {}


def sampled_weight_hash(parameters: Iterator[tuple[str, Any]]) -> str | None:
    """A hash that tells two sets of weights apart without reading them whole: 32 values, evenly spaced, of each of 16
    evenly spaced parameters, with all names, shapes and dtypes. Equal hashes make equal weights likely, not certain: a
    change to the parameters between goes unseen. ``None`` when a sampled parameter has no values here (meta device)."""
    named = list(parameters)
    hashed = hashlib.blake2b(digest_size=16)
    for name, parameter in named:
        hashed.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype};".encode())
    for place in _spread(len(named), _SAMPLED_TENSORS):
        values = _sampled_values(named[place][1])
        if values is None:
            return None
        hashed.update(values)
    return "blake2b:" + hashed.hexdigest()


def _spread(length: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced places of ``length``, both ends included."""
    count = min(length, most)
    return [place * (length - 1) // max(count - 1, 1) for place in range(count)]


def _sampled_values(parameter: Any) -> bytes | None:
    """The bits of a few values, picked on the device so that only they are copied."""
    import numpy
    import torch

    tensor = _own_part(parameter.detach())
    if tensor.is_meta:
        return None
    # As integers of the same width: not every device can index every dtype.
    bits = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    if bits.dim() == 0:
        bits = bits.reshape(1)
    flat = numpy.array(_spread(bits.numel(), _SAMPLED_VALUES), dtype=numpy.int64)
    places = numpy.unravel_index(flat, tuple(bits.shape))
    picked = bits[tuple(torch.from_numpy(axis) for axis in places)]
    return bytes(picked.cpu().numpy().tobytes())


def _text_config(model: Any) -> Any:
    try:
        return model.config.get_text_config()
    except Exception:
        return getattr(model, "config", None)


def _own_part(tensor: Any) -> Any:
    """What this process holds of a tensor that is split over several."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _size(tensor: Any) -> int:
    return int(_own_part(tensor).numel()) * int(tensor.element_size())


def _plain(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _name(config: Any, paths: bool) -> str | None:
    """The model's name on the hub. A folder's name is a path, and is stored only if asked for."""
    name = str(getattr(config, "_name_or_path", "") or "")
    if paths or not name:
        return name or None
    # Without an owner, any word looks like a hub name; one that was downloaded has its commit.
    known = _HUB_NAME.fullmatch(name) or (
        _HUB_NAME_WITHOUT_OWNER.fullmatch(name) and getattr(config, "_commit_hash", None)
    )
    return name if known and not Path(name).exists() else None


def _quantization(model: Any) -> str:
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        return NONE
    method = config.get("quant_method") if isinstance(config, Mapping) else config.quant_method
    return str(scalar(method))


def _layers_by_attention(config: Any) -> dict[str, int]:
    """Layers by type of attention, as the engine groups them: by ``layer_types``, or all alike."""
    try:
        kinds = getattr(config, "layer_types", None)
        if kinds is None:
            sliding = getattr(config, "sliding_window", None) is not None
            kinds = ["sliding_attention" if sliding else "full_attention"] * config.num_hidden_layers
        return {str(kind): list(kinds).count(kind) for kind in dict.fromkeys(kinds)}
    except Exception:
        return {}


def _processors(manager: Any) -> list[Any]:
    return list(manager.logit_processor.logits_processor)


def _or_none(value: Any) -> Any:
    return NONE if value is None else value


def _setting_of(settings: Any, name: str) -> Any:
    return _setting(getattr(settings, name))


def _setting(value: Any) -> Any:
    return UNSET if value is None else value


def _fields(record: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if not name.startswith("_")}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``value`` as scalars under dotted names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _fields(value)
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), member)
    elif isinstance(value, str):
        yield name, digest(value) if "/" in value or "\\" in value else value[:200]
    else:
        yield name, scalar(_setting(getattr(value, "__qualname__", value)))
