"""A long run keeps everything within reach. Limits of the page are made small here, so that a short run is a long one.

What is rare is told at every level of zoom, is in the lists of the worst, and can be zoomed to; every step opens with
its members, and every request is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbtrace.site.analysis.marks import MARK_NAMES
from cbtrace.site.build import build_site
from cbtrace.site.pages import request_data, timeline_data
from cbtrace.site.words import load_words
from cbtrace.traces import Trace
from cbtrace.traces.schema import EndReason
from packed_tables import table
from pages import Visit, visit
from site_runs import STALL_MS, night_run

STEPS = 2400
STALL, RESET, CANCEL = (STEPS * share // 10 for share in (3, 6, 8))
SHOW = "([from, to]) => cbtrace.showWindow(from, to)"
INK = """
(wanted) => {
  const canvas = document.querySelector("[data-chart=timeline] canvas");
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const style = getComputedStyle(document.documentElement);
  return wanted.map(([name, top, bottom]) => {
    const hex = style.getPropertyValue(name).trim();
    const color = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    let found = 0;
    const end = (bottom < 1 ? canvas.height + bottom : bottom) * canvas.width * 4;
    for (let i = (top < 0 ? canvas.height + top : top) * canvas.width * 4; i < end; i += 4) {
      found += color.every((value, channel) => Math.abs(data[i + channel] - value) < 12) && data[i + 3] > 200;
    }
    return found;
  });
}
"""
"""How many pixels of the timeline have a color, between two rows; negative ones count from the bottom."""


@dataclass(frozen=True)
class Night:
    """The run, and its page."""

    trace: Trace
    page: Path


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    folder = tmp_path_factory.mktemp("night")
    trace = night_run(folder / "run.cbt", steps=STEPS)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        report = build_site([folder / "run.cbt"], folder / "site")
    return Night(trace, report.out / report.runs[0].page)


def small(patch: pytest.MonkeyPatch) -> None:
    """Limits of a page as if the run were hundreds of times as long."""
    patch.setattr(timeline_data, "POINTS", 40)
    patch.setattr(timeline_data, "ROWS_A_FILE", 64)
    patch.setattr(request_data, "LISTED_A_FILE", 32)
    patch.setattr(request_data, "ORDERED", 25)
    patch.setattr(request_data, "GAPS_STORED", 600)


def opened(seen: Visit, night: Night, fragment: str = "") -> Visit:
    seen.goto(night.page, fragment)
    seen.page.wait_for_selector("[data-drawn]")
    return seen


def test_the_run_is_long_for_these_limits(night: Night) -> None:
    kinds = [path.name.partition(".")[0] for path in night.page.parent.iterdir()]
    assert {"points-16-0", "points-4-9", "steps-37", "list-8"} <= set(kinds)
    assert len(night.trace.requests.id) > 12 * 25


def test_a_stall_and_every_event_are_at_every_level(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    data = timeline_data.timeline_data(night.trace, 0, load_words())
    levels: dict[str, tuple[list[int], list[tuple[str, int]]]] = {}
    pieces = timeline_data.timeline_pieces(night.trace, data, 0, {})
    parts = [("whole", data.overview), *((piece.kind, part) for piece in pieces for part in piece.make())]
    for kind, part in parts:
        durations, marks = levels.setdefault(kind, ([], []))
        rows, made = table(part.get("rows") or part["steps"]), table(part["marks"])
        durations += rows.get("duration_max_us") or rows["duration_us"]
        marks += [(MARK_NAMES[mark], count) for mark, count in zip(made["kind"], made["count"], strict=True)]
    assert data.buckets == [64, 16, 4, 1]
    assert list(levels) == ["whole", "points-16", "points-4", "steps"]
    for (coarse, _), (fine, _) in pairwise(levels.values()):
        assert len(fine) > 3.5 * len(coarse)
    for durations, marks in levels.values():
        assert [duration // 1000 for duration in durations if duration > 100_000] == [STALL_MS]
        assert sorted(marks) == [("cancel", 1), ("soft_reset", 1)]


def test_what_is_rare_is_seen_at_the_overview(browser: Browser, night: Night) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        assert "64 steps a point" in seen.text("[data-window]")
        assert "2,400 steps in 38 points" in seen.text("#timeline-text")
        stall, reset, cancelled = seen.page.evaluate(
            INK, [["--duration", 0, 44], ["--mark-reset", -110, 0], ["--muted", -110, 0]]
        )
        assert stall > 20  # a tick in the strip
        assert min(reset, cancelled) > 10  # marks
        assert seen.troubles == []


def zoomed_to(seen: Visit, night: Night, step: int) -> None:
    """Zoom on where a link has led to: the step is in the window, and steps are drawn one by one."""
    for _ in range(8):
        if "each step drawn" in seen.text("[data-window]"):
            break
        shown = seen.page.get_attribute("[data-chart=timeline]", "data-shown-window")
        seen.page.click('[data-zoom="in"]')
        seen.page.wait_for_function(
            "(shown) => document.querySelector('[data-chart=timeline]').dataset.shownWindow !== shown", arg=shown
        )
    seen.page.locator("[data-window]", has_text="each step drawn").wait_for()
    start = float(night.trace.steps.start_ns[step] - night.trace.requests.submit_ns[0]) / 1e9
    first, last = seen.ask("cbtrace.window")
    assert first < start < last < first + 6


def test_the_stall_is_the_slowest_row_and_leads_to_all_who_felt_it(browser: Browser, night: Night) -> None:
    requests, members = night.trace.requests, night.trace.members_of(STALL)
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        duration, count, *_ = seen.page.locator("#gap-1 td").all_inner_texts()
        assert float(duration) > STALL_MS / 2  # the builder updates requests for a part of a step
        assert int(count) == len(members.request) == 8
        assert seen.text("#gap-1 th").split() == [requests.id[members.request.min()], "and", "7", "more"]
        assert seen.page.get_attribute("#gap-1 td [data-window-link]", "href") == f"#step-{STALL}"
        with seen.page.context.expect_page() as tab:
            seen.page.click("#gap-1 th [data-window-link]", modifiers=["Control"])
        assert "#" not in seen.page.url and tab.value.url.endswith(f"#step={STALL}")
        tab.value.close()
        seen.page.click("#gap-1 th [data-window-link]")
        panel = seen.page.locator(f'[data-step-panel][data-step="{STALL}"]')
        panel.wait_for()
        assert panel.evaluate("(panel) => panel === document.activeElement")  # whoever follows the link sees it
        listed = panel.locator("table").nth(1).locator("tbody tr th").all_inner_texts()
        assert sorted(listed) == sorted(requests.id[request] for request in members.request.tolist())
        zoomed_to(seen, night, STALL)
        assert seen.troubles == []


def test_the_soft_reset_is_a_row_of_the_worst_and_can_be_zoomed_to(browser: Browser, night: Night) -> None:
    (request,) = night.trace.requests.soft_resets.nonzero()[0].tolist()
    again = int(night.trace.requests.recomputed[request])
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        rows = seen.page.locator("#slow-gaps tbody tr", has_text=f"soft reset, {again} of its tokens")
        for row in (rows, seen.page.locator("#most-recompute")):
            assert row.count() == 1
            assert night.trace.requests.id[request] in row.inner_text()
            assert f"soft reset, {again} of its tokens computed again" in row.inner_text()
        seen.page.click("#most-recompute [data-window-link]")
        zoomed_to(seen, night, RESET)
        assert seen.troubles == []


def test_the_cancelled_request_is_first_of_those_that_did_not_complete(browser: Browser, night: Night) -> None:
    requests = night.trace.requests
    (cancelled,) = (requests.end_reason == EndReason.CANCELLED).nonzero()[0].tolist()
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        assert seen.text("#unfinished") == f"1 of {len(requests.id)} requests did not complete: 1 cancelled"
        assert seen.page.get_attribute("#headline .note a", "href") == "#unfinished"
        cells = seen.page.locator("#unfinished-requests tbody tr").nth(0).locator("th, td").all_inner_texts()
        origin = requests.submit_ns[0]
        at = [f"{(int(ns[cancelled]) - origin) / 1e9:.3f}" for ns in (requests.submit_ns, requests.end_ns)]
        generated = str(requests.generated[cancelled])
        assert cells == [requests.id[cancelled], "cancelled", *at, "6", generated, "0", ""]
        seen.page.click("#unfinished-requests tbody tr:first-child [data-window-link]")
        zoomed_to(seen, night, CANCEL - 1)
        seen.page.click("#unfinished-requests tbody tr:first-child [data-request]")
        seen.page.locator(f'[data-request-shown="{cancelled}"]', has_text="End: cancelled").wait_for()
        assert seen.troubles == []


def test_events_are_listed_with_what_they_befell_and_can_be_zoomed_to(browser: Browser, night: Night) -> None:
    requests = night.trace.requests
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        rows = seen.page.locator("#events tbody tr").all_inner_texts()
        expected = (("soft reset", RESET, requests.soft_resets), ("cancel requested", CANCEL, requests.end_reason == 3))
        for at, (row, (what, step, whose)) in enumerate(zip(rows, expected, strict=True)):
            assert row.split("\t")[1:4] == [what, f"{step:,}", requests.id[int(whose.argmax())]]
            seen.page.click(f"#events tbody tr:nth-child({at + 1}) [data-window-link]")
            zoomed_to(seen, night, step)
            seen.page.wait_for_selector(f'[data-step="{step}"]')
        assert seen.troubles == []


def test_orders_of_the_list_have_what_is_rare_first(browser: Browser, night: Night) -> None:
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        seen.page.locator("#requests").scroll_into_view_if_needed()
        seen.page.wait_for_selector("[data-drawn-lanes]")
        seen.page.uncheck("[data-requests-window]")
        cancelled = night.trace.requests.end_reason == EndReason.CANCELLED
        for order, request in (("resets", night.trace.requests.soft_resets), ("trouble", cancelled)):
            seen.page.select_option("[data-requests-sort]", order)
            name = night.trace.requests.id[int(request.argmax())]
            seen.page.locator("[data-requests-rows] tbody tr:first-child", has_text=name).wait_for(state="attached")
        assert "after 25 of" in seen.text("[data-requests-shown]")
        assert seen.troubles == []


@pytest.mark.parametrize("step", [0, 63, 64, STALL, RESET, CANCEL, STEPS - 1])
def test_any_step_opens_with_all_of_its_members(browser: Browser, night: Night, step: int) -> None:
    members = night.trace.step_requests
    expected = {night.trace.requests.id[request] for request in members.request[members.step == step].tolist()}
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night)
        seen.page.fill("[data-find-step]", str(step))
        seen.page.press("[data-find-step]", "Enter")
        seen.page.wait_for_selector(f'[data-step="{step}"]')
        start = float(night.trace.steps.start_ns[step] - night.trace.requests.submit_ns[0]) / 1e9
        seen.page.wait_for_function(
            "(at) => cbtrace.window[0] < at && cbtrace.window[1] - cbtrace.window[0] < 2", arg=start
        )
        rows = seen.page.locator("[data-step-panel] table").nth(1).locator("tbody tr th").all_inner_texts()
        assert len(rows) == len(expected)
        assert set(rows) == expected
        assert seen.troubles == []


def test_any_request_is_found_by_its_id_and_opens(browser: Browser, night: Night) -> None:
    requests = night.trace.requests
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        opened(seen, night, "#request=0")
        for ordinal in (0, 31, 32, 100, len(requests.id) - 20):
            seen.page.fill("[data-requests-find]", requests.id[ordinal])
            row = seen.page.locator(f'[data-requests-rows] a[data-request="{ordinal}"]')
            row.wait_for(state="attached")
            row.dispatch_event("click")
            seen.page.wait_for_selector(f'[data-request-shown="{ordinal}"]')
            panel = seen.text("[data-request-panel]")
            assert f"Request {requests.id[ordinal]}" in panel
            assert f"{int(requests.end_ns[ordinal] - requests.submit_ns[ordinal]) / 1e6:.0f}" in panel.replace(",", "")
            assert "1 of a request are stored" in panel
        seen.page.goto(f"{night.page.as_uri()}#request={len(requests.id)}")
        seen.page.reload()
        seen.page.wait_for_selector("[data-drawn]")
        assert not seen.page.is_visible("[data-request-panel]")
        assert seen.troubles == []


def test_lanes_are_those_of_the_window_and_load_no_others(browser: Browser, night: Night) -> None:
    requests = night.trace.requests
    origin = int(requests.submit_ns.min())
    with visit(browser, viewport={"width": 1200, "height": 1000}) as seen:
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2].partition(".")[0]))
        opened(seen, night)
        steps = night.trace.steps
        window = [(int(at) - origin) / 1e9 for at in (steps.start_ns[1700], steps.start_ns[1720])]
        seen.page.evaluate(SHOW, window)
        seen.page.locator("#requests").scroll_into_view_if_needed()
        seen.page.wait_for_selector("[data-drawn-lanes]")
        alive = (requests.submit_ns <= steps.start_ns[1720]) & (requests.end_ns >= steps.start_ns[1700])
        expected = [requests.id[i] for i in alive.nonzero()[0].tolist()]
        assert f"of {len(expected)}" in seen.text("[data-requests-shown]")
        rows = seen.page.locator("[data-requests-rows] tbody tr th")
        assert rows.evaluate_all("(cells) => cells.map((cell) => cell.textContent)") == expected[:30]
        assert 1 <= len({name for name in asked if name.startswith("list-")}) <= 2
        seen.page.click('[data-zoom="reset"]')
        seen.page.locator("[data-requests-shown]", has_text=f"of {len(requests.id)}").wait_for()
        assert seen.troubles == []


def test_files_that_were_not_used_for_long_are_let_go(browser: Browser, night: Night) -> None:
    count = 300
    for number in range(count):
        text = f'cbtrace.load("{night.page.parent.name}/more-{number}", {{ number: {number} }});'
        (night.page.parent / f"more-{number}.0.js").write_text(text)
    with visit(browser) as seen:
        opened(seen, night)
        before, after, again = seen.page.evaluate(
            """async (count) => {
              const run = { ...cbtrace.arrived.get(document.body.dataset.key) };
              run.parts = { more: Array(count).fill("0") };
              const before = cbtrace.arrived.size;
              for (let number = 0; number < count; number += 1) await cbtrace.part(run, "more", number);
              return [before, cbtrace.arrived.size, (await cbtrace.part(run, "more", 0)).number];
            }""",
            count,
        )
        assert before < after <= before + 160 < before + count
        assert again == 0  # loaded once more
        assert seen.troubles == []
