"""The same tokens as a timeline page of vLLM, as JSON timestamps, and as a trace with its site: time, size and memory.

``python benchmarks/beside_vllm.py PLOT.PY --packages FOLDER`` takes ``vllm/benchmarks/plot.py`` of a vLLM release,
which is not part of this repository, and a folder with plotly and pandas (``pip install --target FOLDER plotly
pandas``). A simulated schedule (:mod:`long_trace`) gives the tokens. Each way runs in a process of its own; memory is
by how much its resident set peaked above what it was before (Linux only). The page of vLLM has one bar a token; the
JSON is what its benchmark saves of each request (``ttfts`` and ``itls``), written and read. Ours is everything: the
trace is read, analyzed, and its whole site written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

TOKENS_A_STEP = 58
"""Of the schedule, on average: from how many tokens are asked for follows how many steps."""
Measured = dict[str, Any]


def main() -> None:
    """Run every way in turn, each in its own process, and print the figures beside one another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plot", type=Path, help="vllm/benchmarks/plot.py")
    parser.add_argument("--packages", type=Path, help="a folder with plotly and pandas")
    parser.add_argument("--tokens", type=int, default=128_000)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        if asked.packages:
            sys.path.insert(0, str(asked.packages))
        print(json.dumps(WAYS[asked.way](asked.folder, asked.plot)))
        return
    with tempfile.TemporaryDirectory() as folder:
        tokens = _record(Path(folder), asked.tokens)
        found = {way: _in_a_process(way, Path(folder)) for way in WAYS}
        _tell(tokens, found)
        _open(Path(folder))
    print(f"{platform.platform()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


def _record(folder: Path, tokens: int) -> int:
    """A trace of about so many tokens, and the same as results of vLLM's benchmark; returns how many there are."""
    from long_trace import write_long_trace
    from long_workload import Plan

    from cbtrace.traces import open_trace

    write_long_trace(folder / "run.cbt", Plan(max(1, tokens // TOKENS_A_STEP), 0))
    trace = open_trace(folder / "run.cbt")
    requests, rows = trace.requests, trace.tokens
    results = []
    for request, first in enumerate(requests.first_token_ns.tolist()):
        if first < 0:
            continue
        times = rows.time_ns[rows.request == request]
        submit, last = int(requests.submit_ns[request]), int(times[-1])
        results.append(
            {
                "start_time": submit / 1e9,
                "ttft": (first - submit) / 1e9,
                "itl": [gap / 1e9 for gap in (times[1:] - times[:-1]).tolist()],
                "latency": (last - submit) / 1e9,
                "prompt_len": int(requests.prompt_tokens[request]),
                "output_tokens": len(times),
            }
        )
    (folder / "results.json").write_text(json.dumps(results))
    return len(rows.step)


def _in_a_process(way: str, folder: Path) -> Measured:
    command = [sys.executable, *sys.argv, "--way", way, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


def _measured(act: Callable[[], object], made: Path) -> Measured:
    """What ``act`` took, once everything that it needs is imported and read; ``made`` is what it wrote."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    resident, before, begun = _memory("VmRSS"), os.times(), time.perf_counter()
    act()
    took, after = time.perf_counter() - begun, os.times()
    files = [made] if made.is_file() else [path for path in made.rglob("*") if path.is_file()]
    return {
        "s": took,
        "cpu_s": after.user + after.system - before.user - before.system,
        "bytes": sum(path.stat().st_size for path in files),
        "memory": _memory("VmHWM") - resident,
    }


def _memory(name: str) -> int:
    """A line of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _vllm_page(folder: Path, plot: Path) -> Measured:
    import pandas  # noqa: F401  # plotly imports it late
    import plotly.express  # noqa: F401

    # All that its imports need of vLLM: a stand-in for packages that are not installed.
    stub = ModuleType("vllm.utils.import_utils")
    stub.PlaceholderModule = _Absent  # type: ignore[attr-defined]
    sys.modules |= {"vllm": ModuleType("vllm"), "vllm.utils": ModuleType("vllm.utils"), stub.__name__: stub}
    spec = importlib.util.spec_from_file_location("plot", plot)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results, out = json.loads((folder / "results.json").read_text()), folder / "vllm.html"
    return _measured(lambda: module.generate_timeline_plot(results, out), out)


class _Absent:
    """A package that is not there: it is never used."""

    def __init__(self, name: str) -> None:
        self.name = name

    def placeholder_attr(self, name: str) -> _Absent:
        """Of such a package, too."""
        return self


def _json(folder: Path, _plot: Path) -> Measured:
    results, out = json.loads((folder / "results.json").read_text()), folder / "timestamps.json"
    saved = {"ttfts": [one["ttft"] for one in results], "itls": [one["itl"] for one in results]}
    return _measured(lambda: (out.write_text(json.dumps(saved)), json.loads(out.read_text())), out)


def _trace(folder: Path, _plot: Path) -> Measured:
    from cbtrace.traces import open_trace

    path = folder / "run.cbt"
    return _measured(lambda: open_trace(path).steps, path)


def _site(folder: Path, _plot: Path) -> Measured:
    from cbtrace.site.build import build_site

    out = folder / "site"
    return _measured(lambda: build_site([folder / "run.cbt"], out), out)


WAYS = {"vllm-page": _vllm_page, "cbtrace-site": _site, "json-timestamps": _json, "cbtrace-trace": _trace}


def _tell(tokens: int, found: dict[str, Measured]) -> None:
    print(f"{tokens:,} tokens")
    for way, one in found.items():
        per_token = f"{1e6 * one['cpu_s'] / tokens:.2f} us of CPU, {one['bytes'] / tokens:.1f} bytes"
        print(
            f"{way:16} {one['s']:6.2f} s, {one['cpu_s']:6.2f} s of CPU, {one['bytes'] / 1e6:7.2f} MB, "
            f"memory {one['memory'] / 1e6:6.1f} MB; a token: {per_token}, memory {one['memory'] / tokens:.0f} bytes"
        )
    for theirs, ours in (("vllm-page", "cbtrace-site"), ("json-timestamps", "cbtrace-trace")):
        ratios = (
            f"{name} {found[theirs][name] / max(1e-9, found[ours][name]):.1f}" for name in ("cpu_s", "bytes", "memory")
        )
        print(f"{theirs} / {ours}: " + ", ".join(ratios))


def _open(folder: Path) -> None:
    """How long a browser takes until each page is drawn, from the navigation on."""
    from pages import chromium, visit

    pages = {
        "vllm-page": (folder / "vllm.html", ".barlayer .point"),
        "cbtrace-site": (next(folder.glob("site/runs/*/index.html")), "[data-drawn]"),
    }
    with chromium() as browser:
        for way, (page, drawn) in pages.items():
            with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
                seen.page.set_default_timeout(300_000)
                begun = time.perf_counter()
                seen.goto(page)
                seen.page.wait_for_selector(drawn, state="attached")
                print(f"{way} is drawn after {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
