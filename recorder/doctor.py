"""Whether recording works here, with the Transformers that is installed, and what to do about it.

The verdict rests on a self-check (:mod:`cbtrace.recorder.self_check`), which runs in a process of its own: an engine
that hangs or crashes there costs a line of the report and nothing else.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cbtrace.recorder.facts import NONE
from cbtrace.recorder.fingerprint import fingerprint
from cbtrace.recorder.self_check import RESULTS, RUN_SECONDS, Check
from cbtrace.recorder.supported import TESTED
from cbtrace.traces.schema import Facts, Scalar

_SECONDS = 2 * RUN_SECONDS + 60.0
"""For the whole self-check: two runs, and imports from a slow disk."""

_PACKAGES = ("torch", "transformers")
_VERSIONS = ("cbtrace", "python", "transformers", "torch", "cuda_runtime", "driver", "flash_attn", "kernels")
_INSTALL = 'Run pip install "cbtrace[record]" in the environment that runs the model.'
_NEWEST = TESTED[-1]


class Verdict(str, enum.Enum):
    """What recordings made here are worth."""

    VERIFIED = "verified"
    UNVERIFIED = "works but unverified version"
    UNUSABLE = "not usable"


@dataclass(frozen=True)
class Report:
    """What was found. ``reason`` and ``remedy`` are sentences; facts are named as in a trace's fingerprint, and
    ``None`` is unknown."""

    verdict: Verdict
    reason: str
    remedy: str
    versions: Mapping[str, Scalar]
    gpu: Mapping[str, Scalar]
    checks: tuple[Check, ...]
    tested_versions: tuple[str, ...] = TESTED

    @property
    def usable(self) -> bool:
        """Whether recording works."""
        return self.verdict is not Verdict.UNUSABLE


def examine() -> Report:
    """Look at the environment and run the self-check. Takes some seconds; writes nothing but a temporary folder."""
    missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        return diagnose(fingerprint(), missing, ())
    with tempfile.TemporaryDirectory(prefix="cbtrace-doctor-") as folder:
        child = _start(Path(folder))
        facts = fingerprint()
        return diagnose(facts, missing, _results(child, Path(folder)))


def diagnose(facts: Facts, missing: Sequence[str], checks: Sequence[Check]) -> Report:
    """Reach a verdict from what was found. ``missing`` are packages that are not installed; nothing is checked then."""
    facts = facts | {f"software.{package}": NONE for package in missing}
    verdict, reason, remedy = _judge(str(facts.get("software.transformers")), missing, checks)
    gpu = "hardware.gpu."
    return Report(
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        versions={name: facts.get(f"software.{name}") for name in _VERSIONS},
        gpu={name.removeprefix(gpu): fact for name, fact in facts.items() if name.startswith(gpu)},
        checks=tuple(checks),
    )


def _judge(version: str, missing: Sequence[str], checks: Sequence[Check]) -> tuple[Verdict, str, str]:
    if missing:
        absent = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        reason = f"Recording is not available here: {absent} not installed. Reports can be built all the same."
        return Verdict.UNUSABLE, reason, _INSTALL
    failed = [check for check in checks if not check.passed]
    fatal = next((check for check in failed if check.vital), None)
    if fatal is not None:
        reason = f"Recording does not work with Transformers {version} here: {fatal.name}: {fatal.detail}."
        return Verdict.UNUSABLE, reason, _remedy(fatal, version)
    differs = "; ".join(f"{check.name}: {check.detail}" for check in failed)
    if version in TESTED and not failed:
        return (
            Verdict.VERIFIED,
            f"cbtrace was tested on Transformers {version}, and the self-check passed here.",
            "Nothing is to be done: record with cbtrace record -o run.cbt -- python SCRIPT.",
        )
    if version in TESTED:
        reason = f"This Transformers {version} is not quite the one that cbtrace was tested on ({differs})."
        return Verdict.UNVERIFIED, reason, "Install that version anew, unless it was changed on purpose."
    reason = f"cbtrace was not tested on Transformers {version}; the self-check {_outcome(differs)}"
    return Verdict.UNVERIFIED, reason, f"Read figures with care, and see that traces say so; or install {_NEWEST}."


def _outcome(differs: str) -> str:
    return f"passed with differences ({differs})." if differs else "passed."


def _remedy(fatal: Check, version: str) -> str:
    if fatal.name == "import":
        return f"Install a version that cbtrace was tested on, such as {_NEWEST}. {_INSTALL}"
    if fatal.name == "engine":
        return "Make continuous batching work without cbtrace first."
    if version in TESTED:
        return "Report it, with the output of cbtrace doctor --json."
    return f"Install a version that cbtrace was tested on, such as {_NEWEST}."


# The self-check ------------------------------------------------------------------------------------------------------


def _start(folder: Path) -> subprocess.Popen[str]:
    # Started in an empty folder, so that no file beside the user's shadows a library; one thread suits a tiny model.
    searched = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(searched), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "cbtrace.recorder.self_check", str(folder)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _results(child: subprocess.Popen[str], folder: Path) -> list[Check]:
    try:
        _, told = child.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return [Check("self-check", False, True, f"it did not end within {_SECONDS:.0f} s")]
    try:
        return msgspec.json.decode((folder / RESULTS).read_bytes(), type=list[Check])
    except (OSError, msgspec.DecodeError):
        return [Check("self-check", False, True, _died(child.returncode, told))]


def _died(code: int, told: str) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    last = (told.strip().splitlines() or ["it said nothing"])[-1]
    return f"its process ended with code {code} ({last})"
