"""Sites built on a real Ray cluster of several nodes: the very bytes of a build on one machine."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbtrace.commands.ray_builds import belongs
from conftest import COMMAND
from rank_traces import Rank, rank_paths
from ray_cluster import Cluster, ray_cluster
from site_runs import HOSTILE, busy_run, troubled_run

pytestmark = pytest.mark.ray
MANY = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one core."""
    with ray_cluster(a={"cpus": 1}, b={"cpus": 1}) as made:
        yield made


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many traces: equal ones, damaged ones, one that is none, names that are trouble, and ranks of one run."""
    folder = tmp_path_factory.mktemp("traces") / "traces"
    folder.mkdir()
    for number in range(MANY - 7):
        busy_run(folder / f"run-{number:03}.cbt", f"run {number}", seed=number)
    shutil.copy(folder / "run-000.cbt", folder / "copy.cbt")
    troubled_run(folder / "troubled.cbt", HOSTILE)
    (folder / "cut.cbt").write_bytes((folder / "run-001.cbt").read_bytes()[:3000])
    (folder / "none.cbt").write_bytes(b"this is no trace at all\n" * 9)
    (folder / "empty.cbt").touch()
    rank_paths(folder, Rank(0), Rank(1), stem="split")
    return folder


def build(cluster: Cluster, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "build", *arguments],
        cwd=cwd,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_a_hundred_traces_give_the_same_bytes(cluster: Cluster, traces: Path, tmp_path: Path) -> None:
    assert len(list(traces.iterdir())) == MANY
    there = build(cluster, str(traces), "-o", "there", "--on", "ray", cwd=tmp_path)
    here = build(cluster, str(traces), "-o", "here", cwd=tmp_path)
    assert there.returncode == here.returncode == 1, there.stderr
    assert "Runs: 97 built, 0 unchanged, 2 left out." in there.stdout
    assert there.stderr == here.stderr, "the same sentences about the same traces"
    assert files(tmp_path / "there") == files(tmp_path / "here")
    # What was built there is known here: nothing is built again.
    again = build(cluster, str(traces), "-o", "there", cwd=tmp_path)
    assert "Runs: 0 built, 97 unchanged" in again.stdout
    # And from a storage, by URL.
    stored = build(cluster, traces.as_uri(), "-o", "stored", "--on", "ray", cwd=tmp_path)
    assert stored.returncode == 1 and files(tmp_path / "stored") == files(tmp_path / "here")


def test_a_machine_that_is_lost_costs_nothing_but_time(cluster: Cluster, traces: Path, tmp_path: Path) -> None:
    cluster.add("doomed", cpus=1)
    raylet = cluster.raylet("doomed")

    def kill_in_the_middle() -> None:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            if len(list((tmp_path / "there" / "runs").glob("*/index.html"))) > 5:
                raylet.kill()
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    chosen = [str(path) for path in sorted(traces.glob("run-0[0-3]*.cbt"))]
    there = build(cluster, *chosen, "-o", "there", "--on", "ray", cwd=tmp_path)
    killer.join()
    assert there.returncode == 0, there.stderr
    assert "doomed" in there.stderr and "is left out: it was lost." in there.stderr
    here = build(cluster, *chosen, "-o", "here", cwd=tmp_path)
    assert here.returncode == 0 and files(tmp_path / "there") == files(tmp_path / "here")


@pytest.mark.parametrize("name", ["../x", "runs/../../x", "/etc/x", "index.html", ".cbtrace-site/files", "assets/x.js"])
def test_a_machine_writes_nothing_but_files_of_its_run(name: str) -> None:
    assert not belongs(name, ".cbtrace-site/runs/1.json")
    assert belongs("runs/a-1/index.html", ".cbtrace-site/runs/1.json")
    assert belongs(".cbtrace-site/runs/1.json", ".cbtrace-site/runs/1.json")
