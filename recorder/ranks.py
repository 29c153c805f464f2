"""Which rank this process is, and which run it is part of, for runs over several processes.

Each rank records its own file. Their headers carry the rank, the world size and one run id, by which the files of a run
are found together; it comes from ``CBTRACE_RUN_ID`` where that is set, or from what ``torchrun`` tells its workers.
Launchers that tell neither leave ranks with ids of their own: set ``CBTRACE_RUN_ID`` to anything that is new for each
launch and the same on all ranks. Two traces with the same id *and* the same rank are of different launches.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import sys
from typing import Any

_traces = itertools.count()


def rank_of_process() -> tuple[int, int]:
    """Return (rank, world size): from ``torch.distributed`` if it is up, else from the launcher's environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def tensor_parallel_size(model: Any) -> int:
    """Return over how many ranks each layer of the model is split, by the rule the engine has for it (the dimension
    ``tp`` of the model's device mesh, or the whole of a mesh without names): 1 for a model that is not.

    Ranks of one tensor-parallel group have consecutive numbers and one schedule; groups answer requests of their own.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is None:
        return 1
    names = mesh.mesh_dim_names
    if names is None:
        return int(mesh.size())
    return int(mesh["tp"].size()) if "tp" in names else 1


def run_id(world_size: int) -> str:
    """Return an id for the next trace of this process, 16 hexadecimal digits: random, or the same on all ranks.

    Ranks run one program, so the first trace of one rank is of the same run as the first of another, and so on.
    """
    number = next(_traces)
    launch = _launch() if world_size > 1 else None
    if launch is None:
        return secrets.token_hex(8)
    return hashlib.blake2b("\0".join((*launch, str(number))).encode(), digest_size=8).hexdigest()


def _launch() -> tuple[str, ...] | None:
    """What is the same on all ranks of this launch and differs from other launches, if there is anything."""
    environment = os.environ
    if own := environment.get("CBTRACE_RUN_ID"):
        return ("cbtrace", own)
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    if not elastic:
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    launch = ("torchrun", elastic, *(environment.get(name, "") for name in names))
    if elastic == "none" and environment.get("GROUP_WORLD_SIZE") == "1":
        # Older versions name every launch so, on the same port. The workers of one node have one parent.
        return (*launch, str(os.getppid()))
    return launch
