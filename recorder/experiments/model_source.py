"""Where a model comes from, as plans name it. Knows no torch: plans are read on any machine."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from cbtrace.recorder.experiments.spec_error import SpecError

_HUB = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_RANDOM = "random:"


class ModelSource(Struct, forbid_unknown_fields=True, frozen=True):
    """A model: a shape with random weights, a folder, or a repository of the Hugging Face Hub."""

    source: str
    """``random:tiny`` and others of :data:`SHAPES`; a folder, relative to the plan; or ``owner/name`` on the Hub."""
    revision: str | None = None
    """Commit, tag or branch on the Hub: needed there, so that every run loads the same weights."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: str | None = None
    """As Transformers names it (``sdpa``, ``flash_attention_3``); the model's default if not given."""
    device: str = "auto"
    """``auto`` takes the first GPU, or else the CPU."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Of random weights."""
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """CPU threads that PyTorch computes with; its own choice if not given."""


@dataclass(frozen=True)
class Shape:
    """A model that is built from numbers alone: its Transformers classes and its configuration."""

    family: Literal["Llama", "Gemma2"]
    config: dict[str, Any] = field(default_factory=dict)


def _llama(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> Shape:
    return Shape(
        "Llama",
        {
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": hidden < 4096,
        },
    )


SHAPES: dict[str, Shape] = {
    # Weights drawn wide, or all prompts would be answered with one and the same token over and over.
    "tiny": Shape("Llama", _llama(64, 128, 2, 4, 2, 512).config | {"initializer_range": 0.2}),
    "llama-1b": _llama(2048, 8192, 16, 32, 8, 128256),
    "llama-8b": _llama(4096, 14336, 32, 32, 8, 128256),
    "gemma2-tiny": Shape(
        "Gemma2",
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "initializer_range": 0.2,
        },
    ),
}
"""Shapes by name: ``random:`` and the name is the source of a model of random weights, built offline."""


def shape_of(model: ModelSource) -> Shape | None:
    """The shape of a model of random weights; ``None`` for others."""
    return SHAPES[model.source.removeprefix(_RANDOM)] if model.source.startswith(_RANDOM) else None


def folder_of(model: ModelSource, plan_folder: Path) -> Path | None:
    """The folder a model is in; ``None`` if it comes from elsewhere."""
    if model.source.startswith(_RANDOM):
        return None
    folder = plan_folder / Path(model.source).expanduser()
    looks_like_path = model.source.startswith((".", "/", "~")) or not _HUB.fullmatch(model.source)
    return folder if looks_like_path or folder.is_dir() else None


def check_source(model: ModelSource, plan_folder: Path) -> None:
    """Raise :class:`SpecError` when the model cannot be what the plan says."""
    if not _DEVICE.fullmatch(model.device):
        raise SpecError(f"There is no device {model.device!r}: name auto, cuda or cpu.", at=("device",))
    if model.source.startswith(_RANDOM):
        name = model.source.removeprefix(_RANDOM)
        if name not in SHAPES:
            near = difflib.get_close_matches(name, SHAPES, 1)
            remedy = f"did you mean random:{near[0]}?" if near else f"name one of random:{', random:'.join(SHAPES)}."
            raise SpecError(f"There is no model shape {model.source!r}: {remedy}", at=("source",))
        return
    try:
        folder = folder_of(model, plan_folder)
        found = folder is None or (folder / "config.json").is_file()
    except (OSError, RuntimeError):  # A name that is too long, or the home of nobody.
        found = False
    if not found:
        raise SpecError(
            f"There is no model in {model.source[:80]!r}: name a folder with a config.json, relative to the plan, "
            "or a repository as owner/name.",
            at=("source",),
        )
    if folder is None and model.revision is None:
        raise SpecError(
            f"{model.source} comes from the Hub: add its revision, so that every run loads the same weights.",
            at=("source",),
        )


def vocabulary_of(model: ModelSource, plan_folder: Path) -> int | None:
    """How many token ids the model has; ``None`` where only loading it would tell."""
    shape = shape_of(model)
    if shape is not None:
        return int(shape.config["vocab_size"])
    folder = folder_of(model, plan_folder)
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        return int(size) if size else None
    except (OSError, ValueError, AttributeError):
        return None
