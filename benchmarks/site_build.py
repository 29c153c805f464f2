"""How long a site of many runs takes: built whole, built again, with one new run, and until its index can be used.

Run ``python benchmarks/site_build.py`` in the development environment; it needs Chromium. The runs are synthetic: a toy
scheduler (chunked prompts, decodes, soft resets, 10 requests at once, ``crowded_run`` of the tests) drives the real
writer, with other lengths in each run. No engine was involved, so only times and sizes mean anything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cbtrace.site.build import BuildReport, build_site
from pages import chromium, visit
from site_runs import crowded_run

FILTER = """
(words) => new Promise((resolve) => {
  const begun = performance.now();
  const field = document.querySelector("[name=q]");
  field.value = words;
  field.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begun)));
})
"""


def main() -> None:
    """Record the runs, build their site in several ways and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces = _record(Path(folder), asked.runs + 1, asked.steps)
        size = sum(path.stat().st_size for path in traces) / len(traces)
        print(
            f"{asked.runs} runs of {asked.steps} steps, {size / 1e3:.0f} kB a trace; {asked.jobs} processes; {_load()}"
        )
        site = Path(folder) / "site"
        report = _timed("full build", lambda: build_site(traces[:-1], site, jobs=asked.jobs))
        print(f"  {report.bytes / 1e6:.0f} MB in {report.files} files")
        _timed("nothing has changed", lambda: build_site(traces[:-1], site, jobs=asked.jobs))
        _timed("one new run", lambda: build_site(traces, site, jobs=asked.jobs))
        _open_index(report.out / "index.html")


def _record(folder: Path, runs: int, steps: int) -> list[Path]:
    paths = [folder / f"run-{number:04}.cbt" for number in range(runs)]
    with Pool(os.cpu_count()) as pool:
        pool.starmap(_record_one, [(path, steps, number) for number, path in enumerate(paths)])
    return paths


def _record_one(path: Path, steps: int, number: int) -> None:
    crowded_run(path, steps=steps, requests=max(1, steps // 10) + number % 50)


def _timed(what: str, act: Callable[[], BuildReport]) -> BuildReport:
    begun, cpu = time.perf_counter(), time.process_time()
    report = act()
    built = sum(not run.kept for run in report.runs)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"{what}: {took:.1f} s, {cpu:.1f} s of CPU in the first process; {built} runs built; {_load()}")
    return report


def _open_index(page: Path) -> None:
    loads, filters = [], []
    with chromium() as browser:
        for _ in range(5):
            with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
                begun = time.perf_counter()
                seen.page.goto(page.as_uri(), timeout=120_000)
                seen.page.wait_for_selector("#runs[data-ready]")
                loads.append(time.perf_counter() - begun)
                filters += [seen.page.evaluate(FILTER, words) for words in ("run-0042", "soft", "")]
    print(
        f"index of {page.stat().st_size / 1e3:.0f} kB usable after {statistics.median(loads):.2f} s "
        f"(worst {max(loads):.2f} s); a filtered view after {statistics.median(filters):.0f} ms "
        f"(worst {max(filters):.0f} ms); {_load()}"
    )


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
