"""The table of runs in a real Chromium: find, group, sort and choose, with thousands of rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.assets import site_assets, site_chrome
from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.folder import write_texts
from cbtrace.site.pages.index import IndexRow, index_page
from cbtrace.site.run_files import RunSource, digest_file, run_files
from cbtrace.site.words import load_words
from pages import Visit, visit
from site_runs import HOSTILE, busy_run, troubled_run

MANY = 3000
ROWS = "#runs tbody tr[data-run]"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    folder = tmp_path_factory.mktemp("index")
    busy_run(folder / "a.cbt", "baseline", tags={"experiment": "blocks", "variant": "64"})
    busy_run(folder / "b.cbt", "slower", step_ns=1_100_000, tags={"experiment": "blocks", "variant": "96"})
    busy_run(folder / "c.cbt", "alone", requests=3)
    troubled_run(folder / "d.cbt")
    busy_run(folder / "e.cbt", HOSTILE, tags={"experiment": HOSTILE, HOSTILE: HOSTILE}, step_ns=900_000)
    return build_site(sorted(folder.glob("*.cbt")), folder / "site", title="Runs")


def slug(site: BuildReport, name: str) -> str:
    return next(Path(run.page).parent.name for run in site.runs if run.name.startswith(name))


def shown(seen: Visit) -> list[str]:
    """The slugs of the rows that are shown, in order."""
    return list(seen.ask(f"Array.from(document.querySelectorAll({json.dumps(ROWS)}), (row) => row.dataset.run)"))


def opened(seen: Visit, site: BuildReport, fragment: str = "") -> None:
    seen.goto(site.out / "index.html", fragment)


def test_a_column_sorts_up_and_down_with_what_is_unknown_last(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "#group=none")
        header = seen.page.locator("#runs th", has_text="E2E p95")
        column = header.evaluate("(cell) => cell.cellIndex")
        read = f"Array.from(document.querySelectorAll('{ROWS}'), (row) => Number(row.cells[{column}].dataset.value))"
        for order, reverse in (("ascending", False), ("descending", True)):
            header.locator("button").click()
            assert header.get_attribute("aria-sort") == order
            values = seen.ask(read)
            assert values == sorted(values, reverse=reverse) and len(set(values)) > 2
        assert "sort=-e2e_ms.p95" in seen.page.url
        memory = seen.page.locator("#runs th", has_text="Peak")
        column = memory.evaluate("(cell) => cell.cellIndex")
        for _ in range(2):
            memory.locator("button").click()
            known = seen.ask(read.replace("Number(", "(").replace(".value", ".value !== 'None'"))
            assert known == sorted(known, reverse=True)
        assert seen.troubles == []


def test_words_find_runs_by_name_tag_model_and_setting(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site)
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("BLOCKS variant=96")
        assert shown(seen) == [slug(site, "slower")]
        assert seen.text("[data-count]") == "1 of 5 runs"
        seen.page.fill("[name=q]", "no such run")
        assert shown(seen) == []
        seen.page.fill("[name=q]", "d.cbt")
        assert shown(seen) == [slug(site, "troubled")]
        seen.page.fill("[name=q]", "")
        assert len(shown(seen)) == 5
        assert "q=" not in seen.page.url


def test_runs_are_grouped_by_experiment_and_by_what_one_asks_for(browser: Browser, site: BuildReport) -> None:
    heads = "Array.from(document.querySelectorAll('tr.group'), (row) => row.textContent)"
    with visit(browser) as seen:
        opened(seen, site)
        assert seen.ask(heads)[1:] == ["blocks (2)", "without (2)"]
        button = seen.page.locator("tr.group button", has_text="blocks")
        button.click()
        assert slug(site, "baseline") not in shown(seen)
        assert button.get_attribute("aria-expanded") == "false"
        assert seen.ask("document.activeElement.textContent") == "blocks (2)"
        seen.page.select_option("[name=group]", "tag:variant")
        assert seen.ask(heads) == ["64 (1)", "96 (1)", "without (3)"]
        assert "group=tag%3Avariant" in seen.page.url
        seen.page.select_option("[name=group]", "model")
        assert len(seen.ask(heads)) == 1
        seen.page.select_option("[name=group]", "none")
        assert seen.ask(heads) == [] and len(shown(seen)) == 5
        assert seen.troubles == []


def test_a_link_shows_a_colleague_the_same(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site)
        seen.page.select_option("[name=group]", "device")
        seen.page.fill("[name=q]", "blocks")
        seen.page.locator("#runs th", has_text="TTFT p95").locator("button").click()
        seen.page.check(f'tr[data-run="{slug(site, "slower")}"] input[name=b]')
        link, rows = seen.page.url, shown(seen)
        seen.page.goto("about:blank")
        seen.page.goto(link)
        assert shown(seen) == rows
        assert seen.page.input_value("[name=q]") == "blocks"
        assert seen.page.input_value("[name=group]") == "device"
        assert seen.page.is_checked(f'tr[data-run="{slug(site, "slower")}"] input[name=b]')
        seen.page.evaluate("location.hash = '#group=constructor&sort=nonesuch&a=nonesuch'")
        seen.page.wait_for_selector("tr.group >> text=blocks")
        assert len(shown(seen)) == 5
        assert seen.troubles == []


def test_the_choice_of_two_runs_outlives_a_filter_and_leads_to_their_comparison(
    browser: Browser, site: BuildReport
) -> None:
    a, b = slug(site, "baseline"), slug(site, "slower")
    with visit(browser) as seen:
        opened(seen, site)
        assert seen.page.get_attribute("[data-compare]", "href") is None
        seen.page.check(f'tr[data-run="{a}"] input[name=a]')
        seen.page.fill("[name=q]", "slower")
        seen.page.check(f'tr[data-run="{b}"] input[name=b]')
        assert "baseline" in seen.text("[data-chosen]") and "slower" in seen.text("[data-chosen]")
        seen.page.fill("[name=q]", "")
        assert seen.page.is_checked(f'tr[data-run="{a}"] input[name=a]')
        seen.page.click("[data-compare]")
        seen.page.wait_for_url(f"**/compare.html#a={a}&b={b}")
        assert seen.troubles == []


def test_the_keyboard_alone_goes_through_the_runs(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site, "#group=none")
        press, order = seen.page.keyboard.press, shown(seen)
        for key in ("j", "j", "a", "k", "b"):
            press(key)
        assert f"a={order[1]}&b={order[0]}" in seen.page.url
        press("k")
        assert seen.ask("document.activeElement.closest('tr').dataset.run") == order[0]
        press("c")
        seen.page.wait_for_url(f"**/compare.html#a={order[1]}&b={order[0]}")


def test_without_javascript_it_is_a_plain_table(browser: Browser, site: BuildReport) -> None:
    with visit(browser, java_script_enabled=False) as seen:
        opened(seen, site)
        assert seen.page.locator(ROWS).count() == 5
        assert not seen.page.is_visible("form[data-runs]")
        assert not seen.page.is_visible("[data-more]")
        seen.page.click("#runs a >> text=baseline")
        assert "baseline" in seen.text("h1")


def test_untrusted_names_are_text(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        opened(seen, site)
        assert "</script><script>alert(1)" in seen.text("#runs")
        assert seen.ask('document.querySelectorAll("main b, main script").length') == 0
        assert "\u202e" not in seen.ask("document.body.textContent")
        seen.page.select_option("[name=group]", index=seen.page.locator("[name=group] option").count() - 1)
        assert len(shown(seen)) == 5
        assert seen.troubles == []


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of thousands of runs: the rows of a real one, under other names and with other numbers."""
    folder = tmp_path_factory.mktemp("many")
    busy_run(folder / "run.cbt", tags={"experiment": "x"})
    words = load_words("en")
    assets = site_assets(words)
    chrome = site_chrome(assets, "Many", words)
    source = RunSource(folder / "run.cbt", *digest_file(folder / "run.cbt"), copy=1)
    record = run_files(chrome, source, lambda name, text: len(text)).record
    rows = [_row(record.row, number) for number in range(MANY)]
    write_texts(folder / "site", dict(assets.files) | {"index.html": index_page(chrome, rows, [], [])})
    return folder / "site" / "index.html"


def _row(row: IndexRow, number: int) -> IndexRow:
    cells = [replace(cell, value=(cell.value or 0) + number * 7919 % MANY) for cell in row.cells]
    tags = [("experiment", f"experiment {number % 40}"), ("repeat", str(number % 5))]
    return replace(row, slug=f"run-{number}", name=f"run number {number}", tags=tags, cells=cells)


def test_thousands_of_runs_stay_quick(browser: Browser, many: Path) -> None:
    timed = """(act) => new Promise((resolve) => {
      const begun = performance.now();
      act();
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begun)));
    })"""
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        seen.page.goto(many.as_uri(), timeout=120_000)
        assert len(shown(seen)) == 100
        assert "100 more of 2900" in seen.text("[data-more]")
        type_in = "const q = document.querySelector('[name=q]'); q.value = {!r}; q.dispatchEvent(new Event('input'))"
        slowest = 0.0
        for act in (
            type_in.format("number 2999"),
            type_in.format("experiment 7"),
            type_in.format(""),
            "document.querySelector('th[data-column=\"ttft_ms.p50\"] button').click()",
            "const g = document.querySelector('[name=group]'); g.value = 'none'; g.dispatchEvent(new Event('change'))",
            "document.querySelector('[data-more]').click()",
        ):
            slowest = max(slowest, seen.ask(f"({timed})(() => {{ {act} }})"))
        assert len(shown(seen)) == 200
        assert shown(seen)[0] == "run-0"
        assert slowest < 2000, "a step of a person's hand must not wait, even on a busy machine"
        assert seen.troubles == []
