"""Which machines of a cluster runs go to, and which run may go to which.

All runs go to machines with one model of GPU, and a *round* (each variant once) stays on one machine, so that a machine
that is a little slower than the others meets all variants alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from cbtrace.recorder.cluster.connection import ClusterError
from cbtrace.recorder.cluster.machines import Machine, is_there, survey
from cbtrace.recorder.experiments.places import Seat
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.facts import NONE
from cbtrace.traces.experiment import Experiment, RunEntry
from cbtrace.traces.schema import Facts

PACKAGES = ("torch", "transformers", "psutil", "pynvml")
"""What recording needs on every machine."""


class Seats:
    """The machines that runs of a plan can go to.

    Args:
        plan: what is run.
        experiment: as it is; it tells where earlier runs went, and under which conditions.
        mix: take machines with GPUs of any model.
        note: told in a sentence which machines are left out.

    Raises:
        ClusterError: there is none.
    """

    def __init__(self, plan: Plan, experiment: Experiment, *, mix: bool, note: Callable[[str], None]) -> None:
        self._plan = plan
        self._conditions = experiment.conditions
        self._mix = mix
        self._note = note
        self._noted: set[str] = set()
        self._unlike: set[str] = set()
        """Machines whose conditions are not those of the runs before."""
        self._gone: set[str] = set()
        """Machines that were lost."""
        self._machines: dict[str, Machine] = {}
        self._homes: dict[int, str] = {}
        """The machine of each round that has begun."""
        self.look()
        self._settle(experiment.runs)

    def look(self) -> None:
        """See which machines there are now.

        Raises:
            ClusterError: there is none that runs can go to.
        """
        gpus, device = self._plan.gpus, self._plan.model.device
        found = survey(PACKAGES, gpus=gpus is not msgspec.UNSET or device.startswith("cuda"), without=self._gone)
        any_model = self._mix or (gpus is msgspec.UNSET and device == "cpu")
        alike, others = (found.machines, []) if any_model else of_one_model(found.machines, self._conditions)
        if not any(self.room(machine) for machine in alike):
            raise ClusterError(
                f"A run needs {gpus} GPUs of one machine, and none of the cluster has so many.",
                slug="cluster-unsuitable",
            )
        for text in (*found.left_out, *others):
            if text not in self._noted:
                self._noted.add(text)
                self._note(text)
        self._machines = {machine.node: machine for machine in alike if machine.node not in self._unlike}

    def gpus(self, machine: Machine) -> int:
        """GPUs that a run gets."""
        if self._plan.gpus is not msgspec.UNSET:
            return self._plan.gpus
        return 1 if self._plan.model.device != "cpu" and machine.gpus else 0

    def room(self, machine: Machine) -> int:
        """How many runs a machine does at once. Without GPUs it is one: they would fight for its cores."""
        gpus = self.gpus(machine)
        return machine.gpus // gpus if gpus else 1

    def cores(self, machine: Machine) -> float:
        """The share of the machine's cores that a run gets."""
        return machine.cpus // self.room(machine)

    def free(self, busy: Iterable[Machine]) -> Iterator[tuple[Machine, Seat]]:
        """Machines with room for a further run, beside those that each of the machines ``busy`` does one of; those that
        should get the next run first."""
        runs, rounds = Counter(machine.node for machine in busy), Counter(self._homes.values())
        able = [machine for machine in self._machines.values() if runs[machine.node] < self.room(machine)]
        able.sort(key=lambda machine: (runs[machine.node], rounds[machine.node]))
        for machine in able:
            yield machine, Seat(machine.name, machine.shown, self._takes(machine))

    def _takes(self, machine: Machine) -> Callable[[RunEntry], bool]:
        return lambda run: self._homes.get(run.repeat, machine.node) == machine.node

    def take(self, machine: Machine, run: RunEntry) -> None:
        """A run goes to a machine, and its round with it."""
        self._homes[run.repeat] = machine.node

    def _settle(self, runs: Sequence[RunEntry]) -> None:
        """Rounds that began on a machine that is still there go on there."""
        by_name = {machine.name: node for node, machine in self._machines.items()}
        for run in runs:
            if run.status == "done" and run.machine in by_name:
                self._homes.setdefault(run.repeat, by_name[run.machine])

    def refuse(self, machine: Machine, reason: str) -> bool:
        """A machine is not like the others: leave it out for good. Returns whether others are left."""
        self._note(f"Machine {machine.shown} is left out: {reason}.")
        self._unlike.add(machine.node)
        self._leave(machine)
        return bool(self._machines)

    def is_gone(self, machine: Machine) -> bool:
        """Whether a machine on which a run was lost is gone itself; perhaps another one has come in its place."""
        if machine.node in self._gone:
            return True
        if is_there(machine):
            return False
        self._note(f"Machine {machine.shown} is lost.")
        self._gone.add(machine.node)
        self._leave(machine)
        try:
            self.look()
        except ClusterError:
            self._machines = {}
        return True

    def _leave(self, machine: Machine) -> None:
        """Give no further run to a machine; its rounds go on elsewhere."""
        self._machines.pop(machine.node, None)
        self._homes = {repeat: node for repeat, node in self._homes.items() if node != machine.node}


def of_one_model(machines: Sequence[Machine], conditions: Facts) -> tuple[list[Machine], list[str]]:
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
    there = model or "machines without one"
    texts = [f"Machine {m.shown} is left out: it has {m.gpu or 'no GPU'}, and the runs go to {there}." for m in others]
    return [machine for machine in machines if machine.gpu == model], texts
