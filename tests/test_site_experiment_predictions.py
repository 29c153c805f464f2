"""Predicted settings on an experiment's page: which are worth running, how sure that is; and they count for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cbtrace.site.analysis.experiment import ExperimentRuns, join
from cbtrace.site.analysis.experiment_predictions import Forecast, forecasts, is_outdated
from cbtrace.site.analysis.experiment_stages import stage_results
from cbtrace.site.analysis.experiment_verdict import verdicts
from cbtrace.site.build import build_site
from cbtrace.site.pages.experiment import experiment_view
from cbtrace.site.pages.experiment_charts import chart_data
from cbtrace.site.words import load_words
from cbtrace.traces import open_trace
from cbtrace.traces.predictions import PREDICTIONS_FILE, PredictedSetting, Predictions, write_predictions
from experiment_cases import Lab, Values, plain_summary, write_folder

WORDS = load_words("en")
RATE, TTFT = "throughput_generated_tps", "ttft_ms.p95"


def setting(rate: float | None, ttft: float = 100.0, refused: str = "", **changes: Any) -> PredictedSetting:
    values = None if rate is None else {RATE: rate, TTFT: ttft, "soft_resets": 2.0}
    return PredictedSetting(changes, values, [], refused)


def made(*settings: PredictedSetting, **more: Any) -> Predictions:
    fields: dict[str, Any] = {
        "base": "s1-baseline-r1",
        "base_run_id": plain_summary().run_id,
        "learned_from": ["s1-baseline-r1", "s3-small-r1"],
        "own": {RATE: 1000.0, TTFT: 100.0, "soft_resets": 0.0},
        "errors": {RATE: 0.1, TTFT: 0.5, "soft_resets": 1.0},
        "settings": list(settings),
    }
    return Predictions(**fields | more)


def lab() -> Lab:
    found = Lab(slos={"ttft_p95_ms": 200, "failures": 0}).baseline()
    found.add("small", Values(throughput=800), changes={"num_blocks": 64}, stage=3)
    return found.add("m0", Values(throughput=700), changes={"safety_margin": 0.0}, based_on="small", stage=3)


def joined(predictions: Predictions | None, unread: str = "") -> ExperimentRuns:
    of = lab()
    return join(of.experiment(), of.traced, predictions, unread)


def by_setting(found: list[Forecast]) -> dict[str, str]:
    return {", ".join(f"{key}={value}" for key, value in it.changes.items()): it.state for it in found}


def test_settings_worth_running_come_first_by_what_they_gain() -> None:
    found = forecasts(
        joined(
            made(
                setting(1050, num_blocks=96),
                setting(1500, 500, num_blocks=1),
                setting(900, num_blocks=32),
                setting(1200, num_blocks=128),
                setting(780, num_blocks=64),
                setting(None, refused="It does not fit.", num_blocks=10**9),
            )
        )
    )
    assert by_setting(found) == {
        "num_blocks=128": "worth",
        "num_blocks=96": "worth",
        "num_blocks=64": "ran",
        "num_blocks=1": "misses",
        "num_blocks=32": "no_gain",
        "num_blocks=1000000000": "refused",
    }
    assert [it.changes["num_blocks"] for it in found[:2]] == ["128", "96"]
    assert found[0].gain == pytest.approx(0.2)


def test_a_setting_that_keeps_a_limit_which_the_replayed_one_misses_is_worth_most() -> None:
    own = {RATE: 1000.0, TTFT: 300.0}
    found = forecasts(joined(made(setting(1400, 250, num_blocks=96), setting(950, 150, num_blocks=128), own=own)))
    assert by_setting(found) == {"num_blocks=128": "worth", "num_blocks=96": "worth"}
    assert [slo.metric for slo in found[1].missed] == [TTFT] and found[0].missed == []


def test_a_variant_that_has_run_it_is_found_whatever_it_was_made_from() -> None:
    (found,) = forecasts(joined(made(setting(1100, num_blocks=64.0, safety_margin=0))))
    assert found.state == "ran" and found.variant is not None and found.variant.name == "m0"
    (other,) = forecasts(joined(made(setting(1100, safety_margin=0))))
    assert other.state == "worth", "the baseline with this margin was not run"


def test_predictions_change_nothing_but_their_own_section_and_points() -> None:
    without, with_them = joined(None), joined(made(setting(9000, num_blocks=96)))
    views = []
    for runs in (without, with_them):
        judged = verdicts(runs)
        views.append(experiment_view(runs, judged, stage_results(runs, judged), [], WORDS))
    plain, predicted = views
    assert predicted.predicted.rows and not plain.predicted.rows
    extra = [answer for answer in predicted.answers if answer not in plain.answers]
    assert [answer.place for answer in extra] == ["predicted"] and "num_blocks=96" in extra[0].text
    assert replace(plain, predicted=predicted.predicted, answers=predicted.answers) == predicted


def test_the_section_says_what_was_measured_and_how_sure_it_is() -> None:
    runs = joined(made(setting(780, num_blocks=64), setting(1200, num_blocks=128)))
    section = experiment_view(runs, [], [], [], WORDS).predicted
    worth, ran = section.rows
    assert (worth.label, worth.state_text) == ("P1", "Worth running next")
    assert [(cell.value, cell.change) for cell in worth.cells[:2]] == [
        ("1,200", "+20 %".replace(" ", "\N{NO-BREAK SPACE}")),
        ("100", "±0\N{NO-BREAK SPACE}%"),
    ]
    assert "measured 800" in ran.cells[0].measured and worth.cells[0].measured == ""
    assert section.errors[0].startswith("±10") and section.errors[-2] == "±1"
    assert section.measured[-1] == "1 GiB".replace(" ", "\N{NO-BREAK SPACE}") and section.own[-1] == worth.memory == "—"
    assert section.own[0] == "1,000" and "nine in ten" in section.error
    assert "about 67" in section.error, "the larger error of two is kept by two in three"
    unsure = experiment_view(joined(made(setting(1, num_blocks=2), errors={})), [], [], [], WORDS).predicted
    assert "is not known" in unsure.error


def test_charts_get_predicted_points_with_bands_apart_from_the_runs() -> None:
    runs = joined(made(setting(1200, num_blocks=128), setting(1100, num_blocks=64, safety_margin=0.5)))
    judged = verdicts(runs)
    data = chart_data(runs, stage_results(runs, judged), WORDS)
    blocks, margin = data["variables"]
    at = [metric["key"] for metric in data["metrics"]].index(RATE)
    assert blocks["labels"] == ["64", "128", "1000"]
    assert [point["label"] for point in blocks["points"]] == ["64", "1000"]
    assert [(it["label"], it["values"][at], it["bands"][at]) for it in blocks["forecasts"]] == [
        ("128", 1200.0, [1080.0, 1320.0])
    ]
    assert [it["label"] for it in margin["forecasts"]] == ["0.5"], "it belongs to the variant with 64 blocks"
    front = data["forecasts"][TTFT]
    assert (front[0]["number"], front[0]["worth"]) == ("P1", True)
    assert front[0]["ends"] == [1080.0, 1320.0, 50.0, 150.0]
    assert all("P" not in str(row["variant"]) for row in data["fronts"][TTFT])


def test_predictions_of_a_run_that_was_run_anew_are_not_shown() -> None:
    for stale in (made(setting(1200, num_blocks=128), base_run_id="another"), made(base="s9-gone-r1")):
        runs = joined(stale)
        assert is_outdated(runs) and forecasts(runs) == []
        assert "run anew" in experiment_view(runs, [], [], [], WORDS).predicted.intro
    assert not is_outdated(joined(None)) and not is_outdated(joined(made()))


def test_runs_that_came_since_are_told() -> None:
    """The lab has nine runs of one workload, all with the id of one trace; a static one is never learned from."""
    of = lab().add("static", kind="static", stage=1).add("elsewhere", workload="other", stage=4)
    ids = [run.id for run in of.runs if run.variant in ("baseline", "small", "m0")]
    run_id = plain_summary().run_id

    def stale(**fields: Any) -> str:
        predictions = made(setting(1200, num_blocks=128), **fields)
        return experiment_view(join(of.experiment(), of.traced, predictions), [], [], [], WORDS).predicted.stale

    assert len(ids) == 9 and stale(learned_from=ids) == stale(considered=dict.fromkeys(ids, run_id)) == ""
    assert "learned from 4, and of now 9 runs, 5 came or were run anew" in stale(learned_from=ids[:4])
    considered = dict.fromkeys(ids, run_id)
    assert "of now 9 runs, 1 came" in stale(considered=considered | {ids[-1]: "another"}), "it was run anew"
    del considered[ids[-1]]
    assert "of now 9 runs, 1 came" in stale(considered=considered)


def test_what_the_memory_is_worth_is_told() -> None:
    told = experiment_view(joined(made(setting(1, num_blocks=2), own_memory_bytes=2 << 30)), [], [], [], WORDS)
    gib = "\N{NO-BREAK SPACE}GiB"
    assert f"is 2{gib}, where 1{gib} were measured" in told.predicted.memory
    assert experiment_view(joined(made(setting(1, num_blocks=2))), [], [], [], WORDS).predicted.memory == ""


def test_the_page_shows_them_marked_and_tells_of_a_damaged_file(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    write_folder(folder, lab())
    base = open_trace(next(path for path in sorted((folder / "runs").iterdir()) if path.name == "0.cbt"))
    hostile = setting(1.0, num_blocks=128, scheduler_type="<script>alert(1)</script>")
    hostile.doubts = ["<b>bold</b> " * 100]
    write_predictions(made(hostile, setting(2e9, num_blocks=96), base_run_id=base.header.run_id), folder)
    page = built(folder, tmp_path / "site")
    assert page.count('<span class="badge predicted">predicted</span>') == 2
    assert "Run cbtrace whatif on the folder again" in page, "two of nine runs were learned from"
    assert "num_blocks=96" in page and "<script>alert" not in page and "<b>bold" not in page
    (folder / PREDICTIONS_FILE).write_text("{")
    page = built(folder, tmp_path / "site")
    assert "Predictions are there, but cannot be shown: study/predictions.json is damaged" in page
    (folder / PREDICTIONS_FILE).unlink()
    assert "There are no predictions" in built(folder, tmp_path / "site")


def built(folder: Path, site: Path) -> str:
    build_site(sorted(folder.rglob("*.cbt")), site, jobs=1)
    (page,) = (site / "experiments").glob("*/index.html")
    return page.read_text(encoding="utf-8")
