"""What all tests share: a quiet, offline, single-threaded environment, and the command line as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import pytest

# Set before anything imports torch, and inherited by the programs that tests start. Two workers share two cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["COLUMNS"] = "100"
# The version under test comes first on this path; programs that tests start elsewhere are to find it too.
if "PYTHONPATH" in os.environ:
    entries = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries if entry)

TESTS = Path(__file__).parent
PROGRAMS = TESTS / "programs"
COMMAND = Path(sys.executable).with_name("cbtrace")


def pytest_report_header() -> str:
    """Name the Transformers under test: the matrix runs the same tests on several."""
    try:
        return f"transformers {version('transformers')}"
    except PackageNotFoundError:
        return "transformers is not installed"


class Cbtrace(Protocol):
    def __call__(self, *arguments: str | os.PathLike[str], **options: object) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def cbtrace(tmp_path: Path) -> Cbtrace:
    """Run ``cbtrace ARGUMENTS`` as a process, in ``tmp_path``. It has 120 s."""

    def run(*arguments: str | os.PathLike[str], **options: object) -> subprocess.CompletedProcess[str]:
        settings = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, "check": False} | options
        return subprocess.run([COMMAND, *arguments], **settings)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def program() -> Path:
    """The folder of programs that tests record."""
    return PROGRAMS
