"""The page of a run in a real Chromium: goodput, hybrid models, print, messages, and how quickly it reacts."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.build import BuildReport, build_site
from cbtrace.traces.schema import Frame, Header, Notice, Severity
from pages import Visit, visit
from site_runs import busy_run, crowded_run, troubled_run
from test_site_kv_groups import run as hybrid_run
from test_site_memory_budget import recorded as recorded_memory
from trace_builder import TraceBuilder

ZOOM = """
(move) => new Promise((resolve) => {
  const place = document.querySelector("[data-chart=timeline]");
  const begun = performance.now();
  new MutationObserver((_changes, observer) => {
    observer.disconnect();
    resolve(performance.now() - begun);
  }).observe(place, { attributeFilter: ["data-shown-window"] });
  document.querySelector(`[data-zoom="${move}"]`).click();
})
"""
COLORS = """
(selector) => {
  const canvas = document.querySelector(selector);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Map();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] < 255) continue;
    const color = `${data[i]},${data[i + 1]},${data[i + 2]}`;
    seen.set(color, (seen.get(color) || 0) + 1);
  }
  return Object.fromEntries(seen);
}
"""


class OneOfTwo(TraceBuilder):
    """A builder whose header is that of a rank."""

    def write(self, frame: Frame) -> None:
        if isinstance(frame, Header):
            frame.rank, frame.world_size = 1, 2
        super().write(frame)


def rank(path: Path) -> None:
    """The second of two ranks, with a notice that the page of messages knows and one that it does not."""
    build = OneOfTwo(path, name="rank")
    build.write(Notice(0, "no-nvml", Severity.INFO, "the model is not on an NVIDIA GPU"))
    build.write(Notice(0, "of-tomorrow", Severity.WARNING, "something new"))
    request = build.submit(3, 2)
    build.admit(request)
    build.step({request: 3})
    build.close()  # the request still runs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    folder = tmp_path_factory.mktemp("run")
    busy_run(folder / "a.cbt", "busy")
    troubled_run(folder / "b.cbt")
    hybrid_run(folder / "c.cbt")
    crowded_run(folder / "d.cbt", steps=3000, requests=300)
    rank(folder / "e.cbt")
    recorded_memory(folder / "g-gpu.cbt", name="gpu").close()
    cut = folder / "f.cbt"
    busy_run(cut, "cut")
    cut.write_bytes(cut.read_bytes()[:-30])
    return build_site(sorted(folder.glob("*.cbt")), folder / "site", title="Runs")


def page(site: BuildReport, name: str) -> Path:
    return site.out / next(run.page for run in site.runs if run.name == name)


def opened(seen: Visit, site: BuildReport, name: str, fragment: str = "") -> Visit:
    seen.goto(page(site, name), fragment)
    seen.page.wait_for_selector("[data-drawn]")
    return seen


def test_goodput_follows_the_limits_and_is_part_of_the_link(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "troubled")
        assert "6 requests are judged; 3 of them failed" in seen.text("#goodput")
        seen.page.fill("[data-slo=e2e]", "1000")
        seen.page.locator("[data-goodput]", has_text="3 of 6 requests met every limit (50 %)").wait_for()
        seen.page.fill("[data-slo=ttft]", "0")
        seen.page.locator("[data-goodput]", has_text="0 of 6").wait_for()
        link = seen.page.url
        assert "slo=ttft" in link
        seen.page.goto("about:blank")
        seen.page.goto(link)
        seen.page.locator("[data-goodput]", has_text="0 of 6").wait_for()
        seen.page.fill("[data-slo=ttft]", "")
        seen.page.fill("[data-slo=e2e]", "")
        assert seen.text("[data-goodput]") == ""
        assert "slo" not in seen.page.url
        assert seen.troubles == []


def test_a_hybrid_model_shows_its_groups_over_time_and_in_a_table(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "synthetic")
        assert "KV of sliding_attention" in seen.text("#timeline .legend")
        rows = seen.page.locator("#kv table").nth(1).locator("tbody tr").all_inner_texts()
        assert rows[0].startswith("sliding_attention")
        assert rows[1].startswith("full_attention")
        titles = seen.ask(
            "cbtrace.timeline.panels.length && Array.from("
            "cbtrace.table(cbtrace.arrived.get(document.body.dataset.key).rows).group_used_1, (bytes) => bytes / 1024)"
        )
        assert titles == [2, 3, 1, 2, 3, 3, 3]
        assert seen.troubles == []


def test_the_memory_of_the_gpu_is_a_bar_of_its_table(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "gpu")
        seen.page.wait_for_selector("[data-drawn-memory]")
        painted = seen.page.evaluate(COLORS, "[data-chart=memory] canvas")
        weights, cache = painted["143,127,181"], painted["79,109,148"]  # 10 and 50 of 100 GiB
        assert cache / weights == pytest.approx(5, rel=0.05)
        assert seen.troubles == []


def test_a_zoom_is_painted_within_a_tenth_of_a_second(browser: Browser, site: BuildReport) -> None:
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        opened(seen, site, "crowded")
        seen.page.evaluate(ZOOM, "in")  # loads the finer points
        took = [seen.page.evaluate(ZOOM, move) for move in ("in", "left", "right", "out", "in") * 4]
        assert statistics.median(took) < 100
        assert seen.troubles == []


def test_a_page_printed_by_a_reader_of_dark_pages_is_printed_on_white(
    browser: Browser, site: BuildReport, tmp_path: Path
) -> None:
    with visit(browser, color_scheme="dark", viewport={"width": 1000, "height": 900}) as seen:
        opened(seen, site, "busy")
        dark = seen.page.evaluate(COLORS, "[data-chart=timeline] canvas")
        seen.page.emulate_media(media="print")
        frame = "187,187,187"  # of the panels on paper
        assert frame not in dark
        for _ in range(50):  # a busy browser tells its pages late
            paper = seen.page.evaluate(COLORS, "[data-chart=timeline] canvas")
            if frame in paper:
                break
            seen.page.wait_for_timeout(100)
        assert frame in paper
        background = seen.ask("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        assert not seen.page.is_visible("[data-zoom=in]")
        assert seen.page.pdf(path=tmp_path / "page.pdf", format="A4").startswith(b"%PDF")


def test_messages_are_linked_where_there_is_one(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "cut")
        link = seen.page.get_attribute(".banner a", "href") or ""
        assert link.startswith("../../messages.html#")
        seen.page.click(".banner a")
        seen.page.wait_for_url("**/messages.html#*")
        assert seen.ask("document.querySelector(':target') !== null")
        opened(seen, site, "rank")
        said = seen.page.locator("#recording li")
        assert said.filter(has_text="no-nvml").locator("a").count() == 1
        assert said.filter(has_text="of-tomorrow").locator("a").count() == 0


def test_a_rank_and_a_recording_that_ended_too_soon_say_so(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "rank")
        assert "rank 1 of a tensor-parallel run over 2 processes" in seen.text("#about-rank")
        assert "warnings" in seen.text("h1 .badge")
        assert "still running" in seen.text("#about-running")
        assert "closed by the recorder" in seen.text("#recording")


def test_a_drag_over_the_lanes_chart_never_breaks_and_a_click_opens_the_request(
    browser: Browser, site: BuildReport
) -> None:
    with visit(browser, viewport={"width": 1000, "height": 1000}) as seen:
        opened(seen, site, "busy", "#requests")
        lanes = seen.page.wait_for_selector("[data-drawn-lanes]")
        assert lanes is not None
        lanes.click(position={"x": 300, "y": 40})
        seen.page.wait_for_selector("[data-request-shown]")
        panel = seen.text("[data-request-panel]")
        assert "Its KV cache, one row an admission" in panel
        assert seen.troubles == []
