"""``predictions.json``: what settings would have done, by ``cbtrace whatif``, for the page of an experiment.

It lies beside ``experiment.json``. Like a trace it is untrusted input: read it with :func:`read_predictions`. Fields
are only ever appended, with a default; a change of meaning raises :data:`PREDICTIONS_FORMAT`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

from .aside import written_aside
from .errors import CbtraceError, declare
from .schema import Scalar, Severity

PREDICTIONS_FILE = "predictions.json"
PREDICTIONS_FORMAT = 1
MOST_SETTINGS = 10_000
LARGEST_BYTES = 64 << 20
LARGEST = 1e15
"""No number of a run is larger: it is a petabyte, or thirty thousand years in ms."""

Values = dict[str, float | None]
"""By the keys of the JSON summary, such as ``ttft_ms.p95``; ``None`` is unknown."""


class PredictionsError(CbtraceError):
    """Predictions cannot be read."""

    slug = "predictions-unreadable"


class PredictedSetting(Struct):
    """One setting that was calculated: its numbers, or why there are none."""

    changes: dict[str, Scalar]
    """What it changes in the run that was replayed."""
    values: Values | None = None
    doubts: list[str] = field(default_factory=list)
    """What the prediction asked for beyond what recordings show, in words."""
    refused: str = ""
    """Why there are no numbers, in a sentence."""
    memory_bytes: int | None = None
    """Memory of the device, as the engine's own model reckons; ``None`` where no device was recorded."""


class Predictions(Struct):
    """All of ``predictions.json``."""

    base: str
    """Id of the experiment's run whose requests were replayed."""
    base_run_id: str
    """The same run by the id in its trace: predictions of a trace that was replaced are of no use."""
    learned_from: list[str]
    """Ids of the runs from which it was learned how long steps take."""
    own: Values
    """Predicted with the settings that the base was run with."""
    errors: Values
    """By key, the error that nine in ten of those runs kept when each was predicted from the others: a share, for
    counts a number; empty when there was one run only."""
    settings: list[PredictedSetting]
    tool_version: str = ""
    format: int = PREDICTIONS_FORMAT
    own_memory_bytes: int | None = None
    """Of the settings that the base was run with."""
    considered: dict[str, str] = field(default_factory=dict)
    """Every run that was there to learn from, also those that could not be: by its id, the id in its trace. Empty in
    files of before it was written."""


def read_predictions(folder: Path) -> Predictions | None:
    """Read the predictions in a folder; ``None`` when there are none.

    Raises:
        PredictionsError: the file is damaged, too new or too large.
    """
    path = folder / PREDICTIONS_FILE
    again = "run cbtrace whatif on the folder again"
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise PredictionsError(f"{path} is larger than any that cbtrace writes: {again}.")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PredictionsError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > PREDICTIONS_FORMAT:
            raise PredictionsError(
                f"{path} is of format {found}, and this cbtrace reads up to {PREDICTIONS_FORMAT}: install a newer one."
            )
        predictions = msgspec.json.decode(data, type=Predictions)
    except msgspec.MsgspecError as error:
        raise PredictionsError(f"{path} is damaged ({error}): {again}.") from error
    wrong = _wrong(predictions)
    if wrong:
        raise PredictionsError(f"{path} holds what cbtrace does not write ({wrong}): {again}.")
    return predictions


class _Format(Struct):
    format: int = 1


def _wrong(predictions: Predictions) -> str:
    """What cannot be in them; empty if nothing is wrong."""
    if len(predictions.settings) > MOST_SETTINGS:
        return f"more than {MOST_SETTINGS:,} settings"
    # NaN is in no range.
    if not all(0 <= number <= LARGEST for number in _numbers(predictions)):
        return f"a number below 0 or above {LARGEST:g}"
    changes = [frozenset(setting.changes.items()) for setting in predictions.settings]
    if len(set(changes)) < len(changes):
        return "a setting twice"
    return "a run twice" if len(set(predictions.learned_from)) < len(predictions.learned_from) else ""


def _numbers(predictions: Predictions) -> Iterator[float]:
    settings = predictions.settings
    found: list[Mapping[str, Scalar]] = [predictions.own, predictions.errors, *(it.changes for it in settings)]
    found += [it.values for it in settings if it.values is not None]
    for values in found:
        yield from (value for value in values.values() if isinstance(value, (int, float)))
    memory = [predictions.own_memory_bytes, *(it.memory_bytes for it in settings)]
    yield from (size for size in memory if size is not None)


def write_predictions(predictions: Predictions, folder: Path) -> Path:
    """Write ``predictions.json``, whole or not at all, in place of one that is there; return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / PREDICTIONS_FILE
    data = msgspec.json.format(msgspec.json.encode(predictions, order="deterministic"), indent=1)
    with written_aside(path) as aside:
        aside.write_bytes(data + b"\n")
    return path


declare(
    "predictions-unreadable",
    Severity.WARNING,
    "The file predictions.json of an experiment cannot be read or was not written by cbtrace; the page goes without.",
    "Run `cbtrace whatif` on the folder of the experiment again.",
)
