"""Loads a model as a plan names it, and makes its generation settings. Needs torch and Transformers when called."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from cbtrace.recorder.errors import RecordError
from cbtrace.recorder.experiments.model_source import ModelSource, Shape, folder_of, shape_of, vocabulary_of
from cbtrace.recorder.experiments.plan_spec import Generation
from cbtrace.recorder.experiments.prompts import Encode
from cbtrace.recorder.experiments.spec_error import SpecError
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity

NO_TOKEN = -1
"""An end token that no model ever generates."""


def device_of(model: ModelSource) -> str:
    """The device a model goes to: ``auto`` is the first GPU, or else the CPU."""
    import torch

    if model.device != "auto":
        return model.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(model: ModelSource, plan_folder: Path) -> Any:
    """Load or build the model, ready to generate, on its device.

    Raises:
        RecordError: the device or the attention is not to be had here.
    """
    import torch

    device, dtype = device_of(model), getattr(torch, model.dtype)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RecordError("The plan wants a CUDA device and there is none: say device = 'auto'.", slug="no-device")
    shape = shape_of(model)
    if shape is not None:
        loaded = _random_model(shape, model.seed, device, dtype)
        if model.attention is not None:
            loaded.set_attn_implementation(model.attention)
    else:
        loaded = _pretrained(model, plan_folder, dtype).to(device)
    return loaded.eval()


def _random_model(shape: Shape, seed: int, device: str, dtype: Any) -> Any:
    import torch
    import transformers

    config = getattr(transformers, f"{shape.family}Config")(**shape.config)
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    # Built in place and in its own type: a large model would not fit twice.
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return getattr(transformers, f"{shape.family}ForCausalLM")(config)
    finally:
        torch.set_default_dtype(before)


def _pretrained(model: ModelSource, plan_folder: Path, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype}
    if model.attention is not None:
        options["attn_implementation"] = model.attention
    folder = folder_of(model, plan_folder)
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, **options)
    return AutoModelForCausalLM.from_pretrained(model.source, revision=model.revision, **options)


def vocabulary_size(model: ModelSource, plan_folder: Path) -> int:
    """How many token ids the model has, without loading its weights.

    Raises:
        SpecError: there is no configuration that tells.
    """
    known = vocabulary_of(model, plan_folder)
    if known is not None:
        return known
    from transformers import AutoConfig

    folder = folder_of(model, plan_folder)
    try:
        if folder is not None:
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(model.source, revision=model.revision)
        return int(config.get_text_config().vocab_size)
    except (OSError, ValueError, AttributeError) as error:
        raise SpecError(
            f"The configuration of {model.source} cannot be loaded: check its name, its revision and the network.",
            at=("model", "source"),
        ) from error


def load_encoder(model: ModelSource, plan_folder: Path) -> Encode | None:
    """The model's tokenizer as a function from text to token ids; ``None`` for models that have none.

    It is loaded for the first text: a model without one can be sent prompts of token ids. The function raises
    :class:`SpecError` when it cannot be loaded.
    """
    if shape_of(model) is not None:
        return None

    @cache
    def tokenizer() -> Any:
        from transformers import AutoTokenizer

        folder = folder_of(model, plan_folder)
        try:
            if folder is not None:
                return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            return AutoTokenizer.from_pretrained(model.source, revision=model.revision)
        except (OSError, ValueError, ImportError) as error:
            raise SpecError(
                f"A prompt is a text, and no tokenizer of {model.source} can be loaded: "
                "use a model that has one, or write token ids.",
                at=("file",),
            ) from error

    return lambda text: [int(token) for token in tokenizer()(text)["input_ids"]]


def generation_config(generation: Generation, model: Any) -> Any:
    """The generation settings of a run, the same for static and for continuous batching."""
    from transformers import GenerationConfig

    optional = {"temperature": generation.temperature, "top_k": generation.top_k, "top_p": generation.top_p}
    return GenerationConfig(
        do_sample=generation.do_sample,
        eos_token_id=_end_token(generation, model),
        pad_token_id=0,
        **{name: value for name, value in optional.items() if value is not None},
    )


def _end_token(generation: Generation, model: Any) -> Any:
    if generation.end_token == "none":
        return NO_TOKEN
    if generation.end_token == "model":
        own = getattr(model.generation_config, "eos_token_id", None)
        own = model.config.get_text_config().eos_token_id if own is None else own
        return NO_TOKEN if own is None else own
    return generation.end_token


declare(
    "no-device",
    Severity.BROKEN,
    "A plan names a device that this machine does not have.",
    "Let the plan choose with `device = 'auto'`, or run it where the device is.",
)
