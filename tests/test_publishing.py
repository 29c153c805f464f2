"""The recipes of the README: a real nginx with its configuration, and the commands of its CI jobs."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser

from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.folder import STATE
from cbtrace.site.render import CONTENT_SECURITY_POLICY
from conftest import Cbtrace, started
from pages import visit
from site_runs import busy_run

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The blocks of code of that language in the section on publishing."""
    section = README.partition("\n## Publish\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def nginx() -> str:
    """The nginx that is installed, or the one that ``make test`` has unpacked."""
    unpacked = Path(sys.prefix) / "nginx" / "usr" / "sbin" / "nginx"
    found = which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or (str(unpacked) if unpacked.exists() else None)
    assert found is not None, "nginx is missing: run make nginx, or install it (Debian: apt-get install nginx)"
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    folder = tmp_path_factory.mktemp("published")
    busy_run(folder / "a.cbt", "baseline", requests=70, limit=60)
    busy_run(folder / "b.cbt", "slower", step_ns=1_100_000)
    return build_site(sorted(folder.glob("*.cbt")), folder / "site", title="Published")


@pytest.fixture(scope="module")
def port(site: BuildReport, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a real nginx serves the site, with the configuration of the README but for address and folder."""
    folder = tmp_path_factory.mktemp("nginx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    (block,) = blocks("nginx")
    block = block.replace("listen 80;", f"listen 127.0.0.1:{number};").replace(
        "root /srv/cbtrace;", f"root {site.out};"
    )
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    types = "types { text/html html; text/css css; application/javascript js; }"
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ {types} {temporary} access_log off;\n{block}\n}}\n"
    )
    with started([nginx(), "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf"]) as server:
        _wait_for(number, server)
        yield number
        server.terminate()


def _wait_for(port: int, server: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("nginx does not answer: its configuration is wrong, or another program took the port")


def head(port: int, path: str) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("HEAD", path, headers={"Accept-Encoding": "gzip"})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}


def test_nginx_sends_the_policy_and_lets_browsers_keep_what_is_hashed(site: BuildReport, port: int) -> None:
    style = next((site.out / "assets").glob("style.*.css"))
    for path, kept in (("/", "no-cache"), ("/compare.html", "no-cache"), (f"/assets/{style.name}", "max-age=31536000")):
        status, headers = head(port, path)
        assert status == 200, path
        assert headers["content-security-policy"] == f"{CONTENT_SECURITY_POLICY}; frame-ancestors 'none'", path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == kept
        assert headers["content-encoding"] == "gzip"
    assert head(port, "/")[1]["content-type"] == "text/html; charset=utf-8"
    assert (site.out / STATE / "files").exists()
    assert head(port, f"/{STATE}/files")[0] == 404


def test_every_page_works_from_nginx(browser: Browser, site: BuildReport, port: int) -> None:
    a, b = (Path(run.page).parent.name for run in site.runs)
    origin = f"http://127.0.0.1:{port}"
    for path in ("/", f"/runs/{a}/", f"/compare.html#a={a}&b={b}", "/metrics.html", "/about.html", "/messages.html"):
        with visit(browser) as seen:
            seen.page.goto(origin + path)
            if path.startswith("/runs"):
                seen.page.wait_for_selector("[data-drawn]")
                seen.page.click("[data-zoom=in]")  # finer data is loaded
            seen.page.wait_for_load_state("networkidle")
            assert [trouble for trouble in seen.troubles if not trouble.startswith(f"request: {origin}/")] == [], path


def jobs() -> list[dict[str, Any]]:
    """Every CI job of the README: its commands, and what it hands over."""
    found = []
    for text in blocks("yaml"):
        workflow = yaml.safe_load(text)
        for job in workflow.get("jobs", {"pages": workflow.get("pages")}).values():
            steps = job.get("steps", [])
            commands = job.get("script") or [step["run"] for step in steps if "run" in step]
            uploads = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
            found.append({"commands": commands, "uploads": uploads or job["artifacts"]["paths"]})
    return found


def test_the_commands_of_the_jobs_make_what_the_jobs_hand_over(cbtrace: Cbtrace, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    busy_run(tmp_path / "runs" / "after.cbt")
    assert len(jobs()) == 3
    for job in jobs():
        install, build = job["commands"]
        assert install == "pip install cbtrace"
        program, *arguments = shlex.split(build)
        assert program == "cbtrace"
        assert cbtrace(*arguments).returncode == 0
        (upload,) = job["uploads"]
        made = tmp_path / upload
        assert made.is_file() or (made / "index.html").is_file()
