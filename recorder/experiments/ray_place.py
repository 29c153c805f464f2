"""Runs on the machines of a Ray cluster, several at a time, never two on one GPU.

Ray starts them, gives them GPUs and notices what dies. What is ours is what evidence needs: all runs go to machines
with one model of GPU, and a *round* (each variant once) stays on one machine, so that a machine that is a little slower
than the others meets all variants alike.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from cbtrace.cluster.connection import ClusterError, ray_library
from cbtrace.cluster.machines import Machine, survey
from cbtrace.recorder.experiments.experiment_folder import writing_in
from cbtrace.recorder.experiments.job import Report
from cbtrace.recorder.experiments.places import Begin, Endings, Hear, Seat, Task
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.process import Ending
from cbtrace.recorder.experiments.ray_run import ENDING, LOG, REPORT, TRACE, run_there
from cbtrace.recorder.experiments.shipment import packed
from cbtrace.recorder.facts import NONE
from cbtrace.traces.experiment import Experiment, RunEntry
from cbtrace.traces.schema import Facts

PACKAGES = ("torch", "transformers", "psutil")
"""What recording needs on every machine."""
_POLL_S = 0.25
_GRACE_S = 20.0
"""How long runs that were asked to end may take."""


@dataclass
class _UnderWay:
    """A run on its machine, and what has come of it so far."""

    task: Task
    machine: Machine
    stream: Any
    """Ray's references to its messages."""
    aside: Path
    trace: IO[bytes] | None = None
    ending: Ending | None = None
    phase: str = ""
    log: bytes = field(default=b"", repr=False)


class RayCluster:
    """Where runs are executed on the cluster that this process is connected to.

    Args:
        plan: what is run.
        mix: take machines with GPUs of any model.
        note: told in a sentence which machines are left out, and which are lost.

    """

    def __init__(self, plan: Plan, *, mix: bool, note: Callable[[str], None]) -> None:
        self._limits = msgspec.json.encode(plan.time_limits)
        self._plan = plan
        self._conditions: Facts = {}
        """Those that the experiment began under; empty before that."""
        self._mix = mix
        self._note = note
        self._noted: set[str] = set()
        self._unlike: set[str] = set()
        """Machines whose conditions are not those of the runs before."""
        self._machines: dict[str, Machine] = {}
        self._homes: dict[int, str] = {}
        """The machine of each round that has begun."""
        self._under_way: list[_UnderWay] = []
        self._run_there = ray_library().remote(num_returns="streaming", max_retries=0, max_calls=1)(run_there)

    # Machines --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See which machines there are now."""
        gpus, device = self._plan.gpus, self._plan.model.device
        found = survey(PACKAGES, gpus=gpus is not msgspec.UNSET or device.startswith("cuda"))
        any_model = self._mix or (gpus is msgspec.UNSET and device == "cpu")
        alike, others = (found.machines, []) if any_model else _of_one_model(found.machines, self._conditions)
        if not any(self._room(machine) for machine in alike):
            raise ClusterError(
                f"A run needs {gpus} GPUs of one machine, and none of the cluster has so many.",
                slug="cluster-unsuitable",
            )
        for text in (*found.left_out, *others):
            if text not in self._noted:
                self._noted.add(text)
                self._note(text)
        self._machines = {machine.node: machine for machine in alike if machine.node not in self._unlike}

    def _gpus(self, machine: Machine) -> int:
        """GPUs that a run gets."""
        if self._plan.gpus is not msgspec.UNSET:
            return self._plan.gpus
        return 1 if self._plan.model.device != "cpu" and machine.gpus else 0

    def _room(self, machine: Machine) -> int:
        """How many runs a machine does at once. Without GPUs it is one: they would fight for its cores."""
        gpus = self._gpus(machine)
        return machine.gpus // gpus if gpus else 1

    def _busy(self, node: str) -> int:
        return sum(running.machine.node == node for running in self._under_way)

    # Rounds ----------------------------------------------------------------------------------------------------------

    def _seat(self, machine: Machine) -> Seat:
        def takes(run: RunEntry) -> bool:
            return self._homes.get(run.repeat, machine.node) == machine.node

        return Seat(machine.name, machine.shown, takes)

    def _settle(self, runs: Sequence[RunEntry]) -> None:
        """Rounds that began on a machine that is still there go on there."""
        by_name = {machine.name: node for node, machine in self._machines.items()}
        for run in runs:
            if run.status == "done" and run.machine in by_name:
                self._homes.setdefault(run.repeat, by_name[run.machine])

    # Running ---------------------------------------------------------------------------------------------------------

    def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
        """Execute runs on all machines; see :class:`~cbtrace.recorder.experiments.places.Place`.

        Raises:
            ClusterError: no machine can do it.
        """
        self._conditions = experiment.conditions
        self._look()
        self._settle(experiment.runs)
        try:
            self._fill(begin)
            while self._under_way:
                for running in self._ready():
                    self._listen(running, hear)
                    if running.ending is not None:
                        self._under_way.remove(running)
                        self._close(running)
                        yield running.task, running.ending
                        self._fill(begin)
        finally:
            self._end_all()

    def _fill(self, begin: Begin) -> None:
        """Begin runs where there is room, the idlest machine first, as long as there is one for some machine."""
        while True:
            free = [m for m in self._machines.values() if self._busy(m.node) < self._room(m)]
            rounds = Counter(self._homes.values())
            for machine in sorted(free, key=lambda m: (self._busy(m.node), rounds[m.node])):
                if (task := begin(self._seat(machine))) is not None:
                    self._homes[task.run.repeat] = machine.node
                    self._under_way.append(self._start(task, machine))
                    break
            else:
                return

    def _start(self, task: Task, machine: Machine) -> _UnderWay:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        path, gpus = Path(task.job.trace), self._gpus(machine)
        job, files = packed(task.job)
        job.placement = {"placement.machine": machine.name, "placement.attempt": len(task.run.lost) + 1}
        with writing_in(path.parent):
            path.unlink(missing_ok=True)
        stream = self._run_there.options(
            num_gpus=gpus,
            # The share of the cores that goes with its GPUs. Ray sets OMP_NUM_THREADS to it.
            num_cpus=machine.cpus // (machine.gpus // gpus) if gpus else machine.cpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node, soft=False),
        ).remote(msgspec.json.encode(job), self._limits, files)
        return _UnderWay(task, machine, stream, path.with_name(f".{path.name}.part"))

    def _ready(self) -> list[_UnderWay]:
        """The runs that have something to say."""
        streams = [running.stream for running in self._under_way]
        said, _ = ray_library().wait(streams, num_returns=1, timeout=_POLL_S, fetch_local=False)
        return [running for running in self._under_way if running.stream in said]

    # What comes of a run ---------------------------------------------------------------------------------------------

    def _listen(self, running: _UnderWay, hear: Hear) -> None:
        """Take one message."""
        from ray.exceptions import RayError

        try:
            message = ray_library().get(next(running.stream))
            if not isinstance(message, bytes):
                raise msgspec.MsgspecError("no bytes")
            self._take(running, message[:1], memoryview(message)[1:], hear)
        except (RayError, StopIteration) as error:
            self._lost(running, error)
        except msgspec.MsgspecError as error:
            running.ending = Ending(failure="error", text=f"Its machine sent what no run sends: {str(error)[:100]}.")

    def _take(self, running: _UnderWay, kind: bytes, data: memoryview, hear: Hear) -> None:
        if kind == REPORT:
            report = msgspec.json.decode(data, type=Report)
            running.phase = report.phase or running.phase
            hear(running.task, report)
        elif kind == TRACE:
            with writing_in(running.aside.parent):
                if running.trace is None:
                    running.trace = running.aside.open("wb")
                running.trace.write(data)
        elif kind == LOG:
            running.log = bytes(data)
        elif kind == ENDING:
            self._ended(running, msgspec.json.decode(data, type=Ending))
        else:
            raise msgspec.MsgspecError(f"a message of kind {kind!r}")

    def _ended(self, running: _UnderWay, ending: Ending) -> None:
        path = Path(running.task.job.trace)
        with writing_in(path.parent):
            running.task.log.write_bytes(running.log)
            if running.trace is not None:
                running.trace.close()
                running.aside.replace(path)
        if ending.differing:
            self._unlike.add(running.machine.node)
            self._leave(running.machine)
            ending.elsewhere = bool(self._machines)
            self._note(f"Machine {running.machine.shown} is left out: {'; '.join(ending.differing[:3])}.")
        running.ending = ending

    def _lost(self, running: _UnderWay, error: Exception) -> None:
        """Its machine is gone, or the worker on it: which of the two, Ray tells by and by."""
        alive = {node["NodeID"] for node in ray_library().nodes() if node["Alive"]}
        gone = "Its machine" if running.machine.node not in alive else "The worker it was on"
        text = f"{gone} was lost ({type(error).__name__}) while it was at {running.phase or 'its start'}."
        running.ending = Ending(lost=text, phase=running.phase)
        if running.machine.node not in alive:
            self._note(f"Machine {running.machine.shown} is lost.")
            self._leave(running.machine)
            # Perhaps another one has come in its place.
            with contextlib.suppress(ClusterError):
                self._look()

    def _leave(self, machine: Machine) -> None:
        """Give no further run to a machine; its rounds go on elsewhere."""
        self._machines.pop(machine.node, None)
        self._homes = {repeat: node for repeat, node in self._homes.items() if node != machine.node}

    def _close(self, running: _UnderWay) -> None:
        if running.trace is not None:
            running.trace.close()
        running.aside.unlink(missing_ok=True)

    def _end_all(self) -> None:
        """Ask what is under way to end, and give it the time to do so."""
        from ray.exceptions import RayError

        ray = ray_library()
        for running in self._under_way:
            self._close(running)
            with contextlib.suppress(RayError, ValueError, RuntimeError):
                ray.cancel(running.stream)
        ends = [running.stream.completed() for running in self._under_way]
        if ends:
            with contextlib.suppress(RayError, ValueError, RuntimeError):
                ray.wait(ends, num_returns=len(ends), timeout=_GRACE_S)
        self._under_way.clear()


def _of_one_model(machines: Sequence[Machine], conditions: Facts) -> tuple[list[Machine], list[str]]:
    """The machines whose GPUs are of the model that the experiment began on, or else of which there are most; and in a
    sentence each why others are left out.

    Raises:
        ClusterError: there are none of that model.
    """
    began = conditions.get("hardware.gpu.name")
    began = "" if began == NONE else began
    count: Counter[str] = Counter()
    for machine in machines:
        count[machine.gpu] += machine.gpus or 1
    # One GPU outweighs any number of machines without: a model that may use one is to be measured on it.
    model = max(count, key=lambda name: (name != "", count[name], name))
    if isinstance(began, str) and began in count:
        model = began
    elif isinstance(began, str):
        raise ClusterError(
            f"The experiment began on {began or 'no GPU'}, and the machines of the cluster have "
            f"{', '.join(filter(None, count)) or 'none'}: name another folder, or allow it with --mix.",
            slug="conditions-differ",
        )
    others = [m for m in machines if m.gpu != model]
    texts = [f"Machine {m.shown} is left out: it has {m.gpu or 'no GPU'}, and the runs go to {model}." for m in others]
    return [machine for machine in machines if machine.gpu == model], texts
