"""Recorded arrivals of real services, in the layouts they are published in.

======== ======================================================================================================
azure    CSV: ``TIMESTAMP, ContextTokens, GeneratedTokens`` (Azure Public Dataset, LLM inference traces)
mooncake JSONL: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, one for each block of 512 prompt
         tokens; equal ids mean equal blocks (Mooncake, FAST '25)
burstgpt CSV: ``Timestamp`` (s), ``Request tokens``, ``Response tokens`` and more (BurstGPT)
======== ======================================================================================================
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec

from cbtrace.recorder.experiments.spec_error import SpecError

MOONCAKE_BLOCK_TOKENS = 512
NS_PER_S = 1_000_000_000

Layout = Literal["azure", "mooncake", "burstgpt"]
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


@dataclass(frozen=True)
class RecordedRequest:
    """One request of a recorded trace."""

    at_ns: int
    """When it arrived, on the trace's own clock."""
    prompt_tokens: int
    new_tokens: int
    """0: the service recorded no answer."""
    blocks: tuple[int, ...] = ()
    """Ids of its prompt's blocks, from the start; requests with equal ids have equal blocks."""


def read_recorded(file: str, folder: Path, layout: Layout | None, count: int | None) -> list[RecordedRequest]:
    """Read the first ``count`` requests that got an answer, in the order of their arrival.

    Raises:
        SpecError: the file is missing, in no known layout, or has a line that cannot be used.
    """
    try:
        with (folder / Path(file).expanduser()).open(encoding="utf-8", newline="") as lines:
            layout = layout or _layout_of(file, lines)
            answered = (request for request in _READERS[layout](lines) if request.new_tokens > 0)
            requests = list(islice(answered, count))
    except OSError as error:
        text = f"{file} cannot be read ({error.strerror}): name a file that exists, relative to the plan."
        raise SpecError(text, at=("file",)) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is not a text in UTF-8: name another file.", at=("file",)) from error
    except (ValueError, csv.Error) as error:
        raise SpecError(f"{file}, {error}", at=("file",)) from error
    if not requests:
        raise SpecError(f"{file} holds no requests: name another file.", at=("file",))
    return sorted(requests, key=lambda request: request.at_ns)


def _layout_of(file: str, lines: IO[str]) -> Layout:
    first = lines.readline()
    lines.seek(0)
    if first.lstrip().startswith("{"):
        return "mooncake"
    names = next(csv.reader([first.lstrip("\ufeff")]), [])
    if set(_AZURE) <= set(names):
        return "azure"
    if set(_BURSTGPT) <= set(names):
        return "burstgpt"
    raise ValueError("line 1 is in no known layout (azure, mooncake, burstgpt): name the columns as one of them does.")


def _azure(lines: IO[str]) -> Iterator[RecordedRequest]:
    for number, (time, prompt, new) in _rows(lines, _AZURE):
        yield RecordedRequest(_clock(time, number), _count(prompt, number, 1), _count(new, number, 0))


def _burstgpt(lines: IO[str]) -> Iterator[RecordedRequest]:
    for number, (time, prompt, new) in _rows(lines, _BURSTGPT):
        try:
            at_ns = round(float(time) * NS_PER_S)
        except (ValueError, OverflowError):
            raise ValueError(f"line {number}: {time[:40]!r} is no time in seconds.") from None
        yield RecordedRequest(at_ns, _count(prompt, number, 1), _count(new, number, 0))


def _rows(lines: IO[str], columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    rows = csv.DictReader(lines)
    rows.fieldnames = [name.lstrip("\ufeff") for name in rows.fieldnames or ()]
    missing = [name for name in columns if name not in rows.fieldnames]
    if missing:
        raise ValueError(f"line 1 has no column {missing[0]!r}.")
    for row in rows:
        yield rows.line_num, [row[name] or "" for name in columns]


def _count(text: str, line: int, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < least:
        raise ValueError(f"line {line}: {text[:40]!r} is no number of tokens.")
    return value


def _clock(text: str, line: int) -> int:
    """Nanoseconds since 1970; Azure writes seven digits of a second, more than ``datetime`` keeps."""
    whole, _, fraction = text.partition(".")
    digits, _, zone = fraction.partition("+")
    try:
        seconds = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
        if zone not in ("", "00:00"):
            raise ValueError
        return int(seconds) * NS_PER_S + int(digits.ljust(9, "0")[:9] or 0)
    except ValueError:
        raise ValueError(f"line {line}: {text[:40]!r} is no time such as 2023-11-16 18:15:46.680.") from None


class _MooncakeLine(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[int]


def _mooncake(lines: IO[str]) -> Iterator[RecordedRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_MooncakeLine)
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: {error}.") from None
        at_ns = round(entry.timestamp * 1_000_000)
        yield RecordedRequest(at_ns, entry.input_length, entry.output_length, tuple(entry.hash_ids))


_READERS: dict[Layout, Callable[[IO[str]], Iterator[RecordedRequest]]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
}
