"""``predictions.json`` is read as it was written, and refused in a sentence when cbtrace did not write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.traces.predictions import (
    MOST_SETTINGS,
    PREDICTIONS_FILE,
    PREDICTIONS_FORMAT,
    PredictedSetting,
    Predictions,
    PredictionsError,
    read_predictions,
    write_predictions,
)


def predictions(*settings: PredictedSetting) -> Predictions:
    return Predictions("r1", "abc", ["r1", "r2"], {"soft_resets": 0}, {"soft_resets": 1}, list(settings), "0.1")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_predictions(tmp_path) is None
    made = predictions(
        PredictedSetting({"num_blocks": 96, "safety_margin": 0.5}, {"ttft_ms.p95": 12.5, "x": None}, ["a doubt"]),
        PredictedSetting({"scheduler_type": "fifo"}, refused="It does not fit."),
    )
    assert write_predictions(made, tmp_path) == tmp_path / PREDICTIONS_FILE
    assert read_predictions(tmp_path) == made
    write_predictions(predictions(), tmp_path)
    assert read_predictions(tmp_path) == predictions()
    assert [path.name for path in tmp_path.iterdir()] == [PREDICTIONS_FILE]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ('{"base": 3}', "is damaged"),
        (f'{{"format": {PREDICTIONS_FORMAT + 1}}}', "install a newer one"),
        ('{"settings": [{"changes": {"num_blocks": [1]}}]}', "is damaged"),
    ],
)
def test_what_cbtrace_did_not_write_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / PREDICTIONS_FILE).write_text(text)
    with pytest.raises(PredictionsError, match=said) as refused:
        read_predictions(tmp_path)
    assert refused.value.slug == "predictions-unreadable" and "\n" not in str(refused.value)


def test_endless_numbers_and_endless_lists_are_refused(tmp_path: Path) -> None:
    write_predictions(predictions(PredictedSetting({}, {"ttft_ms.p95": 1.0})), tmp_path)
    path = tmp_path / PREDICTIONS_FILE
    path.write_text(path.read_text().replace("1.0", "1e999"))
    with pytest.raises(PredictionsError):
        read_predictions(tmp_path)
    write_predictions(predictions(*(PredictedSetting({"num_blocks": at}) for at in range(MOST_SETTINGS))), tmp_path)
    assert read_predictions(tmp_path) is not None
    write_predictions(predictions(*(PredictedSetting({"num_blocks": at}) for at in range(MOST_SETTINGS + 1))), tmp_path)
    with pytest.raises(PredictionsError, match="does not write"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("number", [-1.0, -0.001, 1e16, 1e300])
@pytest.mark.parametrize("where", ["own", "errors", "values", "changes", "memory", "own memory"])
def test_numbers_that_cannot_be_are_refused(where: str, number: float, tmp_path: Path) -> None:
    setting = PredictedSetting({"cpu_offload_space": 2.0}, {"ttft_ms.p95": 1.0}, memory_bytes=1)
    made = predictions(setting)
    write_predictions(made, tmp_path)
    assert read_predictions(tmp_path) == made
    if where == "memory":
        setting.memory_bytes = int(number * 1000)
    elif where == "own memory":
        made.own_memory_bytes = int(number * 1000)
    else:
        held = {"own": made.own, "errors": made.errors, "values": setting.values, "changes": setting.changes}[where]
        assert held is not None
        held["cpu_offload_space"] = number
    write_predictions(made, tmp_path)
    with pytest.raises(PredictionsError, match=r"a number below 0 or above 1e\+15") as refused:
        read_predictions(tmp_path)
    assert "\n" not in str(refused.value)


def test_what_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_predictions(
        predictions(PredictedSetting({"num_blocks": 96, "x": 1}), PredictedSetting({"x": 1.0, "num_blocks": 96.0})),
        tmp_path,
    )
    with pytest.raises(PredictionsError, match="a setting twice"):
        read_predictions(tmp_path)
    made = predictions()
    made.learned_from.append("r1")
    write_predictions(made, tmp_path)
    with pytest.raises(PredictionsError, match="a run twice"):
        read_predictions(tmp_path)
