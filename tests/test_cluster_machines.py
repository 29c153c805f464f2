"""What is made of the answers of machines: which can be used, and why others cannot."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

from cbtrace.recorder.cluster import machines
from cbtrace.recorder.cluster.connection import ClusterError
from cbtrace.recorder.cluster.machines import survey

HERE = version("cbtrace")


def node(number: int, **resources: float) -> dict[str, Any]:
    address = f"10.0.0.{number}"
    named = {"NodeID": str(number), "NodeManagerAddress": address, "NodeName": address}
    return {**named, "Alive": True, "Resources": {"CPU": 8.0, **resources}}


def answer(host: str = "host", **said: Any) -> machines._Answer:
    return machines._Answer(**{"host": host, "cbtrace": HERE, "missing": [], "gpus": [], **said})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], machines._Answer | str]]:
    """Nodes, and what each answers."""
    found: list[tuple[dict[str, Any], machines._Answer | str]] = []
    monkeypatch.setattr(machines, "ray_library", lambda: SimpleNamespace(nodes=lambda: [one for one, _ in found]))
    answers = lambda nodes, _packages: [said for one, said in found if one in nodes]  # noqa: E731
    monkeypatch.setattr(machines, "_ask", answers)
    return found


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (answer(cbtrace=None), f"cbtrace is not installed there. Install version {HERE} on it."),
        (answer(cbtrace="9.9"), f"cbtrace is version 9.9 there and {HERE} here. Install the same one."),
        (answer(missing=["torch"]), "torch cannot be imported there. Run pip install 'cbtrace[record]' on it."),
        (answer(gpus=["A", "B"]), "its GPUs are of several models (A, B)."),
        ("it does not answer.", "it does not answer."),
    ],
)
def test_a_machine_that_cannot_be_used_is_named_with_the_reason(
    cluster: list[Any], said: machines._Answer | str, reason: str
) -> None:
    cluster += [(node(1), answer()), (node(2), said)]
    found = survey(["torch"])
    assert [machine.shown for machine in found.machines] == ["10.0.0.1"]
    assert found.left_out == [f"Machine 10.0.0.2 is left out: {reason}"]
    del cluster[0]
    with pytest.raises(ClusterError) as caught:
        survey(["torch"])
    assert str(caught.value) == f"Machine 10.0.0.2 cannot be used: {reason}"
    assert (caught.value.slug, caught.value.exit_code) == ("cluster-unsuitable", 1)


def test_gpus_are_of_the_model_that_the_driver_or_else_ray_names(cluster: list[Any]) -> None:
    cluster += [
        (node(1, GPU=2.0), answer("a", gpus=["NVIDIA H200", "NVIDIA H200"])),
        (node(2, GPU=1.0, **{"accelerator_type:H200": 1.0}), answer("b")),
        (node(3), answer("c", gpus=["NVIDIA H200"])),
        (node(4, GPU=1.0), answer("a")),
    ]
    assert [(m.gpus, m.gpu) for m in survey().machines] == [(2, "NVIDIA H200"), (1, "H200"), (0, ""), (1, "unknown")]
    assert [m.node for m in survey(gpus=True, without=["2"]).machines] == ["1", "4"]
    names = [m.name for m in survey().machines]
    assert names[0] == names[3] != names[1], "a machine is known by its host, whatever its address"
    assert all(name.startswith("blake2b:") for name in names)
    cluster[:] = [(node(1), answer())]
    with pytest.raises(ClusterError, match="No machine of the cluster has a GPU"):
        survey(gpus=True)
