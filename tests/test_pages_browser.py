"""The pages in a real Chromium, from ``file://``: drawn, silent, and right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.build import BuildReport, build_site
from pages import Visit, visit
from site_runs import HOSTILE, busy_run, troubled_run
from trace_builder import eventful

ENDLESS = "n" * 300
"""A name without a place to break it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    folder = tmp_path_factory.mktemp("pages")
    busy_run(folder / "a.cbt", "baseline", stall_step=20)
    busy_run(folder / "b.cbt", "slower", stall_step=20, step_ns=1_100_000)
    busy_run(folder / "c.cbt", "long", requests=140, limit=60)
    troubled_run(folder / "d.cbt")
    eventful(folder / "e.cbt").close()
    busy_run(folder / "f.cbt", HOSTILE, tags={HOSTILE: HOSTILE}, request_id=HOSTILE)
    busy_run(folder / "g.cbt", ENDLESS, tags={ENDLESS: ENDLESS}, request_id=ENDLESS)
    return build_site(sorted(folder.glob("*.cbt")), folder / "site", title=HOSTILE)


def slug(site: BuildReport, name: str) -> str:
    return next(Path(run.page).parent.name for run in site.runs if run.name == name)


def page_of(site: BuildReport, name: str) -> Path:
    return site.out / "runs" / slug(site, name) / "index.html"


def ink(seen: Visit, selector: str) -> float:
    """Share of a canvas's pixels that are not transparent: a blank chart has none."""
    script = f"""(() => {{
      const canvas = document.querySelector({json.dumps(selector)});
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let drawn = 0;
      for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
      return drawn / (data.length / 4);
    }})()"""
    return float(seen.ask(script))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_silent_and_every_chart_drawn(browser: Browser, site: BuildReport, scheme: str) -> None:
    for path in sorted(site.out.rglob("*.html")):
        with visit(browser, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as seen:
            seen.goto(path)
            if path.parent.parent.name == "runs":
                seen.page.wait_for_selector("[data-drawn]")
                assert ink(seen, "[data-chart] canvas") > 0.05
            seen.page.wait_for_timeout(50)
            assert seen.troubles == [], path


def test_without_javascript_the_numbers_are_there(browser: Browser, site: BuildReport) -> None:
    with visit(browser, java_script_enabled=False) as seen:
        seen.goto(site.out / "index.html")
        assert "baseline" in seen.text("#runs")
        assert seen.page.locator("#runs tbody tr").count() == len(site.runs)
        assert not seen.page.is_visible("input[type=radio]")
        seen.goto(page_of(site, "baseline"))
        run = next(run for run in site.runs if run.name == "baseline")
        assert f"{run.summary.ttft_ms.n}" in seen.text("#latency-ttft_ms")
        assert "Token gap" in seen.text("#latency")
        assert seen.page.locator("#slow-gaps tbody tr").count() > 0
        assert not seen.page.is_visible("figure")
        seen.goto(site.out / "compare.html")
        assert "needs JavaScript" in seen.text("main")


def test_headline_numbers_on_the_page_are_those_of_the_summary(browser: Browser, site: BuildReport) -> None:
    run = next(run for run in site.runs if run.name == "baseline")
    with visit(browser) as seen:
        seen.goto(site.out / run.page)
        cells = [cell.inner_text() for cell in seen.page.query_selector_all("#latency-e2e_ms td.num")]
        shown = [float(text.replace(",", "")) for text in cells[:4]]
        e2e = run.summary.e2e_ms
        assert shown == pytest.approx([e2e.p50, e2e.p95, e2e.p99, e2e.max], rel=0.01)
        assert int(cells[4]) == e2e.n == 12


def window(seen: Visit) -> tuple[float, float]:
    found = re.match(r"(-?[\d.]+)\N{EN DASH}(-?[\d.]+) s", seen.text("[data-window]"))
    assert found is not None
    return float(found[1]), float(found[2])


def test_the_timeline_zooms_by_drag_key_button_and_link(browser: Browser, site: BuildReport) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        seen.goto(page_of(site, "long"))
        seen.page.wait_for_selector("[data-drawn]")
        start, end = window(seen)
        assert "steps a point" in seen.text("[data-window]")
        chart = seen.page.locator("[data-chart=timeline]")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        seen.page.mouse.move(box["x"] + 300, box["y"] + 120)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + 380, box["y"] + 120, steps=4)
        seen.page.mouse.up()
        seen.page.locator("[data-window]", has_text="each step").wait_for()
        dragged = window(seen)
        assert start < dragged[0] < dragged[1] < end
        assert dragged[1] - dragged[0] < 0.12 * (end - start)
        assert "#t=" in seen.page.url
        link = seen.page.url
        seen.page.keyboard.press("-")
        assert window(seen)[1] - window(seen)[0] == pytest.approx(2 * (dragged[1] - dragged[0]), rel=0.05)
        seen.page.click('[data-zoom="reset"]')
        assert window(seen) == (start, end)
        assert "#" not in seen.page.url
        seen.page.goto("about:blank")
        seen.page.goto(link)
        seen.page.wait_for_selector("[data-drawn]")
        assert window(seen) == pytest.approx(dragged, abs=0.002)
        chart.hover(position={"x": 400, "y": 120})
        assert "prefill" in seen.text("[data-readout]")
        assert seen.troubles == []


def test_a_one_step_stall_is_on_the_chart_and_in_the_table(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(page_of(site, "baseline"))
        seen.page.wait_for_selector("[data-drawn]")
        data = seen.ask(
            "Array.from(cbtrace.table(cbtrace.arrived.get(document.body.dataset.key).rows).duration_max_us)"
        )
        assert max(data) > 40_000
        assert seen.page.get_attribute("#gap-1 a[data-window-link]", "href") == "#step-20"
        seen.page.click("#gap-1 a[data-window-link]")
        assert window(seen)[1] - window(seen)[0] < 0.4
        assert seen.page.evaluate("document.querySelector(':target').id") == "step-20"


def test_the_keyboard_list_opens_and_closes(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(page_of(site, "baseline"))
        seen.page.keyboard.press("?")
        assert seen.page.is_visible("#keys")
        assert "Zoom the timeline" in seen.text("#keys")
        seen.page.keyboard.press("Escape")
        assert not seen.page.is_visible("#keys")


@pytest.mark.parametrize("width", [320, 360, 768, 2560])
def test_no_page_is_wider_than_the_screen(browser: Browser, site: BuildReport, width: int) -> None:
    pages = [page_of(site, "baseline"), *site.out.glob("*.html"), page_of(site, HOSTILE), page_of(site, ENDLESS)]
    for path in pages:
        with visit(browser, viewport={"width": width, "height": 800}) as seen:
            fragment = f"#a={slug(site, 'baseline')}&b={slug(site, HOSTILE)}" if path.name == "compare.html" else ""
            seen.goto(path, fragment)
            if fragment:
                seen.page.wait_for_selector("[data-shown]")
            seen.page.wait_for_timeout(300)
            assert seen.ask("document.documentElement.scrollWidth") <= width, path
            assert seen.troubles == [], path


def test_hostile_names_are_shown_as_text(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "index.html")
        shown = HOSTILE.replace("\u202e", "\ufffd").replace("\u202c", "\ufffd")
        assert shown in seen.ask('document.getElementById("runs").textContent')
        seen.goto(site.out / "compare.html", f"#a={slug(site, 'baseline')}&b={slug(site, HOSTILE)}")
        seen.page.wait_for_selector("[data-shown]")
        assert seen.ask('document.querySelectorAll("main b, main script").length') == 0
        assert seen.troubles == []


def test_a_click_on_a_step_shows_who_was_in_it(browser: Browser, site: BuildReport) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        seen.goto(page_of(site, "baseline"))
        seen.page.wait_for_selector("[data-drawn]")
        seen.page.locator("[data-chart=timeline]").click(position={"x": 400, "y": 120})
        seen.page.wait_for_selector("[data-step]")
        step = int(seen.page.get_attribute("[data-step-panel]", "data-step") or "")
        assert f"#step={step}" in seen.page.url
        assert f"Step {step}" in seen.text("[data-step-panel] h3")
        assert seen.page.locator("[data-step-panel] tbody tr").count() >= 2
        seen.page.click("[data-step-panel] button >> text=Next step")
        seen.page.wait_for_selector(f'[data-step="{step + 1}"]')
        link = seen.page.url
        seen.page.goto("about:blank")
        seen.page.goto(link)
        seen.page.wait_for_selector(f'[data-step="{step + 1}"]')
        seen.page.click("[data-step-panel] button >> text=Close")
        assert not seen.page.is_visible("[data-step-panel]")
        assert seen.troubles == []


def test_a_request_tells_its_life_its_cut_and_its_gaps(browser: Browser, site: BuildReport) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        seen.goto(page_of(site, "baseline"))
        seen.page.wait_for_selector("[data-drawn]")
        seen.page.click("#ttft-1 a")
        seen.page.wait_for_selector("[data-request-shown]")
        assert "#request=" in seen.page.url
        panel = seen.text("[data-request-panel]")
        assert "Where its TTFT of" in panel
        assert "Its longest token gaps" in panel
        seen.page.wait_for_selector("[data-drawn-lanes] canvas")
        assert ink(seen, "[data-chart=lanes] canvas") > 0.05
        seen.page.select_option("[data-requests-sort]", "ttft")
        seen.page.click("[data-requests-table] summary")
        cells = seen.page.locator("[data-requests-rows] tbody tr td:nth-child(5)").all_inner_texts()
        shown = [float(cell.replace(",", "")) for cell in cells]
        assert shown == sorted(shown, reverse=True)
        seen.page.fill("[data-requests-find]", "req_1")
        seen.page.locator("[data-requests-shown]", has_text="of 3").wait_for()  # req_1, req_10 and req_11
        seen.page.fill("[data-requests-find]", "no such request")
        seen.page.locator("[data-requests-shown]", has_text="No request matches").wait_for()
        assert seen.troubles == []
