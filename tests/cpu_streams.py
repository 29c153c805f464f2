"""Lets the engine batch asynchronously on a CPU: its own code and its own order of calls, on streams that do the work
at once. What a GPU adds, work that is not done yet when the host asks, is not there; the order of the host's is."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.generation.continuous_batching import input_outputs


class Stream:
    """Stands for a stream and for an event."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record_event(self, _event: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def synchronize(self) -> None: ...


class TorchWithStreams:
    """PyTorch, as if it had a device with streams but for where tensors lie."""

    Event = Stream
    cuda = SimpleNamespace(is_available=lambda: True, Stream=Stream, Event=Stream, stream=contextlib.nullcontext)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        """As PyTorch's, in memory that is not pinned."""
        return torch.empty(*args, **kwargs)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``use_async_batching=True`` work on a CPU."""
    monkeypatch.setattr(input_outputs, "torch", TorchWithStreams())
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    asynchronous = input_outputs.ContinuousBatchingAsyncIOs
    if hasattr(asynchronous, "_supported_device_types"):  # since 5.20
        from transformers.generation.continuous_batching import continuous_api, model_runner, offloading_manager

        monkeypatch.setattr(asynchronous, "_supported_device_types", ("cpu",))
        monkeypatch.setattr(input_outputs, "create_device_stream", Stream)
        for module in (input_outputs, continuous_api, model_runner, offloading_manager):
            monkeypatch.setattr(module, "stream_context", lambda _stream: contextlib.nullcontext())
