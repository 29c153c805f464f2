"""What a program takes, all processes that it starts included. Needs Linux.

All of them are looked at ten times a second. Memory is the sum of their proportional set sizes, in which a page that
several of them share counts once. The highest sum may lie between two looks, so the highest resident memory of any of
them, which the system keeps, is the least that is told. CPU seconds are those of each when it was last seen.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Spent:
    """What one piece of work took."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    processes: int
    """How many were seen."""


def spent(command: Sequence[str]) -> Spent:
    """Run a program; what it took, its start included.

    Raises:
        CalledProcessError: it failed.
    """
    began = time.perf_counter()
    cpu: dict[psutil.Process, float] = {}
    highest = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as program:
        root = psutil.Process(program.pid)
        while program.poll() is None:
            together, tree = 0.0, _tree(root)
            for process in tree:
                with suppress(psutil.Error, OSError):  # it has ended meanwhile
                    times = process.cpu_times()
                    cpu[process] = times.user + times.system
                    highest = max(highest, _kib(process.pid, "status", "VmHWM"))
                    together += _kib(process.pid, "smaps_rollup", "Pss") if len(tree) > 1 else 0
            highest = max(highest, together)
            time.sleep(_INTERVAL_S)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command)
    return Spent(sum(cpu.values()), time.perf_counter() - began, highest / 1024, len(cpu))


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _kib(pid: int, file: str, name: str) -> int:
    """A number of kilobytes that the system tells of a process; 0 where it does not, as of one that is ending."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
