"""Runs on the machines of a Ray cluster, several at a time, never two on one GPU.

Ray starts them, gives them GPUs and notices what dies. Which run goes where is ours: :mod:`.ray_seats`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cbtrace.recorder.cluster.connection import ray_library
from cbtrace.recorder.cluster.machines import Machine
from cbtrace.recorder.experiments.job import Report
from cbtrace.recorder.experiments.places import Begin, Endings, Hear, Task
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.process import Ending
from cbtrace.recorder.experiments.ray_incoming import Incoming
from cbtrace.recorder.experiments.ray_run import run_there
from cbtrace.recorder.experiments.ray_seats import Seats
from cbtrace.recorder.experiments.shipment import packed
from cbtrace.traces.experiment import Experiment

_POLL_S = 0.25
_GRACE_S = 20.0
"""How long runs that were asked to end may take."""


@dataclass(frozen=True, eq=False)
class _UnderWay:
    """A run on its machine."""

    task: Task
    machine: Machine
    stream: Any
    """Ray's references to its messages."""
    incoming: Incoming


class RayCluster:
    """Where runs are executed on the cluster that this process is connected to.

    Args:
        plan: what is run.
        mix: take machines with GPUs of any model.
        note: told in a sentence which machines are left out, and which are lost.
    """

    def __init__(self, plan: Plan, *, mix: bool, note: Callable[[str], None]) -> None:
        self._plan = plan
        self._mix = mix
        self._note = note
        self._limits = msgspec.json.encode(plan.time_limits)
        self._under_way: list[_UnderWay] = []
        self._run_there = ray_library().remote(num_returns="streaming", max_retries=0, max_calls=1)(run_there)

    def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
        """Execute runs on all machines; see :class:`~cbtrace.recorder.experiments.places.Place`.

        Raises:
            ClusterError: no machine can do it.
        """
        seats = Seats(self._plan, experiment, mix=self._mix, note=self._note)
        try:
            self._fill(seats, begin)
            while self._under_way:
                for running in self._ready():
                    said = self._listen(running, seats)
                    if isinstance(said, Report):
                        hear(running.task, said)
                    if isinstance(said, Ending):
                        self._under_way.remove(running)
                        running.incoming.close()
                        yield running.task, said
                    # An ending makes room; conditions that have become known let others begin.
                    if isinstance(said, Ending) or (said is not None and said.conditions is not None):
                        self._fill(seats, begin)
        finally:
            self._end_all()

    def _fill(self, seats: Seats, begin: Begin) -> None:
        """Begin runs as long as some machine has room for one that may go there."""
        while True:
            for machine, seat in seats.free(running.machine for running in self._under_way):
                if (task := begin(seat)) is not None:
                    seats.take(machine, task.run)
                    self._under_way.append(self._start(task, machine, seats))
                    break
            else:
                return

    def _start(self, task: Task, machine: Machine, seats: Seats) -> _UnderWay:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        incoming = Incoming(task)
        job, files = packed(task.job)
        job.placement = {"placement.machine": machine.name, "placement.attempt": len(task.run.lost) + 1}
        there = self._run_there.options(
            num_gpus=seats.gpus(machine),
            num_cpus=seats.cores(machine),  # Ray sets OMP_NUM_THREADS to it.
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False),
        )
        return _UnderWay(task, machine, there.remote(msgspec.json.encode(job), self._limits, files), incoming)

    def _ready(self) -> list[_UnderWay]:
        """The runs that have something to say."""
        streams = [running.stream for running in self._under_way]
        said, _ = ray_library().wait(streams, num_returns=1, timeout=_POLL_S, fetch_local=False)
        return [running for running in self._under_way if running.stream in said]

    def _listen(self, running: _UnderWay, seats: Seats) -> Report | Ending | None:
        """Take one message of a run."""
        from ray.exceptions import RayError

        try:
            said = running.incoming.take(ray_library().get(next(running.stream)))
        except (RayError, StopIteration) as error:
            return self._lost(running, seats, error)
        except msgspec.MsgspecError as error:
            ray_library().cancel(running.stream)
            return Ending(failure="error", text=f"Its machine sent what no run sends: {str(error)[:100]}.")
        if isinstance(said, Ending) and said.differing:
            said.elsewhere = seats.refuse(running.machine, "; ".join(said.differing[:3]))
        return said

    def _lost(self, running: _UnderWay, seats: Seats, error: Exception) -> Ending:
        """Its machine is gone, or only the worker on it."""
        gone = "Its machine" if seats.is_gone(running.machine) else "The worker it was on"
        phase = running.incoming.phase
        return Ending(
            lost=f"{gone} was lost ({type(error).__name__}) while it was at {phase or 'its start'}.", phase=phase
        )

    def _end_all(self) -> None:
        """Ask what is under way to end, and give it the time to do so."""
        from ray.exceptions import RayError

        ray = ray_library()
        with contextlib.suppress(RayError, ValueError, RuntimeError):
            for running in self._under_way:
                running.incoming.close()
                ray.cancel(running.stream)
            if ends := [running.stream.completed() for running in self._under_way]:
                ray.wait(ends, num_returns=len(ends), timeout=_GRACE_S)
        self._under_way.clear()
