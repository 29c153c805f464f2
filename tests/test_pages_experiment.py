"""The page of an experiment: built from a folder, read in a real Chromium, with and without JavaScript."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import get_args

import msgspec
import pytest
from playwright.sync_api import Browser

from cbtrace.site.analysis.summary import summarize
from cbtrace.site.build import BuildReport, build_site
from cbtrace.traces import open_trace
from cbtrace.traces.experiment import EXPERIMENT_FILE, FailureKind, read_experiment, write_experiment
from cbtrace.traces.predictions import PredictedSetting, Predictions, write_predictions
from experiment_cases import Lab, Values, write_folder
from pages import read_links, visit
from site_runs import HOSTILE

PHASES = ("import", "model load", "cache creation", "warm-up", "prefill", "decode growth", "generation")


LABELS_DRAWN = """() => new Promise((told) => {
  const embed = window.vegaEmbed;
  window.vegaEmbed = async (place, spec, options) => {
    const result = await embed(place, spec, options);
    const found = [];
    const walk = (item) => {
      if (item.marktype === "text" && item.role === "mark") {
        const labels = item.items.filter((it) => it.text);
        found.push(...labels.map(({ text, bounds }) => [text, bounds.x1, bounds.y1, bounds.x2, bounds.y2]));
      }
      for (const inside of item.items || []) walk(inside);
    };
    walk(result.view.scenegraph().root);
    window.vegaEmbed = embed;
    told(found);
    return result;
  };
  dispatchEvent(new HashChangeEvent("hashchange"));
})"""
"""Draws the charts again; the labels of the first one, throughput against latency, with where they stand."""


def everything() -> Lab:
    """An experiment with all that can happen: each kind of failure, each phase, runs to come, skipped ones."""
    lab = Lab(slos={"ttft_p95_ms": 1000, "token_gap_p99_ms": 50, "failures": 0}).baseline()
    lab.add("static", Values(throughput=400), kind="static", changes={"batching": "static"}, stage=1)
    lab.add("max_batch_tokens=1024", changes={"max_batch_tokens": 1024})
    lab.add("max_batch_tokens=64", changes={"max_batch_tokens": 64}, repeats=2)
    for number, kind in enumerate(get_args(FailureKind)):
        name = f"num_blocks={number + 1}"
        lab.add(name, changes={"num_blocks": number + 1}, stage=3, repeats=0)
        lab.fail(name, kind, PHASES[number % len(PHASES)], 2, text=f"It ended with {kind}.")
    lab.add("later", changes={"safety_margin": 0.0}, stage=3, repeats=1).leave("later", "running").leave("later")
    lab.add("CUDA graphs", changes={"use_cuda_graph": True}, stage=4, repeats=0)
    lab.leave("CUDA graphs", "skipped", 3, "It needs CUDA, which this machine does not have.")
    return lab


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("experiment") / "trial"
    write_folder(made, everything(), names=("num_blocks=1",))
    write_predictions(predictions(made), made)
    return made


def predictions(folder: Path) -> Predictions:
    """Settings close to one another, and to what was measured, worth running and not."""
    base = open_trace(folder / "runs" / "0.cbt")
    rate = summarize(base).throughput_generated_tps
    assert rate is not None
    values = {"throughput_generated_tps": rate, "ttft_ms.p95": 30.0, "token_gap_ms.p99": 8.0}
    faster = [values | {"throughput_generated_tps": rate * (1.02 + at / 500)} for at in range(6)]
    settings = [PredictedSetting({"num_blocks": 2000 + at}, found) for at, found in enumerate(faster)]
    settings[0].doubts = ["60 members (the recordings show 40 at most)"]
    settings.append(PredictedSetting({"safety_margin": 0.5, "num_blocks": 9}, refused="The engine would die."))
    errors = {"throughput_generated_tps": 0.1, "ttft_ms.p95": 0.3}
    return Predictions("s1-baseline-r1", base.header.run_id, ["s1-baseline-r1"], values, errors, settings)


@pytest.fixture(scope="module")
def site(folder: Path) -> BuildReport:
    return build(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("small") / "trial"
    lab = Lab().baseline().add("v", repeats=0, changes={"num_blocks": 1}, stage=3).fail("v", "dead_end", "prefill")
    write_folder(made, lab)
    return made


def build(folder: Path, name: str = "site", **options: str) -> BuildReport:
    return build_site(sorted(folder.rglob("*.cbt")), folder.parent / name, **options)  # type: ignore[arg-type]


def page_of(site: BuildReport, slug: str = "trial") -> Path:
    return site.out / "experiments" / slug / "index.html"


def test_the_index_leads_to_the_experiment_and_the_experiment_to_its_runs(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "index.html")
        seen.page.click("text=trial")
        seen.page.wait_for_selector("#verdict-table")
        seen.page.wait_for_load_state("load")
        seen.page.click("#run-table a >> nth=0")
        seen.page.wait_for_selector("#headline")
        assert "baseline #1" in seen.text("h1")
        assert seen.troubles == []


def test_a_verdict_leads_to_the_comparison_of_all_repeats_without_javascript(
    browser: Browser, site: BuildReport
) -> None:
    with visit(browser, java_script_enabled=False) as seen:
        seen.goto(page_of(site))
        seen.page.click("#variant-3 a:has-text('Compare')")
        assert "max_batch_tokens=1024" in seen.text("main")
        assert seen.troubles == []


def test_against_another_variant_than_the_baseline_the_comparison_is_made_by_the_browser(
    browser: Browser, tmp_path: Path
) -> None:
    lab = Lab().baseline(repeats=1).add("shared", changes={"workload": "w"}, workload="w", repeats=2)
    lab.add("not shared", changes={"allow_block_sharing": False}, based_on="shared", workload="w", repeats=2)
    write_folder(tmp_path / "two", lab)
    with visit(browser) as seen:
        seen.goto(page_of(build(tmp_path / "two")))
        seen.page.click("#variant-3 a:has-text('Compare')")
        seen.page.wait_for_selector("[data-shown]")
        assert len(seen.page.url.partition("b=")[2].split(".")) == 2
        assert seen.troubles == []


def test_every_link_of_the_page_leads_somewhere(site: BuildReport) -> None:
    page = page_of(site)
    links = read_links(page)
    assert len(set(links.ids)) == len(links.ids)
    assert links.inline == []
    for address in links.addresses:
        if address.startswith("data:"):
            continue
        path, _, fragment = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), address
        assert not fragment or path or fragment in links.ids, address


def test_verdicts_failures_and_what_is_left_can_be_read_without_javascript(browser: Browser, site: BuildReport) -> None:
    with visit(browser, java_script_enabled=False) as seen:
        seen.goto(page_of(site))
        rows = seen.page.locator("#verdict-table tbody tr").all_inner_texts()
        text = {row.split("\t")[1].split("\n")[0].strip(): row for row in rows}
        assert "dead end, loading the model" in text["num_blocks=2"]
        assert "do not adopt" in text["num_blocks=2"]
        assert "not run yet" in text["CUDA graphs"] and "needs CUDA" in text["CUDA graphs"]
        assert "no candidate" in text["max_batch_tokens=64"], "these traces tell of the same settings"
        assert "This experiment is not finished." in seen.text("#about-partial")
        assert seen.page.locator("#run-table tbody tr").count() == len(everything().runs)
        assert not seen.page.locator(".chart").first.is_visible()


def test_each_failure_is_told_by_kind_and_phase_with_what_to_put_back(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(page_of(site))
        told = seen.text("#next")
        for words in (
            "dead end, loading the model",
            "hang, creating the cache",
            "time-out, warm-up",
            "killed, prefill",
        ):
            assert words in told, words
        assert "num_blocks from 2 to " in told
        assert "--retry-failed" in told, "the first kind failed before any setting mattered"
        chart = seen.page.locator("#variable-2 + .beside [data-said]")
        chart.wait_for()
        assert "error, during generation" in chart.inner_text()


def test_charts_are_drawn_and_the_fragment_chooses_what(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(page_of(site), "#metric=ttft_ms.p95&latency=e2e_ms.p95")
        seen.page.wait_for_selector("[data-chart=variable][data-drawn='ttft_ms.p95'] canvas")
        seen.page.wait_for_selector("[data-chart=frontier][data-drawn='e2e_ms.p95'] canvas")
        seen.page.select_option("[data-variable-metric]", "peak_memory_bytes")
        seen.page.wait_for_selector("[data-chart=variable][data-drawn=peak_memory_bytes] canvas")
        assert "metric=peak_memory_bytes" in seen.page.url and "latency=e2e_ms.p95" in seen.page.url
        seen.page.reload()
        seen.page.wait_for_selector("[data-chart=variable][data-drawn=peak_memory_bytes] canvas")
        assert seen.troubles == []


def test_labels_of_close_points_do_not_cover_one_another(browser: Browser, site: BuildReport) -> None:
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        seen.goto(page_of(site), "#latency=ttft_ms.p95")
        seen.page.wait_for_selector("[data-chart=frontier][data-drawn] canvas")
        boxes = seen.page.evaluate(LABELS_DRAWN)
        assert seen.troubles == []
        texts = [text for text, *_ in boxes]
        assert {f"P{number}" for number in range(1, 7)} <= set(texts) and {"1", "2"} <= set(texts)
        for number, (text, *one) in enumerate(boxes):
            for other_text, *other in boxes[number + 1 :]:
                wide, tall = (min(one[a + 2], other[a + 2]) - max(one[a], other[a]) for a in (0, 1))
                assert wide <= 1 or tall <= 2, (text, other_text)


@pytest.mark.parametrize("width", [360, 1280, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(browser: Browser, site: BuildReport, width: int, scheme: str) -> None:
    with visit(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as seen:
        seen.goto(page_of(site))
        seen.page.wait_for_selector("[data-chart=variable][data-drawn] canvas")
        assert seen.ask("document.documentElement.scrollWidth") <= width
        assert seen.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, site: BuildReport, scheme: str) -> None:
    axe = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
    with visit(browser, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as seen:
        seen.goto(page_of(site))
        seen.page.wait_for_selector("[data-chart=variable][data-drawn] canvas")
        seen.page.evaluate(axe)
        result = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        grave = [(it["id"], it["nodes"][0]["target"]) for it in result["violations"]]
        assert grave == []
        levels = seen.ask('Array.from(document.querySelectorAll("h1,h2,h3,h4"), (it) => Number(it.tagName[1]))')
        assert levels.count(1) == 1 and all(b - a <= 1 for a, b in pairwise(levels))


def test_paper_shows_the_whole_of_every_table_and_charts_on_the_ground_they_were_drawn_for(
    browser: Browser, site: BuildReport
) -> None:
    for scheme, ground in (("dark", "rgb(21, 23, 26)"), ("light", "rgba(0, 0, 0, 0)")):
        with visit(browser, color_scheme=scheme) as seen:
            seen.goto(page_of(site))
            seen.page.wait_for_selector("[data-chart=variable][data-drawn] canvas")
            seen.page.emulate_media(media="print")
            style = "getComputedStyle(document.querySelector({}))"
            assert seen.ask(style.format("'#all_runs .scroll'") + ".maxHeight") == "none"
            assert seen.ask(style.format("'[data-chart=variable]'") + ".backgroundColor") == ground


def test_the_same_experiment_gives_the_same_bytes_in_any_folder(small: Path) -> None:
    moved = small.parent / "elsewhere" / "other name"
    copytree(small, moved)
    site, again = build(small), build(moved)
    names = sorted(path.relative_to(site.out) for path in (site.out / "experiments").rglob("*") if path.is_file())
    assert len(names) == 2
    for name in names:
        assert (again.out / name).read_bytes() == (site.out / name).read_bytes()


def test_the_page_can_be_read_in_japanese(small: Path) -> None:
    text = page_of(build(small, "ja", language="ja")).read_text(encoding="utf-8")
    assert 'lang="ja"' in text and "採用しない" in text


def test_a_finished_experiment_says_nothing_of_runs_to_come(small: Path) -> None:
    text = page_of(build(small)).read_text(encoding="utf-8")
    assert "about-partial" not in text and "about-untraced" not in text


def test_an_experiment_under_way_shows_what_is_there(tmp_path: Path) -> None:
    lab = Lab().baseline(repeats=1).leave("baseline", "planned", 2).add("v", repeats=0, changes={"num_blocks": 64})
    write_folder(tmp_path / "partial", lab.leave("v", "running").leave("v", "planned", 2))
    text = page_of(build(tmp_path / "partial")).read_text(encoding="utf-8")
    assert "Runs still to come: 5 of 6." in text
    assert "No run of it counts yet. Still to come: 3." in text


def test_traces_that_were_left_out_are_told(small: Path) -> None:
    report = build_site(sorted(small.rglob("*.cbt"))[:2], small.parent / "some")
    assert "about-untraced" in page_of(report).read_text(encoding="utf-8")


def test_names_from_outside_stay_text(browser: Browser, tmp_path: Path) -> None:
    lab = Lab().baseline().add(HOSTILE, changes={HOSTILE: HOSTILE}, workload="default")
    lab.fail(HOSTILE, "oom", HOSTILE, text=HOSTILE)
    write_folder(tmp_path / "hostile", lab)
    experiment = read_experiment(tmp_path / "hostile")
    assert experiment is not None
    experiment.name = HOSTILE + "n" * 10_000
    write_experiment(experiment, tmp_path / "hostile")
    report = build(tmp_path / "hostile")
    (page,) = (report.out / "experiments").glob("*/index.html")
    assert report.out in page.resolve().parents
    with visit(browser, viewport={"width": 700, "height": 900}) as seen:
        seen.goto(page)
        seen.page.wait_for_selector("[data-chart=variable][data-drawn] canvas")
        assert "alert(1)" in seen.text("h1")
        assert seen.ask("document.documentElement.scrollWidth") <= 700
        assert seen.troubles == []
        text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text and "\u202e" not in text and "n" * 400 not in text


def test_a_variable_without_runs_has_no_chart_and_says_so(browser: Browser, tmp_path: Path) -> None:
    lab = Lab().baseline(repeats=1).add("a", changes={"workload": "w"}, workload="w", repeats=0)
    lab.add("b", changes={"num_blocks": 9}, based_on="a", workload="w", repeats=0).leave("b")
    write_folder(tmp_path / "none", lab)
    with visit(browser) as seen:
        seen.goto(page_of(build(tmp_path / "none")))
        seen.page.wait_for_selector("text=There is no run to draw yet.")
        assert seen.page.locator("[data-chart=variable] canvas").count() == 0
        assert seen.troubles == []


def test_two_experiments_of_one_name_have_a_page_each(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_folder(tmp_path / "all" / name, Lab().baseline(repeats=1))
    report = build(tmp_path / "all")
    assert sorted(path.name for path in (report.out / "experiments").iterdir()) == ["trial", "trial-2"]


def test_a_damaged_experiment_leaves_its_runs_and_is_told(tmp_path: Path) -> None:
    write_folder(tmp_path / "broken", Lab().baseline(repeats=1))
    (tmp_path / "broken" / EXPERIMENT_FILE).write_text("{")
    report = build(tmp_path / "broken")
    assert [(run.source.name, run.slug) for run in report.failed] == [(EXPERIMENT_FILE, "experiment-unreadable")]
    assert len(report.runs) == 1 and not (report.out / "experiments").exists()
    assert str(tmp_path) not in (report.out / "index.html").read_text(encoding="utf-8")


def test_a_newer_experiment_is_not_guessed_at(tmp_path: Path) -> None:
    write_folder(tmp_path / "newer", Lab().baseline(repeats=1))
    path = tmp_path / "newer" / EXPERIMENT_FILE
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"format": 99}))
    assert [run.slug for run in build(tmp_path / "newer").failed] == ["experiment-too-new"]
