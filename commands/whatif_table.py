"""What ``cbtrace whatif`` found, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cbtrace.commands.whatif_limits import Limit, may_miss
from cbtrace.commands.whatif_study import COUNTS, Prediction, Study, Values

_TIMES = ("throughput_generated_tps", "ttft_ms.p50", "ttft_ms.p95", "token_gap_ms.p50", "token_gap_ms.p99")

_LABELS = ("tokens/s", "TTFT p50", "TTFT p95", "gap p50", "gap p99", "soft resets", "offloads", "captures")
_WIDTH = 12


def lines(found: Study) -> Iterator[str]:
    """A table of settings by numbers (times in ms), then what to doubt."""
    from cbtrace.recorder.whatif.predict import told

    rows = [told(prediction.changes) for prediction in found.predictions]
    width = max(24, *(len(row) + 3 for row in rows))
    several = f"{found.recordings} recordings, replayed" if found.recordings > 1 else "replayed"
    yield f"{found.name}: {several} with their own settings exactly as recorded. Times in ms."
    yield ""
    yield " " * width + "".join(f"{label:>{_WIDTH}}" for label in _LABELS)
    yield _row("measured", found.measured, width)
    yield from _of("predicted, as it was", found.own, width)
    for row, prediction in zip(rows, found.predictions, strict=True):
        yield from _of(row, prediction, width)
    if found.left_out:
        yield f"{'error, at most':<{width}}" + "".join(f"{_band(found, key):>{_WIDTH}}" for key in (*_TIMES, *COUNTS))
    yield ""
    yield from _how_sure(found)


def _of(label: str, prediction: Prediction, width: int) -> Iterator[str]:
    if prediction.values is None:
        yield f"{label:<{width}}  {prediction.refused}"
    else:
        yield _row(f"{label}{' *' if prediction.doubts else ''}", prediction.values, width)


def _row(label: str, values: Values, width: int) -> str:
    return f"{label:<{width}}" + "".join(f"{_cell(values[key]):>{_WIDTH}}" for key in (*_TIMES, *COUNTS))


def _cell(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _band(found: Study, key: str) -> str:
    error = found.error(key)
    if error is None:
        return "unknown"
    return f"±{error:.0f}" if key in COUNTS else f"±{100 * error:.0f} %"


def next_lines(found: Study, limits: Sequence[Limit], maximize: str, worth: list[Prediction]) -> Iterator[str]:
    """The settings that keep the limits, best first, and of which of them that is not sure."""
    from cbtrace.recorder.whatif.predict import told

    kept = " and ".join(limit.text for limit in limits) or "no limit"
    yield ""
    if not worth:
        yield f"None of these settings is predicted to keep {kept}."
        return
    yield f"Worth running next, largest {maximize} first ({kept}):"
    for number, prediction in enumerate(worth, 1):
        value = (prediction.values or {})[maximize]
        unsure = [limit.text for limit in may_miss(found, prediction, limits)]
        doubt = f"; by what predictions are off, may miss {' and '.join(unsure)}" if unsure else ""
        yield f"  {number}. {told(prediction.changes)}: {_cell(value)}{doubt}"


def _how_sure(found: Study) -> Iterator[str]:
    if found.left_out:
        yield f"Error: the largest of {len(found.left_out)} recordings, each predicted from the others."
    else:
        yield "How far these predictions are off is not known from one recording: give more, with other settings."
    doubts = [doubt for each in (found.own, *found.predictions) for doubt in each.doubts]
    largest = {(doubt.part, doubt.term): doubt for doubt in sorted(doubts, key=lambda doubt: doubt.asked)}
    yield from (f"* Beyond what was seen: {doubt}." for _, doubt in sorted(largest.items()))
    for prediction in found.predictions:
        if prediction.trace is not None:
            yield f"Wrote {prediction.trace}"
    yield "A prediction is no measurement: run the setting before you rely on it."
