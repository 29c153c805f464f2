"""Slack inside KV blocks: room that requests hold and have not written to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbtrace.traces.columns import Requests, Steps
from cbtrace.traces.schema import Engine


@dataclass(frozen=True)
class BlockSlack:
    """Slack over the steps in which it can be told: every active request was in the batch, and no block was shared."""

    mean_bytes: float
    mean_share: float
    """Of what was used."""
    steps: int
    known_steps: int


def block_slack(engine: Engine, steps: Steps, requests: Requests) -> BlockSlack | None:
    """Used bytes less written ones, as a mean over steps; ``None`` when it cannot be told.

    It is told for models with full attention only (:mod:`~cbtrace.site.analysis.kv_groups` has those with windows), and
    for runs without prefix hits and forks: a shared block would be counted once in use and often in tokens.
    """
    groups = engine.kv.groups
    shared = (requests.prefix_hit > 0).any() or (requests.recompute_saved > 0).any() or (requests.parent >= 0).any()
    if shared or len(groups) != 1 or groups[0].window >= 0 or groups[0].tokens_per_block <= 0:
        return None
    known = (steps.members == steps.active) & (steps.kv_used > 0) & steps.members_known & (steps.wasted_tokens == 0)
    if not known.any():
        return None
    token_bytes = groups[0].block_bytes / groups[0].tokens_per_block
    tokens = steps.kv_read + steps.prefill_tokens + steps.decode_tokens + steps.recompute_tokens
    slack = (steps.kv_used - tokens * token_bytes)[known]
    return BlockSlack(
        mean_bytes=float(slack.mean()),
        mean_share=float(np.mean(slack / steps.kv_used[known])),
        steps=len(steps.index),
        known_steps=int(known.sum()),
    )
