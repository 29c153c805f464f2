"""How many tokens: the distributions that prompt lengths and generation limits are drawn from."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from cbtrace.recorder.experiments.spec_error import SpecError

MOST_TOKENS = 10_000_000
Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]


class Fixed(Struct, tag_field="kind", tag="fixed", forbid_unknown_fields=True, frozen=True):
    """Always the same number of tokens."""

    tokens: Tokens


class Uniform(Struct, tag_field="kind", tag="uniform", forbid_unknown_fields=True, frozen=True):
    """Every number of tokens from ``low`` to ``high``, both included, equally often."""

    low: Tokens
    high: Tokens


class LogNormal(Struct, tag_field="kind", tag="lognormal", forbid_unknown_fields=True, frozen=True):
    """Log-normal with the given median; ``sigma`` is the standard deviation of the logarithm.

    Values are rounded and clamped to ``low`` and ``high``.
    """

    median: Annotated[float, Meta(gt=0)]
    sigma: Annotated[float, Meta(gt=0, le=10)]
    high: Tokens
    low: Tokens = 1


class Percentiles(Struct, tag_field="kind", tag="percentiles", forbid_unknown_fields=True, frozen=True):
    """A distribution given by some of its percentiles, such as ``{50 = 200, 95 = 2000}``.

    Between two of them it is interpolated linearly; outside, it takes the nearest one's value.
    """

    points: dict[str, Tokens]


class Empirical(Struct, tag_field="kind", tag="empirical", forbid_unknown_fields=True, frozen=True):
    """Drawn from the numbers in a file, each as often as it stands there.

    The file has one number a line, or is a CSV file with a header of which ``column`` names a column.
    """

    file: str
    column: str | None = None


Lengths = Fixed | Uniform | LogNormal | Percentiles | Empirical


def check_lengths(lengths: Lengths) -> None:
    """Raise :class:`SpecError` for what the types cannot tell."""
    if isinstance(lengths, (Uniform, LogNormal)) and lengths.low > lengths.high:
        raise SpecError(f"low = {lengths.low} is above high = {lengths.high}: exchange them.", at=("low",))
    if isinstance(lengths, Percentiles):
        _quantiles(lengths)


def draw_lengths(lengths: Lengths, count: int, random: np.random.RandomState, folder: Path) -> list[int]:
    """Draw ``count`` lengths in tokens. Paths in the specification are relative to ``folder``.

    Raises:
        SpecError: a file is missing or does not hold what it should.
    """
    if isinstance(lengths, Fixed):
        return [lengths.tokens] * count
    if isinstance(lengths, Uniform):
        return _ints(random.randint(lengths.low, lengths.high + 1, size=count))
    if isinstance(lengths, LogNormal):
        values = np.exp(np.log(lengths.median) + lengths.sigma * random.standard_normal(count))
        return _ints(np.clip(np.rint(values), lengths.low, lengths.high))
    if isinstance(lengths, Percentiles):
        shares, tokens = _quantiles(lengths)
        return _ints(np.rint(np.interp(random.random_sample(count), shares, tokens)))
    values = read_numbers(lengths, folder)
    return _ints(np.array(values)[random.randint(0, len(values), size=count)])


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values.tolist()]


def _quantiles(lengths: Percentiles) -> tuple[list[float], list[int]]:
    pairs: list[tuple[float, int]] = []
    for name, tokens in lengths.points.items():
        try:
            percentile = float(name)
        except ValueError:
            raise SpecError(f"{name!r} is no percentile: name a number from 0 to 100.", at=("points", name)) from None
        if not 0 <= percentile <= 100:
            raise SpecError(f"Percentile {name} is out of range: name one from 0 to 100.", at=("points", name))
        pairs.append((percentile / 100, tokens))
    pairs.sort()
    if not pairs:
        raise SpecError("No percentile is given: name one at least, such as 50 = 200.", at=("points",))
    for (lower, fewer), (higher, more) in pairwise(pairs):
        if more < fewer or lower == higher:
            raise SpecError(
                f"Percentile {higher * 100:g} has {more} tokens and {lower * 100:g} has {fewer}: "
                "name each once, and let the tokens rise with them.",
                at=("points",),
            )
    return [share for share, _ in pairs], [tokens for _, tokens in pairs]


def read_numbers(lengths: Empirical, folder: Path) -> list[int]:
    """Read the numbers of tokens in a file, in its order.

    Raises:
        SpecError: it is missing, or a line of it holds no positive whole number.
    """
    path = folder / Path(lengths.file).expanduser()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _column(file, lengths.column) if lengths.column is not None else _lines(file)
    except OSError as error:
        raise SpecError(
            f"{lengths.file} cannot be read ({error.strerror}): name a file that exists, relative to the plan.",
            at=("file",),
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{lengths.file} is not a text in UTF-8: name another file.", at=("file",)) from error
    except (ValueError, csv.Error) as error:
        raise SpecError(f"{lengths.file}, {error}", at=("file",)) from error


def _lines(file: Any) -> list[int]:
    kept = ((number, line.strip()) for number, line in enumerate(file, 1))
    return _some([_whole(text, number) for number, text in kept if text and not text.startswith("#")])


def _column(file: Any, column: str) -> list[int]:
    rows = csv.DictReader(file)
    if column not in (rows.fieldnames or ()):
        raise ValueError(f"line 1 has no column {column!r}: name one of {', '.join(rows.fieldnames or ['(none)'])}.")
    return _some([_whole(row[column] or "", rows.line_num) for row in rows])


def _some(values: list[int]) -> list[int]:
    if not values:
        raise ValueError("line 1: it holds no numbers: name a file with one number of tokens a line.")
    return values


def _whole(text: str, line: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MOST_TOKENS:
        raise ValueError(
            f"line {line}: {text[:40]!r} is no number of tokens: write a whole number from 1 to {MOST_TOKENS}."
        )
    return value
