"""Accessibility in a real Chromium: axe-core finds nothing serious, and the keyboard reaches everything."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.words import LANGUAGES
from pages import Visit, visit
from site_runs import busy_run, troubled_run

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildReport]:
    """The same runs in each language."""
    folder = tmp_path_factory.mktemp("accessible")
    busy_run(folder / "a.cbt", "baseline", stall_step=20, tags={"kind": "test"})
    busy_run(folder / "b.cbt", "slower", step_ns=1_100_000)
    cut = folder / "c.cbt"
    troubled_run(cut)
    cut.write_bytes(cut.read_bytes()[:-40])  # a banner and badges
    traces = sorted(folder.glob("*.cbt"))
    return {language: build_site(traces, folder / language, title="Runs", language=language) for language in LANGUAGES}


@pytest.fixture(scope="module")
def site(sites: dict[str, BuildReport]) -> BuildReport:
    return sites["en"]


def grave(seen: Visit) -> list[str]:
    """Findings of axe that are serious or critical, with where they are."""
    seen.page.evaluate(AXE)
    result = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{found['id']}: {found['help']}: {[node['target'] for node in found['nodes']][:3]}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "run", "cut", "compare", "metrics", "about", "messages", "keys"])
def test_axe_finds_nothing_serious(
    browser: Browser, sites: dict[str, BuildReport], name: str, scheme: str, language: str
) -> None:
    site = sites[language]
    a, b, c = (Path(run.page).parent.name for run in site.runs)
    pages = {
        "run": (f"runs/{a}/index.html", "#request=1&step=20&slo=ttft:50", "[data-request-shown]"),
        "cut": (f"runs/{c}/index.html", "", "[data-drawn]"),
        "compare": ("compare.html", f"#a={a}&b={b}", "#distribution-e2e_ms canvas"),
    }
    path, fragment, ready = pages.get(name, ("index.html" if name == "keys" else f"{name}.html", "", "main"))
    with visit(browser, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as seen:
        seen.goto(site.out / path, fragment)
        seen.page.wait_for_selector(ready)
        if name == "keys":
            seen.page.keyboard.press("?")
        seen.page.wait_for_timeout(200)
        assert grave(seen) == []


def test_axe_would_notice(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "index.html")
        seen.page.evaluate("document.querySelector('main').innerHTML = '<img src=x><button></button>'")
        assert any("image-alt" in found for found in grave(seen))


def test_the_keyboard_alone_leads_from_the_index_to_a_comparison(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "index.html")
        press = seen.page.keyboard.press
        press("Tab")
        assert seen.ask("document.activeElement.className") == "skip"
        press("Enter")
        assert seen.ask("document.activeElement.id") == "main"
        for column, run in (("a", 0), ("b", 1)):
            slug = Path(site.runs[run].page).parent.name
            seen.page.focus(f'tr[data-run="{slug}"] input[name={column}]')
            press("Space")
        press("c")
        seen.page.wait_for_selector("[data-shown]")
        assert seen.troubles == []


def test_everything_that_can_be_clicked_can_be_reached_by_tab(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / site.runs[0].page)
        seen.page.wait_for_selector("[data-drawn]")
        unreachable = seen.ask(
            """Array.from(document.querySelectorAll("a[href], button, input, select, summary"))
              .filter((it) => it.checkVisibility() && it.tabIndex < 0).map((it) => it.outerHTML)"""
        )
        assert unreachable == []
        seen.page.focus("[data-chart=timeline]")
        before = seen.text("[data-window]")
        seen.page.keyboard.press("+")
        expect(seen.page.locator("[data-window]")).not_to_have_text(before)  # drawn in one of the next frames


def test_headings_are_in_order_on_every_page(browser: Browser, site: BuildReport) -> None:
    for path in site.out.rglob("*.html"):
        with visit(browser) as seen:
            seen.goto(path)
            levels = seen.ask('Array.from(document.querySelectorAll("h1,h2,h3,h4"), (it) => Number(it.tagName[1]))')
            assert levels.count(1) == 1, path
            assert all(after - before <= 1 for before, after in pairwise(levels)), path


def test_nothing_moves_where_motion_is_not_wanted(browser: Browser, site: BuildReport) -> None:
    with visit(browser, reduced_motion="reduce") as seen:
        seen.goto(site.out / site.runs[0].page)
        moving = seen.ask(
            """Array.from(document.querySelectorAll("*")).filter((it) => {
              const style = getComputedStyle(it);
              return style.animationName !== "none" || !/^(0s,? ?)+$/.test(style.transitionDuration)
                || style.scrollBehavior === "smooth";
            }).map((it) => it.outerHTML.slice(0, 80))"""
        )
        assert moving == []


def test_a_chart_says_what_it_shows(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / site.runs[0].page, "#requests")
        seen.page.wait_for_selector("[data-drawn-lanes]")
        names = seen.ask('Array.from(document.querySelectorAll("[data-chart]"), (it) => it.getAttribute("aria-label"))')
        assert all(names)
        assert "Vega visualization" not in names


def test_the_page_can_be_printed(browser: Browser, site: BuildReport, tmp_path: Path) -> None:
    with visit(browser, viewport={"width": 1000, "height": 900}) as seen:
        seen.goto(site.out / site.runs[0].page)
        seen.page.wait_for_selector("[data-drawn]")
        pdf = seen.page.pdf(path=tmp_path / "page.pdf", format="A4")
        assert pdf.startswith(b"%PDF")
        seen.page.emulate_media(media="print")
        assert not seen.page.is_visible("header nav")
        assert seen.page.is_visible("#latency")
