"""How quick the page of a long run is in a browser: first load, every level of zoom, steps, requests, and memory.

``python benchmarks/long_page.py RUN.cbt`` builds the site of a trace (:mod:`long_trace` writes long ones) and opens it
from disk in a headless Chromium that draws in software; ``--site FOLDER`` takes a site that is built. A tour zooms at
several places from the whole run down to a single step, opens steps with their members and requests with their lives,
and finds others by number, by id and by window. A zoom counts from the call until the frame after it was painted, the
loading of its files included; the heap is what Chromium says at the end of the tour, before and after a collection.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from page_load import WATCH, size_of
from playwright.sync_api import Browser, CDPSession

from cbtrace.site.build import build_site
from pages import Visit, chromium, visit

GOALS = {"overview drawn, ms": 2000, "zoom, ms": 300, "heap, MB": 300, "first load, MB": 3}
WORST = {
    "slowest gap": "#gap-1",
    "most recomputing": "#most-recompute",
    "first that did not complete": "#unfinished-requests tbody tr:first-child",
}
"""Rows of the lists of the worst, which have a planted stall, soft reset and cancelled request."""
ZOOM = """
([from, to]) => new Promise((resolve) => {
  const place = document.querySelector("[data-chart=timeline]");
  const told = document.querySelector("[data-window]");
  const begun = performance.now();
  let painted = false;
  new MutationObserver(() => {
    painted = true;
  }).observe(place, { attributeFilter: ["data-shown-window"] });
  cbtrace.showWindow(from, to).then(function look() {
    requestAnimationFrame(painted ? () => resolve([performance.now() - begun, told.textContent]) : look);
  });
})
"""
SHOWN = """
([state, selector]) => new Promise((resolve) => {
  const begun = performance.now();
  cbtrace.setState(state);
  (function look() {
    const there = document.querySelector(selector) !== null;
    requestAnimationFrame(there ? () => resolve(performance.now() - begun) : look);
  })();
})
"""
FIND = """
([field, value, event]) => new Promise((resolve) => {
  const begun = performance.now();
  const told = document.querySelector("[data-requests-shown]");
  new MutationObserver((_changes, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => resolve([performance.now() - begun, told.textContent]));
  }).observe(told, { childList: true, characterData: true, subtree: true });
  const input = document.querySelector(field);
  input.value = value;
  input.dispatchEvent(new Event(event));
})
"""


def main() -> None:
    """Build the site if asked, take the tour and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--site", type=Path, help="the folder of a site whose first run is looked at")
    parser.add_argument("--places", type=int, default=8, help="places to zoom into")
    asked = parser.parse_args()
    if (asked.trace is None) == (asked.site is None):
        parser.error("name a trace, or a site with --site")
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        site = asked.site or _built(asked.trace, Path(folder) / "site")
        page = next(site.glob("runs/*/index.html"))
        _tell_sizes(page.parent)
        _tour(browser, page, asked.places)
    print(f"{platform.platform()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")


def _built(trace: Path, out: Path) -> Path:
    begun, cpu = time.perf_counter(), time.process_time()
    report = build_site([trace], out)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"built in {took:.1f} s, {cpu:.1f} s of CPU: {report.bytes / 1e6:.1f} MB in {report.files} files")
    return report.out


def _tell_sizes(run: Path) -> None:
    """What the files of the run hold, by kind."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for path in run.iterdir():
        sizes[path.name.split(".")[0].rstrip("0123456789").rstrip("-")].append(path.stat().st_size)
    for kind, found in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        print(f"  {kind:18} {sum(found) / 1e6:7.2f} MB in {len(found):5} files, the largest {max(found) / 1e3:.0f} kB")


def _tour(browser: Browser, page: Path, places: int) -> None:
    """One visit: loads, zooms, steps, requests, and the heap at its end."""
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        sizes: list[int] = []
        seen.page.on("request", lambda request: sizes.append(size_of(request.url)))
        seen.page.add_init_script(WATCH)
        seen.goto(page)
        seen.page.wait_for_selector("[data-drawn]")
        _tell("first load, MB", [sum(sizes) / 1e6])
        seen.page.wait_for_timeout(500)
        _tell("overview drawn, ms", [float(seen.ask("window.drawnAt"))])
        _rare(seen)
        _zooms(seen, places)
        _steps(seen, places)
        _requests(seen)
        _heap(seen.page.context.new_cdp_session(seen.page))
        assert seen.troubles == [], seen.troubles
        print(f"loaded in all {sum(sizes) / 1e6:.1f} MB in {len(sizes)} files")


def _rare(seen: Visit) -> None:
    """What the overview has of the slowest step and of events, and whether a zoom leads to the step."""
    longest, names, marks = seen.ask("""(() => {
      const data = cbtrace.arrived.get(document.body.dataset.key);
      const [rows, marks] = [cbtrace.table(data.rows), cbtrace.table(data.marks)];
      const told = Array.from(marks.kind, (kind, i) => [kind, marks.count[i]]);
      return [Math.max(...rows.duration_max_us), data.mark_names, told];
    })()""")
    counts: Counter[str] = Counter()
    for kind, count in marks:
        counts[names[int(kind)]] += int(count)
    told = ", ".join(f"{count} x {name}" for name, count in counts.items())
    print(f"the overview has a step of {longest / 1e3:.0f} ms, and marks of {told or 'no event'}")
    for what, row in WORST.items():
        found = seen.page.locator(row)
        print(f"{what}: {' | '.join(found.locator('th, td').all_inner_texts()) if found.count() else 'none'}")
    window = str(seen.page.get_attribute("#gap-1 a[data-window-link]", "data-window-link")).split(",")
    for _ in range(3):
        _, told = seen.page.evaluate(ZOOM, [float(at) for at in window])
    print(f"zoomed to it: {told}")


def _zooms(seen: Visit, places: int) -> None:
    """From the whole run down to one step, at several places; what each level took."""
    first, last = seen.ask("cbtrace.span")
    took: dict[str, list[float]] = defaultdict(list)
    for place in np.linspace(0.02, 0.97, places):
        middle, width = first + place * (last - first), last - first
        while width > 0.02:
            spent, told = seen.page.evaluate(ZOOM, [middle - width / 2, middle + width / 2])
            took[told.partition(", ")[2]].append(spent)
            width /= 3
        seen.page.evaluate(ZOOM, [first, last])
    _tell("zoom, ms", [value for values in took.values() for value in values])
    for level, values in took.items():
        print(f"    {level}: p50 {np.median(values):.0f}, worst {max(values):.0f} of {len(values)}")


def _steps(seen: Visit, places: int) -> None:
    """Steps by their number, with all of their members."""
    count = int(seen.ask("cbtrace.arrived.get(document.body.dataset.key).steps"))
    took, members = [], []
    for step in np.linspace(3, count - 3, places).astype(int).tolist():
        took.append(float(seen.page.evaluate(SHOWN, [{"step": step}, f'[data-step="{step}"]'])))
        members.append(seen.page.locator("[data-step-panel] table").nth(1).locator("tbody tr").count())
    _tell("a step with its members, ms", took)
    print(f"    {min(members)} to {max(members)} members")


def _requests(seen: Visit) -> None:
    """Lanes, orders, a search over all ids, requests of a window, and single requests."""
    begun = time.perf_counter()
    seen.page.locator("#requests").scroll_into_view_if_needed()
    seen.page.wait_for_selector("[data-drawn-lanes]")
    _tell("lanes when they come into view, ms", [1000 * (time.perf_counter() - begun)])
    for order in ("ttft", "gap", "resets", "trouble"):
        _told(f"sorted by {order}", seen.page.evaluate(FIND, ["[data-requests-sort]", order, "change"]))
        print(f"    first: {seen.page.locator('[data-requests-rows] tbody tr').first.text_content()}")
    last = seen.ask("document.querySelector('[data-requests-rows] tbody tr th').textContent")
    _told(f"first search, for {last}", seen.page.evaluate(FIND, ["[data-requests-find]", last, "input"]))
    _told("next search", seen.page.evaluate(FIND, ["[data-requests-find]", last[:-1], "input"]))
    seen.page.evaluate(FIND, ["[data-requests-find]", "", "input"])
    count = int(seen.ask("cbtrace.requests.begin().then((head) => head.all)"))
    took = [
        float(seen.page.evaluate(SHOWN, [{"request": request}, f'[data-request-shown="{request}"]']))
        for request in np.linspace(0, count - 1, 8).astype(int).tolist()
    ]
    _tell("a request with its life, ms", took)


def _told(what: str, found: tuple[float, str]) -> None:
    print(f"{what}: {found[0]:.0f} ms ({found[1]})")


def _heap(session: CDPSession) -> None:
    """What Chromium says of the heap, and of the numbers in typed arrays, which it keeps beside the heap."""
    session.send("Performance.enable")

    def used() -> float:
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        return float(metrics["JSHeapUsedSize"]) / 1e6

    _tell("heap, MB", [used()])
    session.send("HeapProfiler.collectGarbage")
    beside = session.send("Runtime.getHeapUsage").get("backingStorageSize", float("nan")) / 1e6
    print(f"    after a collection {used():.1f} MB, and {beside:.1f} MB in typed arrays beside it")


def _tell(name: str, values: list[float]) -> None:
    goal = f" (goal {GOALS[name]})" if name in GOALS else ""
    if len(values) == 1:
        print(f"{name}: {values[0]:.4g}{goal}")
        return
    p50, p95 = np.percentile(values, (50, 95))
    print(f"{name}: p50 {p50:.0f}, p95 {p95:.0f}, worst {max(values):.0f} of {len(values)}{goal}")


if __name__ == "__main__":
    main()
