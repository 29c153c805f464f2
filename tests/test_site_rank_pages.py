"""Ranks of one run are one run of a site: on the index, on its page, in its steps; and what is said of unlike ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.single_run import build_single_run
from conftest import Cbtrace
from pages import visit
from rank_traces import STEPS, Rank, rank_paths
from test_pages_accessibility import grave

LATE = Rank(1, launch_late=lambda step: 30_000 if step > 5 else 0)


def page_of(report: BuildReport, number: int = 0) -> str:
    return (report.out / report.runs[number].page).read_text(encoding="utf-8")


def banners(html: str) -> dict[str, str]:
    found = re.findall(r'<aside class="banner (\w+)" id="(ranks-\d+|about-\w+)">\s*<p>(.*?)</p>', html, re.DOTALL)
    return {anchor: f"{severity}: {re.sub('<[^>]+>', '', text)}" for severity, anchor, text in found}


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), LATE)
    report = build_site(paths, tmp_path / "site")
    assert [(run.name, run.complete) for run in report.runs] == [("rank 0", True)]
    assert (report.joined, report.failed) == (1, [])
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert index.count("<tr data-run=") == 1 and "2 tensor-parallel ranks" in index
    html = page_of(report)
    assert f"Rank 1 was the last to launch in {round(100 * (STEPS - 6) / STEPS)}" in html
    assert 'href="#ranks"' in html and re.search(r'id="rank-1".*run\.rank1\.cbt', html)
    assert list(banners(html)) == ["about-rank"]


def test_a_run_of_one_process_has_no_such_section(tmp_path: Path) -> None:
    html = page_of(build_site(rank_paths(tmp_path, Rank(0, world=1, split=1)), tmp_path / "site"))
    assert "ranks" not in re.sub(r"<details>.*?</details>", "", html.partition("<main")[2], flags=re.DOTALL)


def test_processes_that_share_no_model_are_runs_of_their_own_and_say_so(tmp_path: Path) -> None:
    report = build_site(rank_paths(tmp_path, Rank(0, split=1), Rank(1, split=1)), tmp_path / "site")
    assert [run.name for run in report.runs] == ["rank 0", "rank 1"] and report.joined == 0
    assert "each of which answers requests of its own" in banners(page_of(report, 1))["about-process"]
    assert 'id="ranks"' not in page_of(report)


def test_a_missing_first_rank_is_stood_in_for(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=3, split=3) for number in range(3)))
    report = build_site(paths[1:], tmp_path / "site")
    assert [(run.name, run.complete) for run in report.runs] == [("rank 1", False)]
    said = banners(page_of(report))
    assert said["ranks-0"].startswith(
        "warning: Ranks of this run: Of the 3 ranks of this run, rank 0 has no trace here;"
    )
    assert "rank 1 stands in for rank 0" in said["ranks-0"] and "Name all files of the run" in said["ranks-0"]
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "badge warning" in index


def test_one_rank_alone_says_what_is_missing(tmp_path: Path) -> None:
    report = build_site(rank_paths(tmp_path, Rank(0)), tmp_path / "site")
    html = page_of(report)
    assert "1 of 2 ranks side by side" in html
    assert "rank 1 has no trace here." in banners(html)["ranks-0"]
    assert not report.runs[0].complete


def test_a_truncated_rank_is_told_and_costs_only_what_it_lost(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), LATE)
    paths[1].write_bytes(paths[1].read_bytes()[:-500])
    report = build_site(paths, tmp_path / "site")
    html = page_of(report)
    assert not report.runs[0].complete
    assert (
        "data_loss: Ranks of this run: The trace of rank 1 (run.rank1.cbt) is not whole: it is cut after"
        in (banners(html)["ranks-0"])
    )
    assert re.search(r'id="rank-1"><th scope="row">1 <span class="badge incomplete">', html)
    assert f"{STEPS}</td>" in html.partition('id="rank-0"')[2]


@pytest.mark.parametrize("data", [b"", b"no trace", None])
def test_a_rank_that_cannot_be_read_breaks_nothing(tmp_path: Path, data: bytes | None) -> None:
    paths = rank_paths(tmp_path, Rank(0), Rank(1))
    if data is None:
        paths[1].unlink()
        paths[1].mkdir()
    else:
        paths[1].write_bytes(data)
    report = build_site(paths, tmp_path / "site")
    assert [run.name for run in report.runs] == ["rank 0"]
    assert [failed.source.name for failed in report.failed] == ["run.rank1.cbt"]
    assert "rank 1 has no trace here." in banners(page_of(report))["ranks-0"]


def test_every_damage_to_a_rank_leaves_a_page(tmp_path: Path) -> None:
    zero, one = rank_paths(tmp_path, Rank(0), Rank(1))
    whole = one.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        one.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        report = build_site([zero, one], tmp_path / "site")
        assert "page-failed" not in [failed.slug for failed in report.failed]
        assert "rank 0" in [run.name for run in report.runs]


def test_unlike_ranks_are_told_and_still_shown(tmp_path: Path) -> None:
    report = build_site(rank_paths(tmp_path, Rank(0), Rank(1, prompt=55)), tmp_path / "site")
    assert "differs from that of rank 0 in 2 of 24 steps" in banners(page_of(report))["ranks-0"]


def test_copies_have_a_page_each(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), Rank(1))
    (tmp_path / "copy").mkdir()
    copies = [Path(shutil.copy(path, tmp_path / "copy")) for path in paths]
    report = build_site([*paths, *copies], tmp_path / "site")
    assert (len(report.runs), report.joined) == (2, 2)
    assert "several files of ranks 0, 1" in banners(page_of(report))["ranks-0"]


def test_a_changed_rank_is_built_again_and_nothing_else(tmp_path: Path) -> None:
    paths = rank_paths(tmp_path, Rank(0), Rank(1))
    assert [run.kept for run in build_site(paths, tmp_path / "site").runs] == [False]
    assert [run.kept for run in build_site(paths, tmp_path / "site").runs] == [True]
    assert [run.kept for run in build_site(paths[:1], tmp_path / "site").runs] == [False], "a rank is missing now"
    rank_paths(tmp_path, LATE, stem="new")
    (tmp_path / "new.rank1.cbt").replace(paths[1])
    report = build_site(paths, tmp_path / "site")
    assert [run.kept for run in report.runs] == [False] and "Rank 1 was the last" in page_of(report)


def test_ranks_of_two_hosts_name_no_slowest(tmp_path: Path) -> None:
    report = build_site(rank_paths(tmp_path, Rank(0), Rank(1, boot_ns=3600 * 10**9)), tmp_path / "site")
    html = page_of(report)
    assert "2 of 2 ranks side by side" in html and "Who was late cannot be told" in html
    assert banners(html)["ranks-0"].startswith("info: ")
    assert report.runs[0].complete


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_page_in_a_browser_draws_ranks_and_names_the_slowest_of_a_step(
    browser: Browser, tmp_path: Path, language: str
) -> None:
    report = build_site(rank_paths(tmp_path, Rank(0), LATE), tmp_path / "site", language=language)
    with visit(browser) as seen:
        seen.goto(report.out / report.runs[0].page, "#step=10")
        seen.page.wait_for_selector("[data-drawn-ranks]")
        seen.page.wait_for_selector('[data-step-panel][data-step="10"]')
        said = seen.text("[data-step-panel] p")
        if language == "en":
            assert "Rank 1 was the last to launch, 0.03 ms after the first." in said
            assert "GPU times of the ranks are up to 0 ms apart." in said
        else:
            assert "最後に起動したのは rank 1" in said
        assert seen.ask("document.querySelector('[data-chart=ranks] canvas').height") > 100
        assert seen.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_section_is_accessible_and_fits_a_phone(browser: Browser, tmp_path: Path, scheme: str) -> None:
    paths = rank_paths(tmp_path, *(Rank(number, world=9, split=9) for number in range(8)))
    paths[3].write_bytes(paths[3].read_bytes()[:-500])
    report = build_site(paths, tmp_path / "site")
    with visit(browser, color_scheme=scheme) as seen:
        seen.goto(report.out / report.runs[0].page)
        seen.page.wait_for_selector("[data-drawn-ranks]")
        assert grave(seen) == []
        seen.page.set_viewport_size({"width": 360, "height": 800})
        assert seen.ask("document.documentElement.scrollWidth") <= 360


def test_one_file_holds_all_ranks(browser: Browser, tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0), LATE)
    done = cbtrace("build", "run.cbt", "run.rank1.cbt", "--single-file", "-o", "run.html")
    assert done.returncode == 0, done.stderr
    with visit(browser) as seen:
        seen.goto(tmp_path / "run.html", "#step=10")
        seen.page.wait_for_selector("[data-drawn-ranks]")
        assert "Rank 1 was the last" in seen.text("#ranks h2")
        assert seen.troubles == []


def test_the_command_says_how_many_traces_were_joined(tmp_path: Path, cbtrace: Cbtrace) -> None:
    rank_paths(tmp_path, Rank(0), LATE)
    done = cbtrace("build", ".", "-o", "site")
    assert "Runs: 1 built, 0 unchanged. Traces joined as further ranks: 1." in done.stdout


def test_a_single_file_of_ranks_of_other_runs_is_refused(tmp_path: Path) -> None:
    from cbtrace.traces.errors import UsageError

    zero, _ = rank_paths(tmp_path, Rank(0), LATE)
    (other,) = rank_paths(tmp_path, Rank(1, run_id="other"), stem="other")
    with pytest.raises(UsageError, match="2 were named"):
        build_single_run(zero, tmp_path / "run.html", ranks=[other])
