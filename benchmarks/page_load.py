"""How heavy and how quick a run's page is: bytes at first load, time to the first chart, and reaction to a zoom.

Run ``python benchmarks/page_load.py`` in the development environment; it needs Chromium. The run has 5,000 steps and
500 requests. Each load is a new page of a headless browser that draws in software, from disk and without a cache; a
zoom counts from the click until the frame after the new window was painted, the loading of its finer points included.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from playwright.sync_api import Browser

from cbtrace.site.build import build_site
from pages import chromium, visit
from site_runs import crowded_run

GOALS = {"first chart, ms": 2000, "zoom, ms": 100}
MOVES = ("in", "in", "in", "left", "right", "out", "out", "reset")
ZOOM = """
(move) => new Promise((resolve) => {
  const place = document.querySelector("[data-chart=timeline]");
  const begun = performance.now();
  new MutationObserver((_changes, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - begun));
  }).observe(place, { attributeFilter: ["data-shown-window"] });
  document.querySelector(`[data-zoom="${move}"]`).click();
})
"""
WATCH = """
new MutationObserver(() => {
  if (!window.drawnAt && document.querySelector("[data-drawn]")) window.drawnAt = performance.now();
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""


def main() -> None:
    """Build the site, load the page several times and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=8)
    loads = parser.parse_args().loads
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.cbt"
        crowded_run(trace)
        begun = time.perf_counter()
        report = build_site([trace], Path(folder) / "site")
        print(f"built in {time.perf_counter() - begun:.2f} s, {report.bytes / 1e6:.2f} MB in {report.files} files")
        page = report.out / report.runs[0].page
        with chromium() as browser:
            found = [load(browser, page) for _ in range(loads)]
    print(f"first load {found[0][0] / 1e6:.2f} MB (goal 2.5)")
    tell("first chart, ms", [drawn for _, drawn, _ in found])
    tell("zoom, ms", [zoom for _, _, zooms in found for zoom in zooms])
    print(f"load average of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def load(browser: Browser, page: Path) -> tuple[int, float, list[float]]:
    """Bytes loaded at first, milliseconds from the navigation to the first chart, and those of each zoom."""
    sizes: list[int] = []
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        seen.page.on("request", lambda request: sizes.append(size_of(request.url)))
        seen.page.add_init_script(WATCH)
        seen.goto(page)
        seen.page.wait_for_selector("[data-drawn]")
        first = sum(sizes)
        seen.page.wait_for_timeout(500)
        zooms = [float(seen.page.evaluate(ZOOM, move)) for move in MOVES]
        return first, float(seen.ask("window.drawnAt")), zooms


def size_of(url: str) -> int:
    """Bytes of a file that the page asks for."""
    return Path(url.removeprefix("file://").partition("#")[0]).stat().st_size


def tell(name: str, values: list[float]) -> None:
    """Print the median, p95 and worst of ``values`` beside the goal."""
    p50, p95 = np.percentile(values, (50, 95))
    print(f"{name}: p50 {p50:.0f}, p95 {p95:.0f}, worst {max(values):.0f} of {len(values)} (goal {GOALS[name]})")


if __name__ == "__main__":
    main()
