"""Programs that run a real engine under ``cbtrace record``: what is recorded, and what is left however they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cbtrace.traces import Trace, TraceWriter, open_trace
from cbtrace.traces.schema import EndReason, EventKind
from conftest import COMMAND, PROGRAMS, started

GENERATE = PROGRAMS / "generate.py"


def command(*arguments: str, options: tuple[str, ...] = ()) -> list[str | Path]:
    return [COMMAND, "record", "-o", "run.cbt", *options, "--", sys.executable, GENERATE, *arguments]


def run(line: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def own_words(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines that cbtrace itself said."""
    return [line for line in result.stderr.splitlines() if line.startswith("cbtrace: ")]


def counts(trace: Trace) -> dict[str, object]:
    """How many of everything a trace holds."""
    events = Counter(EventKind(kind).name for kind in trace.events.kind.tolist())
    return {
        "events": dict(events),
        "steps": len(trace.steps.index),
        "admissions": len(trace.admissions.serial),
        "tokens": len(trace.tokens.request),
        "ends": Counter(trace.requests.end_reason.tolist()),
        "recomputed": int(trace.requests.recomputed.sum()),
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One recording of the program with a schedule that is the same each time."""
    folder = tmp_path_factory.mktemp("recorded")
    options = ("--name", "mine", "--tag", "blocks=14", "--tag", "x=")
    return run(command("--with", "manager", options=options), folder), folder / "run.cbt"


@pytest.mark.engine
def test_exit_code_and_tokens_are_those_of_the_program_alone(
    recorded: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path
) -> None:
    alone = run([sys.executable, GENERATE, "--with", "manager"], tmp_path)
    result, path = recorded
    assert (result.returncode, result.stdout) == (alone.returncode, alone.stdout)
    assert alone.returncode == 3 and len(json.loads(alone.stdout)) == 8
    assert own_words(result) == [f"cbtrace: recorded {path}"]


@pytest.mark.engine
def test_the_trace_holds_what_was_asked_for(recorded: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    trace = open_trace(recorded[1])
    assert trace.recovery.status == "clean"
    assert (trace.header.name, trace.header.tags) == ("mine", {"blocks": "14", "x": ""})
    tokens = json.loads(recorded[0].stdout)
    assert dict(zip(trace.requests.id, trace.requests.generated.tolist(), strict=True)) == {
        name: len(ids) for name, ids in tokens.items()
    }
    assert np.all(trace.requests.end_reason == EndReason.LENGTH)
    assert np.any(trace.events.kind == EventKind.SOFT_RESET)


@pytest.mark.engine
def test_counts_are_those_of_the_context_manager(
    recorded: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path
) -> None:
    inside = (
        "import runpy, sys\nfrom cbtrace.recorder import record\n"
        "del sys.argv[0]\nwith record('run.cbt'):\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    result = run([sys.executable, "-c", inside, GENERATE, "--with", "manager"], tmp_path)
    assert result.returncode == 3, result.stderr
    assert counts(open_trace(tmp_path / "run.cbt")) == counts(open_trace(recorded[1]))


@pytest.mark.engine
def test_generate_batch_in_a_script_is_recorded(tmp_path: Path) -> None:
    result = run(command(), tmp_path)
    trace = open_trace(tmp_path / "run.cbt")
    assert result.returncode == 3 and trace.recovery.status == "clean"
    assert len(trace.tokens.request) == sum(map(len, json.loads(result.stdout).values())) == 8 * 48


def test_a_program_that_fails_leaves_a_closed_trace_and_its_traceback(tmp_path: Path) -> None:
    result = run(command("--then", "fail"), tmp_path)
    assert result.returncode == 1
    assert "ValueError: the program's own failure" in result.stderr
    assert "Traceback" in result.stderr and "sitecustomize" not in result.stderr
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.recovery.status == "clean" and trace.footer is not None
    assert trace.footer.text == "ValueError", "its class, and never its words"


def test_os_exit_leaves_a_trace_that_is_whole_up_to_its_last_step(tmp_path: Path) -> None:
    result = run(command("--then", "_exit"), tmp_path)
    assert result.returncode == 7
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.recovery.status == "cut"
    assert len(trace.tokens.request) == 8 * 48


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_program_and_closes_the_trace(number: signal.Signals, tmp_path: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command("--then", "hang"), cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("{")
        process.send_signal(number)
        _, said = process.communicate(timeout=240)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.recovery.status == "clean" and len(trace.tokens.request) == 8 * 48
    assert trace.footer is not None and trace.footer.reason == "closed"
    assert trace.footer.text == ("KeyboardInterrupt" if number == signal.SIGINT else number.name)


@pytest.mark.engine
def test_kill_in_the_middle_of_a_run_leaves_every_step_so_far(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    with started(command("--new-tokens", "180"), cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 240
        while not (path.exists() and path.stat().st_size > 12_000):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    trace = open_trace(path)
    assert trace.recovery.status == "cut"
    assert np.array_equal(trace.steps.index, np.arange(len(trace.steps.index))) and len(trace.steps.index) > 20
    assert np.any(trace.requests.end_reason == EndReason.RUNNING)


# Several processes ----------------------------------------------------------------------------------------------------


def test_every_process_with_an_engine_writes_a_file_of_its_own(tmp_path: Path) -> None:
    result = run(command("--in", "spawned", "--in", "forked"), tmp_path)
    assert result.returncode == 3, result.stderr
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2 and "run.cbt" in files and files[1].startswith("run.pid")
    assert len(own_words(result)) == 2 and not any("no-engine" in line for line in own_words(result))
    for file in files:
        trace = open_trace(tmp_path / file)
        assert trace.recovery.status == "clean" and len(trace.tokens.request) == 8 * 48


def test_a_rank_writes_under_its_number(tmp_path: Path) -> None:
    result = run(command(options=("--overwrite",)), tmp_path, RANK="1", WORLD_SIZE="2")
    assert result.returncode == 3, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.rank1.cbt"]
    header = open_trace(tmp_path / "run.rank1.cbt").header
    assert (header.rank, header.world_size) == (1, 2)


def test_overwrite_replaces_the_trace(recorded: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    path.write_bytes(recorded[1].read_bytes())
    before = open_trace(path).header.run_id
    refused = run(command(), tmp_path)
    assert refused.returncode == 1 and "--overwrite" in refused.stderr and refused.stderr.endswith("[trace-exists]\n")
    assert open_trace(path).header.run_id == before
    stale = tmp_path / "run-2.cbt"
    stale.write_bytes(b"of the recording before")
    replaced = run(command(options=("--overwrite",)), tmp_path)
    assert replaced.returncode == 3 and "left alone: run-2.cbt [older-traces]" in own_words(replaced)[-1]
    assert open_trace(path).header.run_id != before
    assert sorted(tmp_path.iterdir()) == [stale, path]


def test_overwrite_keeps_the_old_trace_until_a_new_one_begins(tmp_path: Path) -> None:
    """Neither a program that fails on its first line nor one without an engine may cost the trace that is there."""
    path = tmp_path / "run.cbt"
    TraceWriter(path).close()
    before = path.read_bytes()
    for code, word in (("raise SystemExit(5)", "no-engine"), ("import os; os._exit(5)", "")):
        line = [COMMAND, "record", "-o", "run.cbt", "--overwrite", "--", sys.executable, "-c", code]
        result = run(line, tmp_path)
        assert result.returncode == 5 and word in result.stderr
        assert ("the old" in result.stderr) == bool(word)
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_several_processes_replace_an_old_trace_once(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "run.cbt").close()
    result = run(command("--in", "spawned", "--in", "forked", options=("--overwrite",)), tmp_path)
    assert result.returncode == 3, result.stderr
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2 and "run.cbt" in files and files[1].startswith("run.pid")
    assert all(len(open_trace(tmp_path / file).tokens.request) == 8 * 48 for file in files)


def test_a_recording_that_stops_early_is_said_in_the_last_line(tmp_path: Path) -> None:
    limited: list[str | Path] = ["bash", "-c", 'ulimit -f 8; exec "$@"', "limited", *command("--new-tokens", "180")]
    result = run(limited, tmp_path)
    assert result.returncode == 3, result.stderr
    assert own_words(result)[-1].endswith("when the recording stopped early (File too large) [stopped-io-error]")
    assert 6000 < (tmp_path / "run.cbt").stat().st_size <= 8192


# When there is no engine ----------------------------------------------------------------------------------------------


def test_running_out_of_memory_before_there_is_an_engine_is_recorded(tmp_path: Path) -> None:
    code = "import transformers\nfrom transformers import LlamaForCausalLM\nraise MemoryError"
    result = run([COMMAND, "record", "-o", "run.cbt", "--", sys.executable, "-c", code], tmp_path)
    assert result.returncode == 1 and result.stderr.count("MemoryError") == 1
    trace = open_trace(tmp_path / "run.cbt")
    assert trace.events.kind.tolist() == [EventKind.OUT_OF_MEMORY]
    assert trace.events.text == ["model load: MemoryError"]


def test_a_program_that_only_imports_transformers_leaves_nothing(tmp_path: Path) -> None:
    code = "from transformers import LlamaForCausalLM"
    result = run([COMMAND, "record", "-o", "run.cbt", "--", sys.executable, "-c", code], tmp_path)
    assert result.returncode == 0
    assert [line.rpartition(" ")[2] for line in own_words(result)] == ["[no-engine]"]
    assert list(tmp_path.iterdir()) == []
