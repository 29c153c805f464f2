"""Which rank this process is, for runs over several processes."""

from __future__ import annotations

import os
import sys


def rank_of_process() -> tuple[int, int]:
    """Return (rank, world size): from ``torch.distributed`` if it is up, else from the launcher's environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
