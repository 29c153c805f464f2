"""A program under ``cbtrace record`` runs as without it, whatever it is and however it ends."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cbtrace.recorder import bootstrap, launch
from cbtrace.recorder.program import _option_letters, find_program
from cbtrace.traces.errors import CbtraceError, UsageError
from conftest import COMMAND, PROGRAMS, Cbtrace

SEE = PROGRAMS / "what_i_see.py"
RECORD = (COMMAND, "record", "-o", "run.cbt", "--")


def run(
    command: list[str | Path], folder: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        input=stdin,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def both(
    command: list[str | Path], folder: Path, stdin: str = "", **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command plainly and under recording."""
    return [run([*start, *command], folder, stdin, **environment) for start in ((), RECORD)]


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# What the program sees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, SEE, "a", "--flag", "--", "b c"],
        [sys.executable, "-u", "-W", "error", "-Xdev", "-OO", SEE],
        [sys.executable, "-m", "what_i_see", "-m", "x"],
        [sys.executable, "-c", SEE.read_text(), "-c", "x"],
        [sys.executable, "-"],
    ],
    ids=["script", "options", "module", "code", "stdin"],
)
def test_the_program_sees_what_it_would_see_without_cbtrace(command: list[str | Path], tmp_path: Path) -> None:
    stdin = SEE.read_text() if command[-1] == "-" else "some input\n"
    plain, recorded = both(command, tmp_path, stdin, PYTHONPATH=str(PROGRAMS))
    assert plain.returncode == recorded.returncode == 0, plain.stderr + recorded.stderr
    assert json.loads(recorded.stdout) == json.loads(plain.stdout)


def test_sees_the_same_when_there_was_no_pythonpath(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    seen = [
        json.loads(
            subprocess.run(
                [*start, sys.executable, SEE],
                cwd=tmp_path,
                env=environment,
                input="",
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for start in ((), RECORD)
    ]
    assert seen[0] == seen[1]


def test_bytes_pass_through_unchanged(tmp_path: Path) -> None:
    data = bytes(range(256)) * 300
    copy = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    result = subprocess.run(
        [*RECORD, sys.executable, "-c", copy], cwd=tmp_path, input=data, capture_output=True, check=True
    )
    assert result.stdout == data


def test_it_is_the_process_that_was_started(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*RECORD, sys.executable, "-c", "import os; print(os.getpid())"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        printed, _ = process.communicate(timeout=240)
    assert int(printed) == process.pid


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_works(method: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:\n"
        "        print(pool.map(abs, [-1, -2, -3]))\n"
    )
    result = run([*RECORD, sys.executable, script, method], tmp_path)
    assert (result.returncode, result.stdout) == (0, "[1, 2, 3]\n"), result.stderr
    assert result.stderr.count("[no-engine]") == 1, "the children have nothing to say"


# How the program ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('words')", 1),
        ("import os; os._exit(7)", 7),
        ("raise ValueError('its own')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_exit_status_and_traceback_come_through(code: str, status: int, tmp_path: Path) -> None:
    plain, recorded = both([sys.executable, "-c", code], tmp_path)
    assert plain.returncode == recorded.returncode == status
    said = [line for line in recorded.stderr.splitlines() if not line.startswith("cbtrace: ")]
    assert said == plain.stderr.splitlines()


def test_signals_have_the_system_default_in_programs_that_are_not_python(tmp_path: Path) -> None:
    assert run([*RECORD, "sh", "-c", "kill -PIPE $$"], tmp_path).returncode == -signal.SIGPIPE


def test_a_handler_of_the_programs_own_is_not_touched(tmp_path: Path) -> None:
    # A package of that name stands for the real one: what matters is only that it is imported.
    (tmp_path / "transformers.py").write_text("")
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "handler = signal.getsignal(signal.SIGTERM)\n"
        "import transformers\n"
        "assert signal.getsignal(signal.SIGTERM) is handler\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert run([*RECORD, sys.executable, "-c", code], tmp_path, PYTHONPATH=str(tmp_path)).returncode == 5


def test_says_so_when_nothing_was_recorded(tmp_path: Path) -> None:
    result = run([*RECORD, sys.executable, "-c", "import sys; sys.exit(4)"], tmp_path)
    assert result.returncode == 4
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("[no-engine]\n"), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_closed_standard_error_is_no_failure(tmp_path: Path) -> None:
    result = run(["sh", "-c", 'exec "$@" 2>&-', "sh", *RECORD, sys.executable, "-c", "print(1)"], tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


# The environment's own sitecustomize ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["print('mine', __file__)", "raise ValueError('its own')", "import nonesuch"])
def test_a_sitecustomize_of_the_environment_runs_as_before(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    command: list[str | Path] = [sys.executable, "-c", "import sys; print('sitecustomize' in sys.modules)"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plain = run(command, tmp_path)
    # Started as cbtrace starts it, without cbtrace's own Python, which would run the module as well.
    recorded = run(command, tmp_path, **launch._environment(launch.Settings(tmp_path / "run.cbt"), None))
    assert recorded.stdout == plain.stdout
    said = [line for line in recorded.stderr.splitlines() if not line.endswith("[no-engine]")]
    assert [line for line in said if line] == [line for line in plain.stderr.splitlines() if line]


def test_the_start_of_a_python_imports_nothing_of_cbtrace(tmp_path: Path) -> None:
    code = (
        "import sys; print([name for name in sys.modules if 'cbtrace' in name or name in ('json', 'typing', 'numpy')])"
    )
    plain, recorded = both([sys.executable, "-c", code], tmp_path)
    assert recorded.stdout == plain.stdout


# Which program it is --------------------------------------------------------------------------------------------------


def test_a_line_that_starts_with_an_option_is_for_the_python_of_cbtrace(tmp_path: Path) -> None:
    result = run([*RECORD, "-m", "what_i_see"], tmp_path, PYTHONPATH=str(PROGRAMS))
    assert Path(json.loads(result.stdout)["executable"]).parent == Path(sys.executable).parent


def test_a_python_file_that_is_not_executable_is_for_the_python_of_cbtrace(tmp_path: Path) -> None:
    assert find_program([str(SEE), "x"]).arguments == [sys.executable, str(SEE), "x"]


def test_an_executable_script_is_run_by_the_python_it_names(tmp_path: Path) -> None:
    script = executable(tmp_path / "job", f"#!{sys.executable} -u\nimport sys; print(sys.argv)\n")
    result = run([*RECORD, "./job", "x"], tmp_path)
    assert result.stdout == "['./job', 'x']\n"
    assert find_program([str(script)]).executable == str(script)


def test_a_command_beside_the_python_of_cbtrace_is_found_without_its_environment(tmp_path: Path) -> None:
    result = run([*RECORD, "pytest", "--version"], tmp_path, PATH="/usr/bin:/bin")
    assert result.returncode == 0, result.stderr
    assert "pytest" in result.stdout


def test_a_python_on_the_path_that_cannot_record_gives_way_to_the_one_of_cbtrace(tmp_path: Path) -> None:
    other = executable(tmp_path / "python", "#!/bin/sh\necho cbtrace.recorder torch transformers psutil\n")
    result = run(
        [*RECORD, "python", "-c", "import sys; print(sys.executable)"], tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin"
    )
    assert result.returncode == 0
    assert Path(result.stdout.strip()).parent == Path(sys.executable).parent
    assert f"{other} cannot record" in result.stderr


def test_a_python_named_by_its_path_that_cannot_record_is_an_error(tmp_path: Path) -> None:
    other = executable(tmp_path / "python", "#!/bin/sh\necho cbtrace.recorder torch\n")
    with pytest.raises(CbtraceError, match=r"lacks cbtrace and torch.*pip install") as caught:
        find_program([str(other), "script.py"])
    assert (caught.value.slug, caught.value.exit_code) == ("record-extra-missing", 1)


def test_the_python_behind_a_long_installed_path_is_found(tmp_path: Path) -> None:
    other = executable(tmp_path / "python", "#!/bin/sh\necho torch\n")
    script = executable(tmp_path / "serve", f"#!/bin/sh\n'''exec' {other} \"$0\" \"$@\"\n' '''\nprint(1)\n")
    with pytest.raises(CbtraceError, match=f"{other}.*lacks torch"):
        find_program([str(script)])


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-uS"], ["-W", "error", "-sE"]])
def test_a_python_that_would_shut_cbtrace_out_is_refused(options: list[str]) -> None:
    with pytest.raises(UsageError, match=f"python -{options[-1][-1]} keeps cbtrace out") as caught:
        find_program([sys.executable, *options, "script.py"])
    assert caught.value.slug == "python-isolated"


def test_a_script_that_would_shut_cbtrace_out_is_refused(tmp_path: Path) -> None:
    script = executable(tmp_path / "job", f"#!{sys.executable} -sE\n")
    with pytest.raises(UsageError, match="python -E keeps cbtrace out"):
        find_program([str(script)])


@pytest.mark.parametrize(
    ("arguments", "letters"),
    [
        (["script.py", "-E"], ""),
        (["-m", "module", "-E"], "m"),
        (["-mmodule"], "m"),
        (["-uc", "code", "-I"], "uc"),
        (["-W", "-E", "-"], "W"),
        (["-Werror", "-B"], "WB"),
        (["-X", "importtime", "-O"], "XO"),
        (["--check-hash-based-pycs", "-E", "-u"], "u"),
        (["--", "-E"], ""),
    ],
)
def test_options_of_python_end_where_its_program_begins(arguments: list[str], letters: str) -> None:
    assert _option_letters(arguments) == letters


@pytest.mark.parametrize(
    ("name", "why"),
    [("nonesuch", "There is no program nonesuch"), ("./plain", "may not be executed"), ("folder", "is a folder")],
)
def test_a_program_that_is_not_there_is_said_to_be_so(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why) as caught:
        find_program([name])
    assert caught.value.slug == "program-not-found"


def test_a_file_without_an_interpreter_is_an_error_of_one_sentence(tmp_path: Path, cbtrace: Cbtrace) -> None:
    executable(tmp_path / "job", "\x00\x01 nothing that a system can run")
    result = cbtrace("record", "-o", "run.cbt", "--", "./job")
    assert (result.returncode, result.stdout) == (1, "")
    assert "./job cannot be executed" in result.stderr and result.stderr.endswith("[program-not-executable]\n")


def test_the_bootstrap_is_harmless_without_settings(tmp_path: Path) -> None:
    folder = str(Path(bootstrap.__file__).parent)
    result = run([sys.executable, "-c", "import sys; print(sys.path)"], tmp_path, PYTHONPATH=folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert folder not in result.stdout
