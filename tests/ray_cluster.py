"""Real Ray clusters for tests: several nodes on loopback, each of them Ray's own processes. None outlives its test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

STORE = 80_000_000
"""Bytes of a node's object store: about the least that Ray allows."""


@dataclass
class Cluster:
    """A cluster whose first node is its head."""

    folder: Path
    guardian: IO[str]
    """Is told of every node, and ends it when this process is gone."""
    address: str = ""
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What programs need to use the cluster. All that Ray writes lies in a folder of a short name, because names of
        sockets have at most 107 bytes. A cluster that a program starts for itself leaves a token in the home folder."""
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder), "RAY_ADDRESS": self.address}
        quiet["HOME"] = str(self.folder)
        return {key: value for key, value in (os.environ | quiet).items() if value}

    def add(self, name: str, *, cpus: int = 1, gpus: int = 0, python: Path | None = None, **more: str) -> None:
        """Start a node; ``more`` is added to its environment."""
        command = [python or sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        where = ["--address", self.address] if self.address else ["--head", "--port=0", "--include-dashboard=false"]
        size = [f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--object-store-memory={STORE}", f"--node-name={name}"]
        (self.folder / "ray").mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            self.nodes[name] = subprocess.Popen(
                [*command, *where, *size],
                env={key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"} | more,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.guardian.write(f"{self.nodes[name].pid}\n")
        self.guardian.flush()
        said = self._wait_for(name, "Ray runtime started")
        if not self.address:
            self.address = said.partition("--address='")[2].partition("'")[0]

    def _wait_for(self, name: str, text: str) -> str:
        deadline = time.monotonic() + 90
        log = self.folder / f"{name}.log"
        while time.monotonic() < deadline and self.nodes[name].poll() is None:
            said = log.read_text(errors="replace")
            if text in said:
                return said
            time.sleep(0.1)
        raise AssertionError(f"the node {name} did not start:\n{log.read_text(errors='replace')[-3000:]}")

    def raylet(self, name: str) -> psutil.Process:
        """The process that is the node, to Ray."""
        found = psutil.Process(self.nodes[name].pid).children(recursive=True)
        return next(process for process in found if process.name() == "raylet")

    def processes(self) -> list[int]:
        """All processes of the cluster, and of programs that use it."""
        return processes_of(self.folder, {node.pid for node in self.nodes.values()})


def processes_of(folder: Path, sessions: Collection[int]) -> list[int]:
    """Processes that were started in one of the sessions, or have the folder in their environment (which some of Ray's
    hide behind their titles)."""
    mark, found = f"RAY_TMPDIR={folder}".encode(), []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            alive = pid != os.getpid() and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            if alive and (os.getsid(pid) in sessions or mark in Path(f"/proc/{pid}/environ").read_bytes()):
                found.append(pid)
    return found


def guard(folder: Path) -> None:
    """Read the sessions of nodes from standard input until whoever started them closes it or is gone, however that came
    about; then kill every process of theirs, and remove the folder."""
    sessions = {int(line) for line in sys.stdin}
    for _ in range(50):
        left = processes_of(folder, sessions)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ray_cluster(**nodes: Mapping[str, int]) -> Iterator[Cluster]:
    """A cluster of these nodes, by name: what each has, such as ``cpus=1``."""
    folder = Path(tempfile.mkdtemp(prefix="cbr-"))
    # In a session of its own, it outlives a test that is killed.
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as guardian:
        assert guardian.stdin is not None
        cluster = Cluster(folder, guardian.stdin)
        for name, size in nodes.items():
            cluster.add(name, **size)  # type: ignore[arg-type]
        yield cluster
        guardian.stdin.close()
    for node in cluster.nodes.values():
        node.wait()


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
