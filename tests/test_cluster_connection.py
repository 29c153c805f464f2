"""Why a cluster cannot be joined: one sentence each, before anything is written. No cluster is needed for these."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND
from test_experiments_runner import plan

WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from cbtrace.commands import main; main()"


@pytest.fixture
def web_server() -> Iterator[str]:
    """Something that answers and is no cluster."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(folder: Path, *arguments: str | Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    (folder / "plan.toml").write_text(plan())
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)


def said(done: subprocess.CompletedProcess[str], folder: Path, code: int, slug: str) -> str:
    """The one sentence; nothing was written."""
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("cbtrace: ") and line.endswith(f"[{slug}]")
    assert not (folder / "x").exists()
    return line


def test_without_ray_it_is_told_what_to_install(tmp_path: Path) -> None:
    for command in (("run", "plan.toml"), ("build", "plan.toml")):
        done = run(tmp_path, sys.executable, "-c", WITHOUT_RAY, *command, "-o", "x", "--on", "ray")
        assert "pip install 'cbtrace[ray]'" in said(done, tmp_path, 2, "ray-missing")


@pytest.mark.parametrize(
    ("address", "code", "slug", "text"),
    [
        ("127.0.0.1:9", 1, "cluster-unreachable", "No Ray cluster answers at 127.0.0.1:9 (connection refused)"),
        ("nosuch.invalid:6379", 1, "cluster-unreachable", "No Ray cluster answers at nosuch.invalid:6379"),
        ("nonsense", 2, "cluster-address", "write HOST:PORT"),
        ("127.0.0.1:99999", 2, "cluster-address", "write HOST:PORT"),
        ("ray://me:hunter2@host:10001", 2, "cluster-address", "'ray://***@host:10001' is no address"),
    ],
)
def test_an_address_without_a_cluster(tmp_path: Path, address: str, code: int, slug: str, text: str) -> None:
    done = run(tmp_path, COMMAND, "run", "plan.toml", "-o", "x", "--on", "ray", "--address", address)
    sentence = said(done, tmp_path, code, slug)
    assert text in sentence and "hunter2" not in sentence


def test_something_else_answers(tmp_path: Path, web_server: str) -> None:
    done = run(tmp_path, COMMAND, "run", "plan.toml", "-o", "x", "--on", "ray", "--address", web_server)
    assert "nothing there answered as a cluster does within 30 s" in said(done, tmp_path, 1, "cluster-unreachable")
