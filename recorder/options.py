"""What a recording keeps and how it is told to go about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Settings of one recording."""

    token_ids: bool = False
    """Keep generated token ids (default: lengths and hashes only)."""
    paths: bool = False
    """Keep file paths in the fingerprint."""
    nvml: bool = True
    """Sample the GPU through NVML."""
    gpu_time: bool = True
    """Time each step on the GPU with two events."""
    keep_user_peaks: bool = False
    """Leave the allocator's peak statistics to the user's own code."""

    def stored(self) -> list[str]:
        """Return what is stored beyond lengths, ids and hashes."""
        return [name for name, kept in (("token_ids", self.token_ids), ("paths", self.paths)) if kept]

    def facts(self) -> dict[str, bool]:
        """Return the settings that bear on what is measured, for the fingerprint."""
        return {name: getattr(self, name) for name in ("nvml", "gpu_time", "keep_user_peaks", "token_ids")}
