"""Two equal engines in one process that take strict turns, one of them recorded: drift of the machine cancels.

Both are driven by this thread, as the engine's own loop drives them: step k of one, then step k of the other, in random
order. Engines schedule the same, so step k is the same work on either side. The recording changes sides every round,
so that what is peculiar to one engine (where its memory lies, for one) cancels over a pair of rounds.

A block is a stretch of neighboring steps of a pair of rounds: each of them on and off, on both engines. The ratio is
that of the sums over all blocks, its interval a bootstrap over blocks. Handing in the requests is part of the first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbtrace.recorder import attach
from cbtrace.traces import open_trace

BLOCK = 16
"""Steps of a block, on each of its four sides."""

Clock = Callable[[], int]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter_ns, "CPU time of the thread": time.thread_time_ns}


class Twin:
    """An engine whose loop is driven from outside."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.processor = manager.batch_processor = manager._create_batch_processor()

    def submit(self, inputs: list[list[int]], new_tokens: int) -> bool:
        """Hand in requests; there is work to do."""
        self.manager.add_requests(inputs, max_new_tokens=new_tokens)
        return True

    def step(self) -> bool:
        """One turn of the engine's loop; whether there was anything to do."""
        if not self.processor.prepare_next_batch():
            return False
        self.manager._generation_step()
        self.processor.update_batch()
        return True

    def discard_outputs(self) -> int:
        """Take what was delivered, so that it does not pile up; return how many outputs that were."""
        queue = self.manager.output_router.output_queue
        count = queue.qsize()
        for _ in range(count):
            queue.get_nowait()
        return count


@dataclass
class Turns:
    """What the rounds measured: nanoseconds by clock, as arrays (turns, recorded or not)."""

    rounds: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    footers: list[Any] = field(default_factory=list)
    step_ns: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that were recorded."""
        return sum(footer.steps for footer in self.footers)

    def blocks(self, clock: str) -> NDArray[np.int64]:
        """Sums of blocks, shape (blocks, 2): recorded, not recorded."""
        sums = []
        for first, second in zip(self.rounds[::2], self.rounds[1::2], strict=True):
            both = first[clock] + second[clock]
            sums += [both[at : at + BLOCK].sum(axis=0) for at in range(0, len(both), BLOCK)]
        return np.array(sums)

    def turns(self, clock: str) -> NDArray[np.int64]:
        """Every turn, shape (turns, 2)."""
        return np.concatenate([each[clock] for each in self.rounds])


def take_turns(twins: tuple[Twin, Twin], inputs: list[list[int]], new_tokens: int, rounds: int, folder: Path) -> Turns:
    """Run the workload on both engines at once, an even number of rounds, after one that warms them up."""
    turns, order = Turns(), random.Random(1)
    _round(twins, inputs, new_tokens, order)
    for number in range(rounds + rounds % 2):
        recorded, plain = twins if number % 2 else twins[::-1]
        path = folder / f"turns-{number}.cbt"
        recording = attach(recorded.manager, path, overwrite=True)
        turns.rounds.append(_round((recorded, plain), inputs, new_tokens, order))
        recording.close()
        trace = open_trace(path)
        turns.footers.append(trace.footer)
        turns.step_ns.append(np.diff(trace.steps.ready_ns))
    return turns


def _round(
    twins: tuple[Twin, Twin], inputs: list[list[int]], new_tokens: int, order: random.Random
) -> dict[str, NDArray[np.int64]]:
    measured: list[list[tuple[int, ...]]] = [[], []]
    acts: tuple[Callable[[Twin], bool], ...] = (lambda twin: twin.submit(inputs, new_tokens),)
    going = True
    while going:
        for side in order.sample((0, 1), 2):
            before = [read() for read in CLOCKS.values()]
            going = acts[0](twins[side])
            measured[side].append(tuple(read() - was for read, was in zip(CLOCKS.values(), before, strict=True)))
        acts = (Twin.step,)
    if len({twin.discard_outputs() for twin in twins}) != 1 or len(measured[0]) != len(measured[1]):
        raise SystemExit("the two engines did not do the same")
    both = np.array(measured, dtype=np.int64)
    return {clock: both[:, :, at].T for at, clock in enumerate(CLOCKS)}


def ratio_of_sums(blocks: NDArray[np.int64], rounds: int = 10_000) -> tuple[float, float, float]:
    """Ratio of the sums, and its 95 % bootstrap interval over blocks."""
    source = np.random.default_rng(0)
    picked = source.integers(len(blocks), size=(rounds, len(blocks)))
    sums = blocks[picked].sum(axis=1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(blocks[:, 0].sum() / blocks[:, 1].sum()), float(low), float(high)
