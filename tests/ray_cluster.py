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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

STORE = 80_000_000
"""Bytes of a node's object store: about the least that Ray allows."""


@dataclass
class Cluster:
    """A cluster whose first node is its head."""

    folder: Path
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

    def close(self) -> None:
        """Kill every process of ours, whoever started it, and remove the folder."""
        for _ in range(50):
            ours = self.processes()
            for pid in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for node in self.nodes.values():
                node.poll()
            if not ours:
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[int]:
        """All processes of the cluster, and of programs that use it."""
        sessions = {node.pid for node in self.nodes.values()}
        return [pid for pid in psutil.pids() if pid != os.getpid() and self._is_ours(pid, sessions)]

    def _is_ours(self, pid: int, sessions: set[int]) -> bool:
        """Whether a process was started in the session of a node, or has our folder in its environment (which some of
        Ray's hide behind their titles)."""
        with contextlib.suppress(OSError, psutil.Error):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
            if os.getsid(pid) in sessions:
                return True
            return f"RAY_TMPDIR={self.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


@contextlib.contextmanager
def ray_cluster(**nodes: Mapping[str, int]) -> Iterator[Cluster]:
    """A cluster of these nodes, by name: what each has, such as ``cpus=1``."""
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="cbr-")))
    try:
        for name, size in nodes.items():
            cluster.add(name, **size)  # type: ignore[arg-type]
        yield cluster
    finally:
        cluster.close()
