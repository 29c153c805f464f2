"""Runs a tiny random model through the hooks of the installed Transformers, on the CPU, and says what holds.

The workload is small and nasty: eight requests for which there is too little KV, so that some are soft reset, then the
same prompt twice, so that the second finds the first one's prefix. It runs once without and once with a recording.

As a program (``python -m cbtrace.recorder.self_check FOLDER``) it leaves its results in ``FOLDER/checks.json``: an
engine that cbtrace does not know may hang or kill its process, and ``cbtrace doctor`` is to survive that.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cbtrace.recorder.hook_points import differences

if TYPE_CHECKING:
    from cbtrace.traces import Trace

RESULTS = "checks.json"
RUN_SECONDS = 60.0
"""How long one run of the workload may take; it takes about one second."""

_BLOCK_TOKENS = 16
_VOCABULARY = 512
_NEW_TOKENS = 48
_PROMPTS = [
    [(7 + 31 * (97 * request + place)) % _VOCABULARY for place in range(12 + 4 * request)] for request in range(8)
]
_REPEATED = [9] * (3 * _BLOCK_TOKENS)

Tokens = dict[str, list[int]]


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked. Without a *vital* one, recordings cannot be trusted; without another, they lack
    fields or are merely not proven."""

    name: str
    passed: bool
    vital: bool
    detail: str
    """One sentence, or a part of one."""


def run(folder: Path) -> list[Check]:
    """Check everything, in the order in which things can go wrong; stop at the first vital check that fails.

    ``folder`` receives a trace. Imports PyTorch and Transformers, and starts no more than one thread at a time.
    """
    checks: list[Check] = []
    for part in (_check_hook_points, _check_engine):
        checks += part(folder)
        if any(check.vital and not check.passed for check in checks):
            break
    return checks


def _check_hook_points(_folder: Path) -> list[Check]:
    try:
        found = list(differences())
    except Exception as error:
        detail = f"continuous batching cannot be imported ({_name(error)})"
        return [Check("import", False, True, detail)]
    missing = [str(one) for one in found if one.found is None]
    changed = [str(one) for one in found if one.found is not None]
    return [
        Check("import", True, True, "continuous batching can be imported"),
        Check("hook points", not missing, False, f"missing: {', '.join(missing)}" if missing else "all found"),
        Check("signatures", not changed, False, f"changed: {'; '.join(changed)}" if changed else "as expected"),
    ]


def _check_engine(folder: Path) -> list[Check]:
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    try:
        model = _model()
        plain = _generate(model)
    except Exception as error:
        detail = f"it does not run a small model, also without cbtrace ({_name(error)})"
        return [Check("engine", False, True, detail)]
    engine = Check("engine", True, True, f"runs a small model: {sum(map(len, plain.values()))} tokens")
    return [engine, *_check_recording(folder / "check.cbt", model, plain)]


def _check_recording(path: Path, model: Any, plain: Tokens) -> list[Check]:
    from cbtrace.recorder.session import record
    from cbtrace.traces import open_trace

    before = _methods()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with record(path, nvml=False):
                recorded = _generate(model)
        trace = open_trace(path)
    except Exception as error:
        return [Check("recording", False, True, f"it broke the run ({_name(error)})")]
    same = recorded == plain and list(recorded) == list(plain)
    return [
        _check_stopped(trace, [str(warning.message) for warning in caught]),
        Check("tokens", same, True, "the same with and without recording" if same else "recording changed them"),
        _check_given_back(before),
        *_check_trace(trace, recorded),
    ]


def _check_given_back(before: dict[str, Any]) -> Check:
    after = _methods()
    kept = [name for name in after if after[name] is not before.get(name)]
    detail = f"not given back: {', '.join(kept)}" if kept else "all given back"
    return Check("methods", not kept, True, detail)


def _check_stopped(trace: Trace, told: list[str]) -> Check:
    closed = trace.footer is not None and trace.footer.reason == "closed"
    stopped = next((text for text in told if "cbtrace stopped" in text), "it was not closed")
    return Check("recording", closed, True, "went to the end" if closed else stopped)


def _check_trace(trace: Trace, outputs: Tokens) -> list[Check]:
    from cbtrace.traces.invariants import check
    from cbtrace.traces.schema import EventKind, Severity

    if not trace.engines:
        return [Check("trace", False, True, "it holds no engine")]
    told = [notice.text for notice in trace.notices if notice.slug == "hook-missing"]
    wrong = [finding.meaning for finding in check(trace) if finding.severity > Severity.INFO]
    counted = Counter(trace.requests.id[request] for request in trace.tokens.request)
    if counted != {name: len(tokens) for name, tokens in outputs.items()}:
        wrong.append("Its tokens are not those that the engine delivered.")
    resets = int((trace.events.kind == EventKind.SOFT_RESET).sum())
    hits = int(trace.requests.prefix_hit.sum())
    return [
        Check("hooks", not told, False, " ".join(told) or "all in place"),
        Check(
            "trace", not wrong, True, " ".join(wrong) or f"its {len(trace.steps.index)} steps agree with the outputs"
        ),
        Check(
            "pressure", resets > 0 and hits > 0, False, f"{resets} soft resets and {hits} tokens of prefix hits seen"
        ),
    ]


def _methods() -> dict[str, Any]:
    """What a recording replaces for the whole process, as it is stored."""
    from cbtrace.recorder.engine.classes import manager_class

    manager = manager_class()
    processor = getattr(sys.modules[manager.__module__], "ContinuousBatchProcessor", object)
    return {f"{owner.__name__}.{name}": value for owner in (manager, processor) for name, value in vars(owner).items()}


# The workload --------------------------------------------------------------------------------------------------------


def _model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=_VOCABULARY,
    )
    return LlamaForCausalLM(config).eval()


def _generate(model: Any) -> Tokens:
    """Run the workload; return the tokens by request id, in the order of completion."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Renamed with the KV cache that came in Transformers 5.20.
    block = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
    sizes = {block: _BLOCK_TOKENS, "num_blocks": 14, "max_batch_tokens": 64, "max_memory_percent": 0.05}
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(
            max_new_tokens=_NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(**sizes),
    )
    # Queued before the start, so that the schedule is the same each time.
    manager.add_requests(_PROMPTS, max_new_tokens=_NEW_TOKENS)
    manager.start()
    deadline = time.monotonic() + RUN_SECONDS
    try:
        outputs = _collect(manager, len(_PROMPTS), deadline)
        for _ in range(2):
            manager.add_request(_REPEATED, max_new_tokens=4)
            outputs |= _collect(manager, 1, deadline)
    finally:
        manager.stop(block=True, timeout=10)
    return outputs


def _collect(manager: Any, count: int, deadline: float) -> Tokens:
    outputs: Tokens = {}
    while len(outputs) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not finish within {RUN_SECONDS:.0f} s")
        if not manager.is_running():
            raise RuntimeError("its generation thread has ended")
        output = manager.get_result(timeout=0.2)
        if output is not None and output.error is not None:
            raise RuntimeError(str(output.error))
        if output is not None and output.is_finished():
            outputs[output.request_id] = list(output.generated_tokens)
    return outputs


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")


def main(folder: Path, end: Callable[[int], Any] = os._exit) -> None:
    """Check, write the results, and end at once: an engine that hangs would keep the process alive."""
    results = run(folder)
    (folder / RESULTS).write_bytes(msgspec.json.encode(results))
    end(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
