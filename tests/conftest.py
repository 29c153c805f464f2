"""What all tests share: a quiet, offline, single-threaded environment, and the command line as its users run it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@contextlib.contextmanager
def started(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process that takes signals as one at a terminal does, and see to it that it is gone at the end.

    Tests may themselves run in the background or under nohup, where SIGINT or SIGHUP is ignored, and that is inherited.
    """

    def take_signals() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    process = subprocess.Popen(command, preexec_fn=take_signals, **options)
    try:
        with process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise
    finally:
        process.kill()


class Cbtrace(Protocol):
    def __call__(self, *arguments: str | os.PathLike[str], **options: object) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def cbtrace(tmp_path: Path) -> Cbtrace:
    """Run ``cbtrace ARGUMENTS`` as a process, in ``tmp_path``. It has 240 s."""

    def run(*arguments: str | os.PathLike[str], **options: object) -> subprocess.CompletedProcess[str]:
        settings = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240, "check": False} | options
        return subprocess.run([COMMAND, *arguments], **settings)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def program() -> Path:
    """The folder of programs that tests record."""
    return PROGRAMS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium. Not one for all modules: while it runs, so does an event loop, and others start their own."""
    # Tests of the recorder run where there is no browser.
    from pages import chromium

    with chromium() as made:
        yield made
