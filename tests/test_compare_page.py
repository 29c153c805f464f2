"""The compare page in a real Chromium: choosing, links, warnings, and that no way of reading it turns B into A."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import re
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from cbtrace.site.analysis.comparison import Comparison, compare, measured_run
from cbtrace.site.analysis.summary import summarize
from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.diff import diff_traces
from cbtrace.site.diff_json import diff_json
from cbtrace.traces import open_trace
from compared_runs import repeats, slower_pair, timed_run
from pages import Visit, visit
from site_runs import HOSTILE, busy_run

OPPOSITE = {
    "faster": "slower",
    "slower": "faster",
    "fewer": "more",
    "more": "fewer",
    "less": "more",
    "equal": "equal",
    "\N{EM DASH}": "\N{EM DASH}",
}
WORD_OPPOSITE = {"better": "worse", "worse": "better"}
READ_VALUES = """Array.from(document.querySelectorAll("tr[data-value]"), (row) => ({
  key: row.dataset.value, word: row.dataset.word, why: row.dataset.why,
  change: row.cells[4].dataset.change === undefined ? null : Number(row.cells[4].dataset.change),
  direction: row.cells[6].textContent, said: row.cells[7].textContent}))"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """Five runs a side; B is 10 % slower to its first tokens, and there only."""
    return slower_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pair: tuple[list[Path], list[Path]]) -> BuildReport:
    folder = tmp_path_factory.mktemp("compare")
    busy_run(folder / "a.cbt", "plain", stall_step=20)
    busy_run(folder / "b.cbt", "slower", stall_step=20, step_ns=1_100_000, tags={"commit": "abc"})
    busy_run(folder / "c.cbt", HOSTILE, tags={HOSTILE: HOSTILE}, request_id=HOSTILE, requests=6)
    busy_run(folder / "d.cbt", "n" * 10_000)
    return build_site([*pair[0], *pair[1], *sorted(folder.glob("*.cbt"))], folder / "site", title=HOSTILE)


def side(site: BuildReport, paths: list[Path]) -> str:
    """The name of a side in a link: its runs joined by dots."""
    return ".".join(Path(run.page).parent.name for run in site.runs if run.source in paths)


def slug(site: BuildReport, name: str) -> str:
    return next(Path(run.page).parent.name for run in site.runs if run.name.startswith(name))


def group(seen: Visit, number: int) -> str:
    """The group of repeats at this place in the list."""
    return str(seen.ask(f'document.querySelectorAll("select[name=a] optgroup")[0].children[{number}].value'))


def shown(seen: Visit, a: str, b: str) -> None:
    seen.page.wait_for_selector(f'[data-shown="{a} {b}"]')
    assert "undefined" not in seen.text("main"), "a text is missing"
    assert re.search(r"\{\w+\}", seen.text("main")) is None, "a place of a text is not filled"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


# Choosing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["file", "http"])
def test_choose_swap_link_back_and_reload(browser: Browser, site: BuildReport, how: str) -> None:
    a, b = slug(site, "plain"), slug(site, "slower")
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(visit(browser))
        seen.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        root = site.out.as_uri() if how == "file" else stack.enter_context(served(site.out))
        seen.page.goto(f"{root}/compare.html")
        assert "Choose A, the baseline, and B, the candidate" in seen.text("[data-comparison]")
        seen.page.select_option("select[name=a]", a)
        seen.page.select_option("select[name=b]", b)
        shown(seen, a, b)
        seen.page.click("[data-swap]")
        shown(seen, b, a)
        assert f"#a={b}&b={a}" in seen.page.url
        assert seen.page.input_value("select[name=a]") == b
        link = seen.page.url
        seen.page.go_back()
        shown(seen, a, b)
        assert seen.page.input_value("select[name=a]") == a
        seen.page.go_forward()
        seen.page.reload()
        shown(seen, b, a)
        seen.page.goto("about:blank")
        seen.page.goto(link)
        shown(seen, b, a)
        troubles = [trouble for trouble in seen.troubles if not trouble.startswith(f"request: {root}/")]
        assert troubles == []


def test_repeats_are_found_and_runs_can_be_picked_by_hand(
    browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]]
) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html")
        labels = seen.ask(
            'Array.from(document.querySelectorAll("select[name=a] optgroup"), (it) => [it.label, it.children.length])'
        )
        assert labels == [["Groups of repeats", 3], ["Single runs", len(site.runs)]]
        a, b = group(seen, 0), group(seen, 1)
        seen.page.select_option("select[name=a]", a)
        seen.page.select_option("select[name=b]", b)
        shown(seen, a, b)
        assert seen.page.locator("[data-comparison] table").first.locator("tbody tr").count() == 10
        last = side(site, pair[0][-1:])
        seen.page.select_option("select[name=ra]", last)
        seen.page.wait_for_url(re.compile("ra="))
        seen.page.wait_for_selector(f'select[name=ra] option[value="{last}"][selected]', state="attached")
        seen.page.click("[data-pick=a] summary")
        boxes = seen.page.locator("[data-pick=a] input[type=checkbox]")
        assert boxes.count() == len(site.runs)
        assert seen.page.locator("[data-pick=a] input:checked").count() == 5
        seen.page.locator("[data-pick=a] input:checked").first.uncheck()
        seen.page.click("[data-pick=a] button")
        picked = side(site, pair[0][1:])
        shown(seen, picked, b)
        assert "4 runs chosen by hand" in seen.ask("document.querySelector('select[name=a]').selectedOptions[0].text")
        assert "ra=" not in seen.page.url
        assert seen.troubles == []


def test_the_list_can_be_narrowed(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={slug(site, 'plain')}&b={slug(site, 'slower')}")
        seen.page.wait_for_selector("[data-shown]")
        seen.page.fill("[data-find]", "slow")
        assert f"1 of {len(site.runs)} runs" in seen.text("[data-found]")
        options = seen.ask('Array.from(document.querySelectorAll("select[name=a] option"), (it) => it.value)')
        assert options == ["", slug(site, "plain"), slug(site, "slower")], "what is chosen stays in the list"
        assert seen.page.input_value("select[name=a]") == slug(site, "plain")


def test_only_what_is_chosen_is_loaded(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        seen.goto(site.out / "compare.html")
        assert not [url for url in asked if "/runs/" in url]
        seen.goto(site.out / "compare.html", f"#a={slug(site, 'plain')}&b={slug(site, 'slower')}")
        seen.page.wait_for_selector("[data-shown]")
        loaded = {Path(url).parent.name for url in asked if "/runs/" in url}
        assert loaded == {slug(site, "plain"), slug(site, "slower")}


def test_a_link_to_a_run_that_is_not_there_says_so(browser: Browser, site: BuildReport) -> None:
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={slug(site, 'plain')}.no-such-run&b=<img src=x>")
        assert "names a run that is not on this site: no-such-run" in seen.text("[data-comparison]")
        seen.goto(site.out / "compare.html", "#a=repeats_00000000&b=__proto__")
        assert "names a run that is not on this site: repeats_00000000" in seen.text("[data-comparison]")
        assert seen.troubles == []


# What it says --------------------------------------------------------------------------------------------------------


def in_python(a: list[Path], b: list[Path]) -> Comparison:
    traces = ([open_trace(path) for path in paths] for paths in (a, b))
    left, right = ([measured_run(trace, summarize(trace)) for trace in side] for side in traces)
    return compare(left, right)


def test_the_hand_made_pair_is_what_python_says_and_flips_when_swapped(
    browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]]
) -> None:
    expected = in_python(*pair)
    written = diff_json(diff_traces(*pair))
    a, b = (side(site, paths) for paths in pair)
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        rows = seen.ask(READ_VALUES)
        assert [row["key"] for row in rows] == [value.value.key for value in expected.values]
        for row, value in zip(rows, expected.values, strict=True):
            assert (row["word"], row["why"]) == (value.judgement.word, value.judgement.why), row
            assert row["direction"] == (value.direction or "\N{EM DASH}"), row
            assert row["change"] == pytest.approx(value.judgement.difference), row
            said = written["values"][row["key"]]
            assert (said["word"], said["why"], said["difference"]) == (row["word"], row["why"], row["change"]), row
        ttft = next(row for row in rows if row["key"] == "ttft_ms.p50")
        assert (ttft["direction"], ttft["word"]) == ("slower", "worse")
        assert ttft["change"] == pytest.approx(0.8, rel=0.05), "a tenth of 8 ms"
        assert "+10.0 %" in seen.text('[data-value="ttft_ms.p50"]')
        assert "Same conditions, one setting differs: num_blocks" in seen.text("#verdict")
        assert seen.page.get_attribute("[data-headline]", "data-headline") == expected.headline.word == "worse"
        assert "B is worse than A: TTFT p95" in seen.text("#short")
        assert re.search(r"\+(9\.9|10\.\d) % \(slower\)", seen.text("#short"))
        seen.page.keyboard.press("s")
        shown(seen, b, a)
        for row, now in zip(rows, seen.ask(READ_VALUES), strict=True):
            assert now["change"] == pytest.approx(-row["change"]) if row["change"] else not now["change"]
            assert now["direction"] in (OPPOSITE[row["direction"]], "less"), row
            assert now["word"] == WORD_OPPOSITE.get(row["word"], row["word"]), row
        assert "B is better than A: TTFT p95" in seen.text("#short")
        assert seen.troubles == []


@pytest.mark.parametrize(
    ("changed", "sentences"),
    [
        ({"model": {"type": "gemma2"}}, ["Unlike runs, in model: model.type", "the sides did different work"]),
        ({"conditions": {"hardware.gpu.name": "NVIDIA H100"}}, ["Unlike runs, in hardware: hardware.gpu.name"]),
        ({"model": {"dtype": "float32"}}, ["Unlike runs, in number type: model.dtype"]),
        ({"conditions": {"workload.digest": "ffff"}}, ["Unlike runs, in workload: workload.digest", "different work"]),
        ({"conditions": {"software.torch": "2.14.0"}}, ["Unlike runs, in versions: software.torch"]),
        ({"adapter": "static"}, ["Unlike runs, in batching: batching"]),
        ({"requested": {"num_blocks": 64, "max_batch_tokens": 64}}, ["Several settings differ: max_batch_tokens, num"]),
        (
            {"requested": {"scheduler_type": "prefill_first"}, "resolved": {"safety_margin": 0.0}},
            ["One setting was changed (scheduler_type)", "other values of these too: safety_margin"],
        ),
        ({"tags": {"commit": "abc"}}, ["the tags say that something else differs: commit"]),
        ({"predicted": True}, ["predicted, not measured"]),
        ({}, ["Same conditions, same settings", "Within noise: A and B are runs of the same settings"]),
    ],
)
def test_unlike_runs_are_warned_of(
    browser: Browser, tmp_path: Path, changed: dict[str, Any], sentences: list[str]
) -> None:
    paths = [timed_run(tmp_path / "a.cbt"), timed_run(tmp_path / "b.cbt", decode_ns=22_000_000, **changed)]
    site = build_site(paths, tmp_path / "site")
    a, b = (side(site, [path]) for path in paths)
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        said = seen.text("#verdict") + seen.text("#short")
        assert [sentence for sentence in sentences if sentence not in said] == []
        words = {row["word"] for row in seen.ask(READ_VALUES)}
        assert not words & {"better", "worse", "changed"}, "one run a side gives no verdict"
        assert seen.troubles == []


def test_runs_that_are_no_repeats_give_no_verdict(browser: Browser, tmp_path: Path) -> None:
    a = repeats(tmp_path / "a", 3)
    b = [*repeats(tmp_path / "b", 2, slower=1.2), timed_run(tmp_path / "other.cbt", requested={"num_blocks": 64})]
    site = build_site([*a, *b], tmp_path / "site")
    left, right = side(site, a), side(site, b)
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={left}&b={right}")
        shown(seen, left, right)
        assert "The runs of a side are not repeats of one setting: num_blocks" in seen.text("#verdict")
        assert {row["word"] for row in seen.ask(READ_VALUES)} == {"cannot_tell"}


def test_a_run_on_both_sides_is_told(browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]]) -> None:
    whole, some = side(site, pair[0]), side(site, pair[0][:3])
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={whole}&b={some}")
        shown(seen, whole, some)
        assert "A run is there more than once" in seen.text("#verdict")
        b = side(site, pair[1])
        seen.goto(site.out / "compare.html", f"#a={whole}&b={b}")
        shown(seen, whole, b)
        assert "more than once" not in seen.text("#verdict")


def test_a_run_compared_with_itself_has_no_difference(browser: Browser, site: BuildReport) -> None:
    a = slug(site, "plain")
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={a}")
        shown(seen, a, a)
        assert "A and B are the same" in seen.text("#verdict")
        assert {row["change"] for row in seen.ask(READ_VALUES)} <= {0, None}


# What lies behind ----------------------------------------------------------------------------------------------------


def test_the_pieces_of_a_cut_add_up_to_it_and_its_changes_too(
    browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]]
) -> None:
    a, b = (side(site, paths) for paths in pair)
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        assert "+0.8 ms (slower); most of it is \N{LEFT DOUBLE QUOTATION MARK}prefill" in seen.text("#where-ttft h3")
        made = seen.ask(
            """["ttft all", "gap all"].map((which) => {
              const [name, part] = which.split(" ");
              const runs = (side) => side.split(".").map((slug) => cbtrace.arrived.get(`${slug}/compare`));
              const [a, b] = [cbtrace.readState().get("a"), cbtrace.readState().get("b")].map(runs);
              const add = (x, y) => x + y;
              const pieces = (run) => Object.values(run.cuts[name][part].pieces).reduce(add, 0);
              const sums = [...a, ...b].map((run) => [run.cuts[name][part].total_ns, pieces(run)]);
              const order = cbtrace.arrived.get("runs").pieces;
              const cut = cbtrace.compareDetails.cutChanges(a, b, name, part, order);
              const of = (key) => [cut.total[key], cut.rows.map((row) => row[key]).reduce(add, 0)];
              return { sums, changes: ["a", "b", "change"].map(of) };
            })"""
        )
        assert len(made) == 2
        for cut in made:
            assert all(total == pieces for total, pieces in cut["sums"]), "whole nanoseconds"
            for total, pieces in cut["changes"]:
                assert pieces == pytest.approx(total, rel=1e-9, abs=1e-3)


def test_paired_requests_are_told_without_a_verdict(browser: Browser, site: BuildReport) -> None:
    a, b = slug(site, "plain"), slug(site, "slower")
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        assert "12 requests are paired; 0 are in A only, 0 in B only" in seen.text("#pairs")
        title = seen.text("#pairs-ttft_ms h3")
        assert "of 12 paired requests 0 were faster in this run of B, 12 slower" in title
        assert "cannot tell from one run each" in title
        assert not re.search(r"\b(better|worse)\b", seen.text("#pairs"))
        seen.goto(site.out / "compare.html", f"#a={a}&b={slug(site, '</script>')}")
        seen.page.wait_for_selector(f'[data-shown^="{a} script"]')
        assert "0 requests are paired; 12 are in A only, 6 in B only" in seen.text("#pairs")


def test_the_first_tokens_that_differ_are_those_of_the_traces(browser: Browser, tmp_path: Path) -> None:
    samples = Path(str(files("cbtrace.traces"))) / "samples"
    paths = [samples / "h200-baseline-1.cbt", samples / "h200-num-blocks-64-1.cbt"]
    site = build_site(paths, tmp_path / "site")
    left, right = (open_trace(path) for path in paths)
    a, b = (side(site, [path]) for path in paths)
    by_id = {name: i for i, name in enumerate(right.requests.id)}
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        seen.page.wait_for_selector("[data-differences=shown]")
        cells = seen.ask(
            'Array.from(document.querySelectorAll("[data-differences] tbody tr"), (row) => '
            "Array.from(row.cells, (cell) => cell.textContent))"
        )
        assert len(cells) == 50
        for name, position, in_a, in_b, *_ in cells:
            i = left.requests.id.index(name)
            ids = left.token_ids[i].tolist(), right.token_ids[by_id[name]].tolist()
            first = next(at for at, pair in enumerate(zip(*ids, strict=True)) if pair[0] != pair[1])
            assert [position, in_a, in_b] == [str(first + 1), str(ids[0][first]), str(ids[1][first])]
        same = sum(
            left.requests.output_hash[i] == right.requests.output_hash[by_id[name]]
            for i, name in enumerate(left.requests.id)
        )
        assert f"Of 96 paired requests whose outputs are known, {same} got the same tokens" in seen.text("#outputs")
        assert "half precision (A: bfloat16, B: bfloat16)" in seen.text("#outputs")
        total = seen.text('table:has(caption:text("GPU memory, measured")) tbody tr:last-child')
        assert "140 GiB" in total
        assert "GPU memory at its fullest: A used 130 GiB" in seen.text("#budget-memory")
        for chart in seen.page.query_selector_all("[data-chart]"):
            chart.wait_for_selector("canvas")
        assert seen.troubles == []


# Untrusted names, screens, languages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 2560])
def test_untrusted_names_are_text_and_no_screen_is_too_narrow(browser: Browser, site: BuildReport, width: int) -> None:
    a, b = slug(site, "nnn"), slug(site, "</script>")
    with visit(browser, viewport={"width": width, "height": 800}) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        seen.page.click("[data-pick=b] summary")
        for details in seen.page.query_selector_all("[data-comparison] details"):
            details.evaluate("(it) => { it.open = true; }")
        seen.page.wait_for_timeout(500)
        assert seen.ask("document.documentElement.scrollWidth") <= width
        assert seen.ask('document.querySelectorAll("main b, main script, main img").length') == 0
        text = seen.ask("document.body.textContent + document.title")
        unseen = [char for char in text if (ord(char) < 32 and char not in "\n\t") or 0x202A <= ord(char) <= 0x202E]
        assert unseen == []
        assert "</script>" in seen.ask("document.querySelector('select[name=b]').selectedOptions[0].text")
        assert seen.troubles == []


def test_the_page_speaks_japanese(browser: Browser, tmp_path: Path, pair: tuple[list[Path], list[Path]]) -> None:
    site = build_site([*pair[0], *pair[1]], tmp_path / "site", language="ja")
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html")
        a, b = group(seen, 0), group(seen, 1)
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        assert "B は A より悪い" in seen.text("#short")
        english = re.findall(r"\b(?:the|and|of|is|are)\b", seen.text("main"))
        assert english == []


def test_every_chart_has_a_name_a_table_and_a_drawing(
    browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]]
) -> None:
    a, b = (side(site, paths) for paths in pair)
    with visit(browser, viewport={"width": 1280, "height": 900}) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        charts = seen.page.locator("[data-comparison] [data-chart]")
        count = charts.count()
        assert count >= 20
        assert all(charts.nth(i).get_attribute("aria-label") for i in range(count))
        for i in range(count):
            charts.nth(i).locator("canvas").wait_for(timeout=60_000)
        blank = seen.ask(
            """Array.from(document.querySelectorAll("[data-chart] canvas")).filter((canvas) => {
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              return !data.some((value, i) => i % 4 === 3 && value > 0);
            }).length"""
        )
        assert blank == 0
        without = seen.ask(
            """Array.from(document.querySelectorAll("[data-chart]"), (chart) =>
              chart.closest("div[id]:not(#effects), section").querySelector("table") ? "" : chart.dataset.chart)
              .filter(Boolean)"""
        )
        assert without == []
        assert seen.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    browser: Browser, site: BuildReport, pair: tuple[list[Path], list[Path]], scheme: str
) -> None:
    a, b = (side(site, paths) for paths in pair)
    axe = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
    with visit(browser, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        for details in seen.page.query_selector_all("details"):
            details.evaluate("(it) => { it.open = true; }")
        seen.page.wait_for_selector("[data-pick=b] input")
        seen.page.evaluate(axe)
        result = seen.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        grave = [found for found in result["violations"] if found["impact"] in ("serious", "critical")]
        assert [(found["id"], [node["target"] for node in found["nodes"]][:3]) for found in grave] == []
        levels = seen.ask('Array.from(document.querySelectorAll("h1,h2,h3,h4"), (it) => Number(it.tagName[1]))')
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_sections_are_reached_without_losing_the_choice(browser: Browser, site: BuildReport) -> None:
    a, b = slug(site, "plain"), slug(site, "slower")
    with visit(browser) as seen:
        seen.goto(site.out / "compare.html", f"#a={a}&b={b}")
        shown(seen, a, b)
        seen.page.click('nav.sections a[data-to="pairs"]')
        assert seen.ask("document.activeElement.id") == "pairs-h"
        assert f"a={a}&b={b}" in seen.page.url
        assert seen.troubles == []
