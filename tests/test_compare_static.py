"""Comparisons that need no scripts: those of a site's experiments, and the single file of one comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.folder import OutputFolderError
from cbtrace.site.single_comparison import build_single_comparison
from cbtrace.traces.experiment import Experiment, RunEntry, StageEntry, VariantEntry, write_experiment
from compared_runs import slower_pair
from pages import Links, Visit, read_links, visit
from site_runs import HOSTILE, busy_run, troubled_run
from trace_builder import eventful

READ_TABLES = """Object.fromEntries(Array.from(document.querySelectorAll("[data-comparison] table"), (table) => [
  table.caption.textContent,
  Array.from(table.rows, (row) => Array.from(row.cells, (cell) => cell.textContent.replace(/\\s+/g, " ").trim()))]))"""
READ_SAID = """["verdict", "short"].map((id) =>
  Array.from(document.querySelectorAll(`#${id} p`), (said) => said.textContent).join(" "))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    """An experiment of a baseline and two variants: one with repeats, and one that failed."""
    folder = tmp_path_factory.mktemp("experiment")
    paths = slower_pair(folder, 3)
    runs = [
        RunEntry(f"{variant}-{i}", variant, 1, i, "done", str(path.relative_to(folder)))
        for variant, side in zip(("baseline", HOSTILE), paths, strict=True)
        for i, path in enumerate(side, 1)
    ]
    runs.append(RunEntry("failed-1", "failed", 1, 1, "failed", failure="oom"))
    changed = {"based_on": "baseline", "changes": {"num_blocks": 2048}}
    variants = [
        VariantEntry("baseline", 1, "continuous", "default"),
        VariantEntry(HOSTILE, 1, "continuous", "default", **changed),  # type: ignore[arg-type]
        VariantEntry("failed", 1, "continuous", "default", **changed),  # type: ignore[arg-type]
    ]
    stages = [StageEntry(1, "correctness")]
    write_experiment(Experiment(HOSTILE, {}, "", stages, variants, runs, {"default": {}}), folder)
    return build_site([*paths[0], *paths[1]], folder / "site")


def read(browser: Browser, page: Path, *, scripts: bool) -> tuple[dict[str, list[list[str]]], list[str], Visit]:
    with visit(browser, java_script_enabled=True) as seen:
        if not scripts:
            seen.page.route(re.compile(r"\.js$"), lambda route: route.abort())
        seen.goto(page)
        if scripts:
            seen.page.wait_for_selector("[data-shown]")
        return seen.ask(READ_TABLES), seen.ask(READ_SAID), seen


def same_tables(browser: Browser, page: Path) -> list[str]:
    """Captions of the tables that are the same, cell by cell, with scripts and without."""
    plain, plain_said, _ = read(browser, page, scripts=False)
    made, said, _ = read(browser, page, scripts=True)
    assert plain_said == said
    assert plain.keys() <= made.keys()
    for caption, rows in plain.items():
        assert rows == made[caption], caption
    return sorted(plain)


def test_an_experiment_is_compared_beforehand(browser: Browser, site: BuildReport) -> None:
    pages = sorted(site.out.glob("comparison-*.html"))
    assert len(pages) == 1, "the variant without a run has nothing to compare"
    with visit(browser, java_script_enabled=False) as seen:
        seen.goto(site.out / "compare.html")
        assert "needs JavaScript" in seen.text("main")
        seen.page.click("main ul a")
        assert Path(seen.page.url).name == pages[0].name
        assert "B is worse than A: TTFT p95 +" in seen.text("#short")
        assert "one setting differs: num_blocks" in seen.text("#verdict")
        row = seen.text('#changes tr:has-text("TTFT ms"):has-text("p95")')
        assert "slower" in row
        assert "worse, beyond noise" in row
        assert not seen.page.is_visible("form")
        assert "\u202e" not in seen.text("h1")
    with visit(browser) as seen:
        seen.goto(pages[0])
        seen.page.wait_for_selector("[data-shown]")
        assert "(3 repeats)" not in seen.ask("document.title")
        seen.page.keyboard.press("s")
        seen.page.wait_for_url(re.compile("#a="))
        seen.page.locator("#short", has_text="B is better than A").wait_for()
        assert seen.troubles == []


def test_with_and_without_scripts_the_tables_are_the_same(browser: Browser, site: BuildReport) -> None:
    captions = same_tables(browser, next(site.out.glob("comparison-*.html")))
    assert len(captions) >= 11
    assert any(caption.startswith("Settings that differ") for caption in captions)
    assert any(caption.startswith("Token gap by percentile") for caption in captions)


def test_they_are_the_same_for_runs_of_every_kind(browser: Browser, tmp_path: Path) -> None:
    a = [tmp_path / "a.cbt", tmp_path / "b.cbt"]
    busy_run(a[0], "busy", step_ns=1_234_567, tags={"commit": "a"})
    troubled_run(a[1])
    eventful(tmp_path / "c.cbt").close()
    build_single_comparison(a, [tmp_path / "c.cbt"], tmp_path / "mixed.html")
    tables, said, _ = read(browser, tmp_path / "mixed.html", scripts=True)
    with visit(browser, java_script_enabled=False) as seen:
        seen.goto(tmp_path / "mixed.html")
        for caption in tables:
            found = seen.page.locator("table", has=seen.page.locator("caption", has_text=caption))
            if not found.count():
                continue
            cells = [
                [re.sub(r"\s+", " ", cell.text_content() or "").strip() for cell in row.locator("th,td").all()]
                for row in found.first.locator("tr").all()
            ]
            assert cells == tables[caption], caption
        assert said[0].split(".")[0] in seen.text("#verdict")


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_single_file_needs_nothing_beside_it(browser: Browser, tmp_path: Path, language: str) -> None:
    a, b = slower_pair(tmp_path, 3)
    out = tmp_path / "out" / "diff.html"
    build_single_comparison(a, b, out, language=language)
    assert out.stat().st_size < 2_000_000
    assert [path.name for path in out.parent.iterdir()] == ["diff.html"]
    links: Links = read_links(out)
    assert [address for address in links.addresses if not address.startswith(("#", "data:"))] == []
    with visit(browser) as seen:
        asked: list[Any] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        seen.goto(out)
        seen.page.wait_for_selector("[data-shown]")
        for chart in seen.page.query_selector_all("[data-chart]"):
            chart.wait_for_selector("canvas")
        assert asked == [out.as_uri()]
        before = seen.text("#short")
        seen.page.click("[data-swap]")
        seen.page.wait_for_url(re.compile("#a="))
        seen.page.locator("#short", has_not_text=before).wait_for()
        assert seen.troubles == []
        assert "unsafe" not in (seen.page.get_attribute("meta[http-equiv=Content-Security-Policy]", "content") or "")


def test_a_page_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    a, b = slower_pair(tmp_path, 1)
    out = tmp_path / "mine.html"
    out.write_text("<p>mine</p>")
    with pytest.raises(OutputFolderError):
        build_single_comparison(a, b, out)
    assert out.read_text() == "<p>mine</p>"
