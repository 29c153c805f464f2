"""What differs between the two generations of the engine's cache, behind one small interface."""

from cbtrace.recorder.engine.adapter import KvAdapter, adapter_for

__all__ = ["KvAdapter", "adapter_for"]
