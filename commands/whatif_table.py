"""What ``cbtrace whatif`` found, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cbtrace.commands.whatif_limits import Limit, may_miss
from cbtrace.commands.whatif_study import COUNTS, Prediction, Study, Values, doubts_told

_TIMES = ("throughput_generated_tps", "ttft_ms.p50", "ttft_ms.p95", "token_gap_ms.p50", "token_gap_ms.p99")

_LABELS = ("tokens/s", "TTFT p50", "TTFT p95", "gap p50", "gap p99", "soft resets", "offloads", "captures")
_WIDTH = 12
_MANY = 10
_WORTH_TELLING = ("throughput_generated_tps", "ttft_ms.p95", "token_gap_ms.p99")
_MOST = 8
"""Settings that are told to be worth running."""


def lines(found: Study) -> Iterator[str]:
    """A table of settings by numbers, times in ms."""
    from cbtrace.recorder.whatif.predict import told

    rows = [told(prediction.changes) for prediction in found.predictions]
    width = max(24, *(len(row) + 3 for row in rows))
    several = f"{len(found.paths)} recordings, replayed" if len(found.paths) > 1 else "replayed"
    yield f"{found.name}: {several} with their own settings exactly as recorded. Times in ms."
    yield ""
    memory = found.own.memory_bytes is not None
    yield " " * width + "".join(f"{label:>{_WIDTH}}" for label in (*_LABELS, *(["memory, GiB"] if memory else [])))
    peak = found.measured["peak_memory_bytes"]
    yield _row("measured", found.measured, width) + (_gib(peak) if memory else "")
    yield from _of("predicted, as it was", found.own, width)
    for row, prediction in zip(rows, found.predictions, strict=True):
        yield from _of(row, prediction, width)
    if found.left_out:
        yield f"{'error, within':<{width}}" + "".join(f"{_band(found, key):>{_WIDTH}}" for key in (*_TIMES, *COUNTS))


def _of(label: str, prediction: Prediction, width: int) -> Iterator[str]:
    if prediction.values is None:
        yield f"{label:<{width}}  {prediction.refused}"
    else:
        row = _row(f"{label}{' *' if prediction.doubts else ''}", prediction.values, width)
        yield row + (_gib(prediction.memory_bytes) if prediction.memory_bytes is not None else "")


def _row(label: str, values: Values, width: int) -> str:
    return f"{label:<{width}}" + "".join(f"{_cell(values[key]):>{_WIDTH}}" for key in (*_TIMES, *COUNTS))


def _gib(size: float | None) -> str:
    return f"{'unknown' if size is None else f'{size / (1 << 30):,.3g}':>{_WIDTH}}"


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

    kept = " and ".join(limit.text for limit in limits)
    yield ""
    if not worth:
        yield f"None of these settings is predicted to {f'keep {kept}' if kept else f'give more {maximize}'}."
        return
    those = f", of those that keep {kept}" if kept else ""
    yield f"Worth running next, largest {maximize} first{those} (changes are from what is predicted as it was):"
    for number, prediction in enumerate(worth[:_MOST], 1):
        shown = dict.fromkeys((maximize, *_WORTH_TELLING))
        numbers = ", ".join(_changed(found, prediction, key) for key in shown)
        unsure = [limit.text for limit in may_miss(found, prediction, limits)]
        doubt = f"; by what predictions are off, may miss {' and '.join(unsure)}" if unsure else ""
        yield f"  {number}. {told(prediction.changes)}: {numbers}{doubt}"
    if len(worth) > _MOST:
        yield f"  and {len(worth) - _MOST} more in the table."


def _changed(found: Study, prediction: Prediction, key: str) -> str:
    gain, label = found.gain(prediction, key), dict(zip((*_TIMES, *COUNTS), _LABELS, strict=True)).get(key, key)
    return f"{label} {_cell((prediction.values or {})[key])}" + ("" if gain is None else f" ({100 * gain:+.0f} %)")


def how_sure(found: Study, kept: Path | None) -> Iterator[str]:
    """What to doubt, and which files were written; ``kept`` is the one of an experiment."""
    if found.left_out:
        slow, fast = 100 * (max(found.seen) - 1), 100 * (min(found.seen) - 1)
        known = len(found.left_out)
        which, share = ("9 in 10", "9 in 10") if known >= _MANY else ("all", f"{known} in {known + 1}")
        yield (
            f"Error: what {which} of {known} recordings keep within, each predicted from the others; about {share} new "
            "predictions can be expected to."
        )
        yield f"Part of it is the host, whose work took {fast:+.0f} to {slow:+.0f} % more time than usual in these."
        yield "Nobody knows how slow it will be next time; all settings above are predicted for the same, usual host."
    else:
        yield "How far these predictions are off is not known from one recording: give more, with other settings."
    if found.own.memory_bytes is not None:
        own, peak = _gib(found.own.memory_bytes).strip(), found.measured["peak_memory_bytes"]
        measured = "nothing was measured" if peak is None else f"{_gib(peak).strip()} GiB were measured"
        yield f"Memory is the engine's own estimate: for the recorded settings it is {own} GiB, where {measured}."
    if any("cpu_offload_space" in prediction.changes for prediction in found.predictions):
        yield "cpu_offload_space is in GiB."
    if doubts := doubts_told([found.own, *found.predictions]):
        yield f"* Beyond what was seen: {'; '.join(doubts)}."
    yield from (f"Not learned from: {why}" for why in found.left_aside)
    for written in (*(prediction.trace for prediction in found.predictions), kept):
        if written is not None:
            yield f"Wrote {written}"
    yield "A prediction is no measurement: run the setting before you rely on it."
