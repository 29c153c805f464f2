"""A real ``transformers serve --continuous-batching`` under recording, with a real client that streams from it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbtrace.traces import open_trace
from cbtrace.traces.schema import EndReason, RequestFlag
from conftest import COMMAND, PROGRAMS, started

NEW_TOKENS = 20


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    subprocess.run([sys.executable, PROGRAMS / "chat_model.py", folder], check=True, capture_output=True, timeout=120)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_healthy(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    raise AssertionError(f"the server did not come up:\n{log.read_text()}")


def stream(port: int, model: Path) -> int:
    """Stream one answer to its end; return how many pieces of data came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {
        "model": str(model),
        "stream": True,
        "max_tokens": NEW_TOKENS,
        "messages": [{"role": "user", "content": "What is a block?"}],
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    pieces = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    connection.close()
    return len(pieces)


@pytest.fixture
def server(chat_model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A recorded server that is up, and its port. Its output goes to ``log``, its trace to ``run.cbt``."""
    port = free_port()
    sizes = ["--cb-num-blocks", "64", "--cb-block-size", "16", "--cb-max-batch-tokens", "128"]
    address = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    line = ["transformers", "serve", chat_model, "--continuous-batching", *sizes, *address]
    command = [COMMAND, "record", "-o", "run.cbt", "--", *line]
    with open(tmp_path / "log", "wb") as log, started(command, cwd=tmp_path, stdout=log, stderr=log) as process:
        wait_until_healthy(port, process, tmp_path / "log")
        yield process, port
        process.kill()


def check_recorded(folder: Path, pieces: int) -> None:
    said = (folder / "log").read_text()
    assert "Finished server process" in said and f"cbtrace: recorded {folder / 'run.cbt'}" in said, said
    trace = open_trace(folder / "run.cbt")
    assert trace.recovery.status == "clean"
    (reason,), (generated,) = trace.requests.end_reason.tolist(), trace.requests.generated.tolist()
    assert reason in (EndReason.EOS, EndReason.LENGTH)
    # A piece is sent when the bytes so far are text, so there are fewer pieces with text than tokens. Three hold none.
    assert pieces - 3 <= generated <= NEW_TOKENS and len(trace.tokens.time_ns) == generated
    assert trace.requests.flags.tolist() == [RequestFlag.STREAMING]


def test_a_server_is_recorded_until_it_is_terminated(
    server: tuple[subprocess.Popen[bytes], int], chat_model: Path, tmp_path: Path
) -> None:
    process, port = server
    pieces = stream(port, chat_model)
    assert pieces > 3, "the answer came in pieces"
    process.terminate()
    assert process.wait(timeout=120) == -signal.SIGTERM
    check_recorded(tmp_path, pieces)


def test_a_server_is_recorded_until_it_is_interrupted(
    server: tuple[subprocess.Popen[bytes], int], chat_model: Path, tmp_path: Path
) -> None:
    process, port = server
    pieces = stream(port, chat_model)
    assert pieces > 3, "the answer came in pieces"
    # After a request, one Ctrl-C stops the server, but its generation thread keeps the process: Transformers does so
    # without cbtrace too. A second one ends it.
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode in (1, -signal.SIGINT)
    check_recorded(tmp_path, pieces)
