"""How heavy and how quick a run's page is: bytes at first load, time to the first chart, and reaction to a zoom.

Run ``python benchmarks/page_load.py`` in the development environment; it needs Chromium. The run has 5,000 steps and
500 requests; the figures are medians of several loads from disk in a headless browser that draws in software.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cbtrace.site.build import build_site
from pages import chromium, visit
from site_runs import crowded_run

ZOOM = """
() => new Promise((resolve) => {
  const place = document.querySelector("[data-chart=timeline]");
  const begun = performance.now();
  new MutationObserver((_changes, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - begun));
  }).observe(place, { attributeFilter: ["data-shown-window"] });
  document.querySelector('[data-zoom="in"]').click();
})
"""


def main() -> None:
    """Build the site, load the page several times and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=5)
    loads = parser.parse_args().loads
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.cbt"
        crowded_run(trace)
        begun = time.perf_counter()
        report = build_site([trace], Path(folder) / "site")
        print(f"built in {time.perf_counter() - begun:.2f} s, {report.bytes / 1e6:.2f} MB in {report.files} files")
        page = report.out / report.runs[0].page
        sizes, drawn, zooms = [], [], []
        with chromium() as browser:
            for _ in range(loads):
                with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
                    size = 0

                    def count(request: object) -> None:
                        nonlocal size
                        size += Path(request.url.removeprefix("file://").partition("#")[0]).stat().st_size  # type: ignore[attr-defined]

                    seen.page.on("request", count)
                    begun = time.perf_counter()
                    seen.goto(page)
                    seen.page.wait_for_selector("[data-drawn]")
                    drawn.append(time.perf_counter() - begun)
                    sizes.append(size)
                    seen.page.wait_for_timeout(500)
                    zooms += [seen.page.evaluate(ZOOM) for _ in range(3)]
        print(f"first load {sizes[0] / 1e6:.2f} MB")
        print(f"first chart drawn after {statistics.median(drawn):.2f} s (of {loads} loads; worst {max(drawn):.2f} s)")
        print(f"zoom drawn after {statistics.median(zooms):.0f} ms (of {len(zooms)}; worst {max(zooms):.0f} ms)")


if __name__ == "__main__":
    main()
