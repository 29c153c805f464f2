"""A trace may come from anyone, under any file name: nothing in it, and no name, steers the terminal that shows it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from cbtrace.traces.schema import Engine, Header, Notice, Severity
from conftest import COMMAND, Cbtrace
from test_traces_invariants import rewritten
from trace_builder import TraceBuilder, eventful

ESCAPES = "\x1b[2J\x1b]0;t\x07\x9b31m\r\x08\x00\u202e\u2066\u200f\u2028\u0085"
"""Escape sequences, C0 and C1 controls, bidirectional overrides, separators of lines."""
STEERING = set(ESCAPES) - set("[2J]0;t31m")
NAME = "run \x1b[31m\u202e[red] [bold\n.cbt"


def hostile(path: Path) -> None:
    """Every string of a trace that a command may print."""
    build = eventful(path)
    build.write(Notice(5, f"slug{ESCAPES}", Severity.WARNING, f"text{ESCAPES}"))
    build.footer("moonlight")
    frames = []
    for frame in build.frames:
        if isinstance(frame, Header):
            frame = replace(frame, run_id=ESCAPES, name=f"name{ESCAPES}", tags={f"key{ESCAPES}": f"value{ESCAPES}"})
        if isinstance(frame, Engine):
            frame = replace(frame, adapter=ESCAPES, kv=replace(frame.kv, unit_name=f"unit{ESCAPES}"))
        if hasattr(frame, "reason") and isinstance(frame.reason, str):
            frame = replace(frame, reason=f"reason{ESCAPES}", text=f"told{ESCAPES}")
        frames.append(frame)
    rewritten(path, frames)


def harmless(text: str) -> None:
    assert not STEERING & set(text), sorted(map(hex, map(ord, STEERING & set(text))))


def test_the_words_of_a_trace_are_shown_without_what_steers(cbtrace: Cbtrace, tmp_path: Path) -> None:
    hostile(tmp_path / "run.cbt")
    info, check = cbtrace("info", "run.cbt"), cbtrace("check", "run.cbt")
    for result in (info, check):
        harmless(result.stdout + result.stderr)
    assert all(word in info.stdout for word in ("name", "key", "value", "unit", "told"))
    assert all(word in check.stdout for word in ("slug", "text", "told"))


@pytest.mark.parametrize("arguments", [["info", "run.cbt", "--json"], ["check", "run.cbt", "--json"]])
def test_json_is_escaped_and_means_the_same(cbtrace: Cbtrace, tmp_path: Path, arguments: list[str]) -> None:
    hostile(tmp_path / "run.cbt")
    shown = cbtrace(*arguments).stdout
    assert shown.isascii()
    harmless(shown)
    read = json.loads(shown)
    said = [read["name"]] if "name" in read else [found["meaning"] for found in read["traces"][0]["findings"]]
    assert any(ESCAPES in text for text in said)


def test_exports_are_escaped_too(cbtrace: Cbtrace, tmp_path: Path) -> None:
    hostile(tmp_path / "run.cbt")
    for to in ("json", "perfetto"):
        assert cbtrace("export", "run.cbt", "--to", to, "-o", f"out.{to}").returncode == 0
        harmless((tmp_path / f"out.{to}").read_text())


@pytest.mark.parametrize("content", ["sound", "cut", "newer", "text", "absent"])
def test_a_file_name_is_shown_without_what_steers(cbtrace: Cbtrace, tmp_path: Path, content: str) -> None:
    path = tmp_path / NAME
    build = eventful(path)
    build.close()
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif content != "sound":
        path.write_bytes({"newer": b"CBTRACE\n\xff", "text": b"a text", "absent": b""}[content])
    if content == "absent":
        path.unlink()
    commands = (
        ["info", NAME],
        ["check", NAME],
        ["check", NAME, "--json"],
        ["export", NAME, "--to", "json", "-o", f"out{NAME}"],
        ["upgrade", NAME, "-o", "new.cbt"],
    )
    for arguments in commands:
        result = cbtrace(*arguments)
        assert "Traceback" not in result.stderr
        harmless(result.stdout + result.stderr)
        assert result.stderr.count("\n") <= 1


def test_a_file_is_named_as_it_was_given(cbtrace: Cbtrace, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "run.cbt").write_text("a text")
    for arguments in (["info", "a/b/run.cbt"], ["export", "a/b/run.cbt", "--to", "csv", "-o", "out"]):
        assert cbtrace(*arguments).stderr.startswith("cbtrace: a/b/run.cbt is not a trace")
    assert cbtrace("check", "a").stdout.startswith("a/b/run.cbt: 1 finding")


def test_a_file_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    """Names of files are bytes, and need not be UTF-8."""
    TraceBuilder(tmp_path / "run.cbt").close()
    odd = b"odd\xff\xfe.cbt"
    (tmp_path / "run.cbt").rename(tmp_path / os.fsdecode(odd))
    for arguments in ([b"check", odd], [b"info", odd + b".absent"], [b"info", odd]):
        result = subprocess.run([bytes(COMMAND), *arguments], cwd=tmp_path, capture_output=True, check=False)
        assert b"Traceback" not in result.stderr, result.stderr
        assert result.returncode in (0, 1)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_show_what_is_said(tmp_path: Path, encoding: str) -> None:
    hostile(tmp_path / "run.cbt")
    for arguments in (["info", "run.cbt"], ["check", "run.cbt"], ["info", "absent\u4e2d.cbt"]):
        result = subprocess.run(
            [COMMAND, *arguments],
            cwd=tmp_path,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        )
        assert b"Traceback" not in result.stderr, result.stderr
