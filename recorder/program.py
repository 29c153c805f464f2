"""Finds the program that a command line names, and the Python that will run it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbtrace.traces.errors import CbtraceError, UsageError, declare
from cbtrace.traces.schema import Severity

NEEDED = ("cbtrace.recorder", "torch", "transformers", "psutil")
"""Modules that the Python of a recorded program must be able to find."""

_PYTHON_NAME = re.compile(r"python(\d+(\.\d+)*)?$")
_PROBE = """
import importlib.util, sys
def found(name):
    try: return importlib.util.find_spec(name)
    except ImportError: return None
print(*[name for name in sys.argv[1:] if not found(name)])
"""


@dataclass(frozen=True)
class Program:
    """What to execute. ``arguments`` is the whole argv, its first element included."""

    executable: str
    arguments: list[str]
    note: str = ""
    """What the user should know about the choice; empty when it was the obvious one."""


@dataclass(frozen=True)
class _Interpreter:
    executable: str
    options: str
    """Letters of the options that it gets (``uE`` for ``-u -E``)."""


def find_program(command: Sequence[str]) -> Program:
    """Find what a command line would run, and check that cbtrace can reach it.

    A line that starts with an option (``-m module``) or with a Python file that cannot be executed itself is meant for
    the Python that runs cbtrace. A name is looked up in ``PATH`` and then beside that Python: ``cbtrace`` is often
    called by its path from an environment that is not activated.

    Raises:
        UsageError: there is no such program, or its Python is told to ignore ``PYTHONPATH``.
        CbtraceError: its Python lacks what recording needs.
    """
    if not command:
        raise UsageError(
            "There is no program to record: name it after --, as in cbtrace record -o run.cbt -- python script.py.",
            slug="no-program",
        )
    if command[0].startswith("-") or _is_plain_script(command[0]):
        command = [sys.executable, *command]
    executable = shutil.which(command[0]) or _beside(command[0])
    if executable is None:
        raise UsageError(_why_missing(command[0]), slug="program-not-found")
    interpreter = _interpreter_of(executable, command[1:])
    if interpreter is None:
        return Program(executable, list(command))
    _check_options(interpreter)
    lacking = _lacking(interpreter.executable)
    if not lacking:
        return Program(executable, list(command))
    own = _beside(command[0])
    if own is None or _same_folder(own, executable):
        raise CbtraceError(_why_unable(interpreter.executable, lacking), slug="record-extra-missing")
    return _use_own(own, executable, command)


def _use_own(own: str, other: str, command: Sequence[str]) -> Program:
    lacking = _lacking(sys.executable)
    if lacking:
        raise CbtraceError(_why_unable(sys.executable, lacking), slug="record-extra-missing")
    interpreter = _interpreter_of(own, command[1:])
    if interpreter is not None:
        _check_options(interpreter)
    return Program(own, [own, *command[1:]], f"{other} cannot record, so {own} runs the program")


def _is_plain_script(name: str) -> bool:
    return name.endswith(".py") and Path(name).is_file() and not os.access(name, os.X_OK)


def _beside(name: str) -> str | None:
    """A program of that name in the environment of the Python that runs cbtrace."""
    if os.sep in name:
        return None
    return shutil.which(name, path=str(Path(sys.executable).parent))


def _same_folder(one: str, other: str) -> bool:
    return Path(one).parent == Path(other).parent


def _why_missing(name: str) -> str:
    if Path(name).is_dir():
        return f"{name} is a folder: name the program to record."
    if Path(name).is_file() and os.sep in name:
        return f"{name} may not be executed: make it executable, or name its interpreter, as in python {name}."
    return f"There is no program {name}: check its name, or give its path."


def _why_unable(interpreter: str, lacking: Sequence[str]) -> str:
    names = ["cbtrace" if name == "cbtrace.recorder" else name for name in lacking]
    missing = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return (
        f"The Python of the program ({interpreter}) lacks {missing}, which recording needs: "
        f'run {interpreter} -m pip install "cbtrace[record]", or name a Python that has it.'
    )


def _lacking(interpreter: str) -> list[str]:
    """Names out of :data:`NEEDED` that an interpreter cannot find."""
    if _same_folder(interpreter, sys.executable):
        return [name for name in NEEDED if not _is_found(name)]
    probe = subprocess.run(
        [interpreter, "-c", _PROBE, *NEEDED], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    # An interpreter that fails at this fails at the program too, with words of its own.
    return probe.stdout.split() if probe.returncode == 0 else []


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _interpreter_of(executable: str, arguments: Sequence[str]) -> _Interpreter | None:
    """The Python behind a program: itself, or the one its first line names; None when it is no Python program."""
    if _PYTHON_NAME.match(Path(executable).name):
        return _Interpreter(executable, _option_letters(arguments))
    line = _shebang(executable)
    if line and Path(line[0]).name == "env":
        line = [word for word in line[1:] if "=" not in word and word != "-S"]
    if not line or not _PYTHON_NAME.match(Path(line[0]).name):
        return None
    found = shutil.which(line[0])
    return _Interpreter(found, _option_letters(line[1:])) if found else None


def _shebang(executable: str) -> list[str]:
    with open(executable, "rb") as file:
        start = file.read(1024)
    if not start.startswith(b"#!"):
        return []
    first, _, rest = start[2:].decode("utf-8", "replace").partition("\n")
    try:
        # Installers write a shell line instead of a path that is too long for the system: '''exec' /path "$0" "$@"
        second = shlex.split(rest.partition("\n")[0]) if rest.startswith("'''exec'") else []
        return second[1:2] if second else shlex.split(first)
    except ValueError:
        return []


def _option_letters(arguments: Sequence[str]) -> str:
    """Letters of Python's own options, up to what it runs: ``["-uW", "error", "-m", "x", "-E"]`` gives ``uWm``."""
    letters = ""
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-") or argument in ("-", "--"):
            break
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(remaining, None)
            continue
        for index, letter in enumerate(argument[1:], 2):
            letters += letter
            if letter in "cm":
                return letters
            if letter in "WX":
                if index == len(argument):
                    next(remaining, None)
                break
    return letters


def _check_options(interpreter: _Interpreter) -> None:
    refused = [letter for letter in "IES" if letter in interpreter.options]
    if refused:
        raise UsageError(
            f"python -{refused[0]} keeps cbtrace out of the program, which it enters through PYTHONPATH: "
            "leave the option out, or use cbtrace.recorder.record in the program itself.",
            slug="python-isolated",
        )


declare(
    "no-program",
    Severity.BROKEN,
    "Nothing follows the options of `cbtrace record`.",
    "Put the program and its arguments after `--`, as in `cbtrace record -o run.cbt -- python script.py`.",
)
declare(
    "program-not-found",
    Severity.BROKEN,
    "The program to record does not exist, or may not be executed.",
    "Check its name, give its path, or activate the environment that it is in.",
)
declare(
    "record-extra-missing",
    Severity.BROKEN,
    "The Python that runs the program lacks cbtrace, PyTorch or Transformers.",
    'Run `pip install "cbtrace[record]"` in the environment of that Python.',
)
declare(
    "python-isolated",
    Severity.BROKEN,
    "An option of Python (-I, -E or -S) shuts out PYTHONPATH or sitecustomize, and with them the recorder.",
    "Leave the option out, or wrap the code in `with cbtrace.recorder.record(...)`.",
)
