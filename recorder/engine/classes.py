"""The engine's own classes, as they are in the installed Transformers."""

from __future__ import annotations

import sys
from typing import Any


def manager_class() -> type:
    """Import the engine and return its manager class.

    Raises:
        ImportError: Transformers is not installed, or has no continuous batching.
    """
    from transformers.generation.continuous_batching import ContinuousBatchingManager

    found: type = ContinuousBatchingManager
    return found


def processor_class(manager: type) -> type | None:
    """Return the class of processors that a manager class makes; None when there is none of that name beside it."""
    found = vars(sys.modules[manager.__module__]).get("ContinuousBatchProcessor")
    return found if isinstance(found, type) else None


def is_processor(candidate: Any) -> bool:
    """Whether this is an engine that can be recorded; tests also put mocks in its place."""
    expected = processor_class(manager_class())
    return candidate is not None and (expected is None or issubclass(type(candidate), expected))
