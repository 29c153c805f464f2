"""Warms a process up before its run: what is slow only once (kernels, lazy imports, allocators) is over then."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cbtrace.recorder.experiments.continuous import drive, finish
from cbtrace.recorder.experiments.settings import SettingValue, engine_config
from cbtrace.recorder.experiments.static import run_static
from cbtrace.recorder.experiments.workload import Workload

_PAGE_TOKENS = 256
"""The engine's own choice."""
_LEAST_BLOCKS = 16


def warm_up_engine(model: Any, generation: Any, settings: Mapping[str, SettingValue], workload: Workload) -> None:
    """Send some requests through an engine that nobody records, and take it down again."""
    manager = model.init_continuous_batching(
        generation_config=generation,
        continuous_batching_config=engine_config(warm_up_settings(settings, workload), model.device.type),
    )
    manager.warmup()
    finish(manager, drive(manager, workload, None))
    del manager
    _forget_memory()


def warm_up_settings(settings: Mapping[str, SettingValue], workload: Workload) -> dict[str, SettingValue]:
    """The settings of the run, but with a KV cache that is just large enough, and nothing to offload to.

    An automatic cache takes most of the device's memory, and on a GPU ten seconds to make, clear and capture graphs
    for; a warm-up needs none of that. In a cache that is too small for the workload the run is to fail, not this.
    """
    page = settings.get("page_size")
    tokens = page if isinstance(page, int) else _PAGE_TOKENS
    needed = sum(-(-(len(request.prompt) + request.new_tokens) // tokens) for request in workload.requests)
    kept = {name: value for name, value in settings.items() if not name.startswith("cpu_offload")}
    return {**kept, "num_blocks": max(_LEAST_BLOCKS, 2 * needed)}


def warm_up_static(model: Any, generation: Any, batch_size: int, workload: Workload) -> None:
    """Generate some requests in static batches, into a trace that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm-up.cbt"
        run_static(model, workload, path, generation_config=generation, batch_size=batch_size)
    _forget_memory()


def _forget_memory() -> None:
    """Give back what a warm-up took, so that it does not count as a peak of the run."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
