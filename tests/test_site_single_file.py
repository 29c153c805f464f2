"""A run as one file: everything inside, a policy of hashes, and the same page as on a site."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.folder import OutputFolderError
from cbtrace.site.single_file import single_file
from cbtrace.site.single_run import build_single_run
from cbtrace.traces import UsageError
from conftest import Cbtrace
from pages import read_links, visit
from site_runs import HOSTILE, busy_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    busy_run(folder / "run.cbt", HOSTILE, requests=70, limit=60, tags={HOSTILE: HOSTILE}, request_id=HOSTILE)
    build_single_run(folder / "run.cbt", folder / "alone" / "run.html", title=HOSTILE)
    return folder / "alone" / "run.html"


def test_nothing_lies_beside_it_and_nothing_is_loaded(page: Path) -> None:
    assert list(page.parent.iterdir()) == [page]
    links = read_links(page)
    assert [address for address in links.addresses if not address.startswith("#")] == ["data:,"]
    assert {address[1:] for address in links.addresses if address[0] == "#" and "=" not in address} <= set(links.ids)
    assert [name for name, times in Counter(links.ids).items() if times > 1] == []


def test_the_policy_allows_no_inline_code_but_its_own(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "unsafe" not in policy[1] and "'self'" not in policy[1]
    assert policy[1].count("'sha256-") == html.count("<script>") + html.count("<style>")


def test_it_works_in_a_browser_like_the_page_of_a_site(browser: Browser, page: Path) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        seen.goto(page, "#request=1&step=20")
        seen.page.wait_for_selector("[data-drawn]")
        seen.page.wait_for_selector("[data-request-shown]")
        seen.page.wait_for_selector('[data-step="20"]')
        seen.page.click("[data-zoom=in]")
        assert "</script><script>alert(1)" in seen.text("h1")
        assert seen.page.locator("nav.sections a").count() > 5
        assert seen.ask('document.querySelectorAll("main b").length') == 0
        seen.page.evaluate("location.hash = '#ttft_ms'")
        assert seen.page.evaluate("document.querySelector(':target').className") == "definition"
        assert seen.troubles == []


def test_its_policy_stops_code_that_was_put_in(browser: Browser, page: Path, tmp_path: Path) -> None:
    html = page.read_text(encoding="utf-8")
    (tmp_path / "bad.html").write_text(html.replace("</main>", "<script>document.title = 'taken'</script></main>"))
    with visit(browser) as seen:
        seen.goto(tmp_path / "bad.html")
        assert seen.page.title() != "taken"
        assert any("script-src" in trouble for trouble in seen.troubles)


def test_the_same_run_gives_the_same_bytes(page: Path, tmp_path: Path) -> None:
    build_single_run(page.parent.parent / "run.cbt", tmp_path / "again.html", title=HOSTILE)
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_a_page_of_ours_is_replaced_and_another_file_is_not(cbtrace: Cbtrace, tmp_path: Path) -> None:
    busy_run(tmp_path / "run.cbt")
    for _ in range(2):
        done = cbtrace("build", "run.cbt", "--single-file", "-o", "run.html", "--lang", "ja")
        assert (done.returncode, done.stdout) == (0, f"Open {tmp_path / 'run.html'}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"run.cbt", "run.html"}
    (tmp_path / "mine.html").write_text("<p>mine")
    refused = cbtrace("build", "run.cbt", "--single-file", "-o", "mine.html")
    assert refused.returncode == 2 and "is not a page that cbtrace wrote" in refused.stderr
    assert (tmp_path / "mine.html").read_text() == "<p>mine"
    with pytest.raises(OutputFolderError, match="is a folder"):
        build_single_run(tmp_path / "run.cbt", tmp_path)
    both = cbtrace("build", "run.cbt", "mine.html", "--single-file", "-o", "x.html")
    assert both.returncode == 2 and "2 were named" in both.stderr
    over = cbtrace("build", "run.cbt", "--single-file", "-o", "run.cbt")
    assert over.returncode == 2 and "[output-is-input]" in over.stderr


def test_an_unknown_language_is_a_usage_error(tmp_path: Path) -> None:
    busy_run(tmp_path / "run.cbt")
    with pytest.raises(UsageError, match="choose one of en, ja"):
        build_single_run(tmp_path / "run.cbt", tmp_path / "run.html", language="fr")


def test_a_script_cannot_end_the_element_it_is_in() -> None:
    head = '<meta http-equiv="Content-Security-Policy" content="x"><script defer src="a.js"></script>'
    page = f"{head}<main></main>"
    html = single_file("p.html", {"p.html": page, "a.js": "const text = '</script><b>';"})
    assert html.count("</script") == 1
    assert "const text = '<\\/script><b>';" in html
