"""``cbtrace serve`` shows a site to this machine only, and ends quietly."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import COMMAND, Cbtrace, started


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<p>the site")
    (tmp_path / "secret.txt").write_text("not for everybody")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([COMMAND, "serve", "site", "--port", "0"], cwd=tmp_path, **pipes) as process:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found
        yield process, int(found[1])
        process.kill()


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": f"{host}:{port}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_serves_the_folder_and_nothing_else(served: tuple[subprocess.Popen[str], int]) -> None:
    _, port = served
    assert get(port, "/") == (200, b"<p>the site")
    assert get(port, "/index.html", host="localhost") == (200, b"<p>the site")
    assert get(port, "/../secret.txt")[0] == get(port, "/%2e%2e/secret.txt")[0] == 404


def test_answers_to_no_other_name(served: tuple[subprocess.Popen[str], int]) -> None:
    assert get(served[1], "/", host="elsewhere.example")[0] == 403


def test_listens_on_the_loopback_interface_only(served: tuple[subprocess.Popen[str], int]) -> None:
    with socket.socket() as probe:
        # Another loopback address stands for another interface: a server on all of them would answer.
        assert probe.connect_ex(("127.0.0.2", served[1])) != 0


def test_ends_cleanly_with_ctrl_c(served: tuple[subprocess.Popen[str], int]) -> None:
    process, _ = served
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")


def test_a_port_that_is_taken_is_an_error(served: tuple[subprocess.Popen[str], int], cbtrace: Cbtrace) -> None:
    result = cbtrace("serve", "site", "--port", str(served[1]))
    assert result.returncode == 1
    assert f"Port {served[1]} is taken" in result.stderr and result.stderr.endswith("[port-unavailable]\n")
