"""The machines of a cluster: what each has, and whether it can do our work at all. Each is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from cbtrace.recorder.cluster.connection import ClusterError, ray_library
from cbtrace.traces.errors import declare
from cbtrace.traces.schema import Severity

_ANSWER_S = 60.0
"""How long a machine may take to start a Python and answer."""


@dataclass(frozen=True)
class Machine:
    """One machine that can do our work."""

    node: str
    """Ray's id of it: another one each time that Ray is started there."""
    name: str
    """How traces and ``experiment.json`` call it: a digest, the same from one start to the next."""
    shown: str
    """Its address, for people."""
    cpus: float
    gpus: int
    gpu: str
    """The model of its GPUs; empty when it has none."""


@dataclass(frozen=True)
class Survey:
    """Which machines can be used, and in a sentence each why others cannot."""

    machines: list[Machine]
    left_out: list[str]


class _Answer(msgspec.Struct):
    host: str
    cbtrace: str | None
    missing: list[str]
    gpus: list[str]


def survey(packages: Sequence[str] = (), *, gpus: bool = False, without: Collection[str] = ()) -> Survey:
    """Ask every machine that is alive. One must be connected.

    Args:
        packages: modules that must be there to be imported.
        gpus: ask only machines that have some.
        without: nodes that are not asked, because they are known to be gone.

    Raises:
        ClusterError: not one machine can be used.
    """
    nodes = [node for node in ray_library().nodes() if node["Alive"] and node["NodeID"] not in without]
    able = [node for node in nodes if not gpus or node["Resources"].get("GPU", 0) >= 1]
    if not able:
        raise ClusterError("No machine of the cluster has a GPU that Ray knows of.", slug="cluster-unsuitable")
    found, left_out = [], []
    for node, answer in zip(able, _ask(able, packages), strict=True):
        reason = answer if isinstance(answer, str) else _unfit(answer)
        if reason:
            left_out.append(f"Machine {node['NodeManagerAddress']} is left out: {reason}")
        elif isinstance(answer, _Answer):
            found.append(_machine(node, answer))
    if not found:
        raise ClusterError(left_out[0].replace("is left out", "cannot be used"), slug="cluster-unsuitable")
    return Survey(found, left_out)


def is_there(machine: Machine) -> bool:
    """Whether a machine still answers. Ray itself takes its time to notice that one is gone."""
    return not isinstance(_ask([{"NodeID": machine.node}], ())[0], str)


def _ask(nodes: Sequence[Mapping[str, Any]], packages: Sequence[str]) -> list[_Answer | str]:
    """What each machine answers, or why it does not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = ray_library()
    ask = ray.remote(num_cpus=0, max_retries=1)(_question())
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(packages)
        for node in nodes
    ]
    ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
    answers: list[_Answer | str] = []
    for answer in asked:
        try:
            answers.append(msgspec.json.decode(ray.get(answer, timeout=0), type=_Answer))
        except Exception as error:
            answers.append(f"it does not answer as it should ({type(error).__name__}).")
    return answers


def _question() -> Any:
    """The function that a machine is asked with. Defined here, it travels by value: it works where cbtrace is not."""

    def answer(packages: Sequence[str]) -> bytes:
        import importlib.metadata
        import importlib.util
        import platform

        try:
            found = importlib.metadata.version("cbtrace")
        except importlib.metadata.PackageNotFoundError:
            found = None
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        gpus = []
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
            gpus = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        except Exception:  # No library, no driver, no GPU: Ray's own word counts.
            gpus = []
        return json.dumps({"host": platform.node(), "cbtrace": found, "missing": missing, "gpus": gpus}).encode()

    return answer


def _unfit(answer: _Answer) -> str:
    """Why a machine cannot be used; empty when it can."""
    here = version("cbtrace")
    if answer.cbtrace is None:
        return f"cbtrace is not installed there. Install version {here} on it."
    if answer.cbtrace != here:
        return f"cbtrace is version {answer.cbtrace[:40]} there and {here} here. Install the same one."
    if answer.missing:
        return f"{', '.join(answer.missing)} cannot be imported there. Run pip install 'cbtrace[record]' on it."
    if len(set(answer.gpus)) > 1:
        return f"its GPUs are of several models ({', '.join(sorted(set(answer.gpus)))[:120]})."
    return ""


def _machine(node: Mapping[str, Any], answer: _Answer) -> Machine:
    resources, address, name = node["Resources"], node["NodeManagerAddress"], node.get("NodeName") or ""
    kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    gpus = int(resources.get("GPU", 0))
    # Two nodes of one machine (as in a trial of a cluster) have names of their own.
    called = f"{answer.host} {'' if name == address else name}"
    return Machine(
        node=node["NodeID"],
        name="blake2b:" + hashlib.blake2b(called.encode(), digest_size=4).hexdigest(),
        shown=address if name in ("", address) else f"{name} ({address})",
        cpus=float(resources.get("CPU", 0)),
        gpus=gpus,
        gpu=(answer.gpus[:1] or kinds[:1] or ["unknown"])[0] if gpus else "",
    )


declare(
    "cluster-unsuitable",
    Severity.BROKEN,
    "No machine of the cluster can do the work: it has no GPU, lacks a package, or has another version of cbtrace.",
    "Install the same cbtrace, with 'cbtrace[record]' for runs, on the machines of the cluster.",
)
