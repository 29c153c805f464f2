"""The tables of a trace as Parquet or CSV files, one a table. Columns and units: :mod:`cbtrace.traces.columns`.

Hashes are hexadecimal text. Needs the extra ``cbtrace[export]`` (polars).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..columns import StepRequests, Tokens
from ..errors import TraceError, TraceExistsError, declare
from ..reader import Trace
from ..schema import Severity
from ..tables import joined

TABLES = ("steps", "step_requests", "requests", "tokens", "admissions", "events", "memory", "gpu")
KINDS = ("parquet", "csv")
Progress = Callable[[int, int], None]
"""Called with the number of tables written and of all."""

_SLICE = 1 << 18


def write_tables(
    trace: Trace,
    folder: Path,
    kind: str = "parquet",
    *,
    tables: Iterable[str] = TABLES,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Write tables into a folder as ``steps.parquet`` and so on; returns the files.

    Files appear only when all of them are written. ``step_requests`` and ``tokens`` are never in memory as a whole.

    Args:
        trace: what to export.
        folder: is made if it is not there. Other files in it stay untouched.
        kind: one of :data:`KINDS`.
        tables: names out of :data:`TABLES`.
        overwrite: replace files of the same names.
        progress: see :data:`Progress`.

    Raises:
        TraceError: polars is not installed.
        TraceExistsError: a file exists and may not be overwritten, or the folder's name is taken by a file.
        OSError: a file cannot be written.
        ValueError: no such table or kind.
    """
    tables = list(tables)
    if kind not in KINDS or not set(tables) <= set(TABLES):
        raise ValueError(f"There are tables {', '.join(TABLES)} as {' or '.join(KINDS)}.")
    polars = _library()
    targets = [folder / f"{name}.{kind}" for name in tables]
    _check(folder, targets, overwrite)
    created = not folder.exists()
    aside = folder / f".cbtrace-export-{os.getpid()}"
    aside.mkdir(parents=True)
    try:
        for done, (name, target) in enumerate(zip(tables, targets, strict=True)):
            if progress is not None:
                progress(done, len(tables))
            _write(polars, trace, name, aside / target.name, kind)
        for target in targets:
            (aside / target.name).replace(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if created:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if nothing was written
    if progress is not None:
        progress(len(tables), len(tables))
    return targets


def _check(folder: Path, targets: list[Path], overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise TraceExistsError(f"{folder} exists and is not a folder: name another one for the tables.")
    for target in targets:
        if target.exists() and not overwrite:
            raise TraceExistsError(f"{target} exists already: name another folder, or overwrite.")


def _write(polars: Any, trace: Trace, name: str, path: Path, kind: str) -> None:
    parts = _parts(trace, name)
    first = next(parts)
    schema = polars.DataFrame(first).schema

    def source(columns: list[str] | None, _predicate: Any, _rows: int | None, _size: int | None) -> Iterator[Any]:
        for part in _chain(first, parts):
            frame = polars.DataFrame(part, schema=schema)
            yield frame.select(columns) if columns is not None else frame

    frames = polars.io.plugins.register_io_source(source, schema=schema)
    if kind == "parquet":
        frames.sink_parquet(path)
    else:
        frames.sink_csv(path)


def _chain(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest


def _parts(trace: Trace, name: str) -> Iterator[dict[str, Any]]:
    """A table in parts, the largest ones never as a whole; the first part tells the types, and may be empty."""
    if name == "step_requests":
        yield _plain(joined(StepRequests, []))
        yield from map(_plain, trace.iter_step_requests())
    elif name == "tokens":
        yield _plain(joined(Tokens, []))
        yield from map(_plain, trace.iter_tokens())
    else:
        yield from _slices(getattr(trace, name))


def _slices(table: Any) -> Iterator[dict[str, Any]]:
    columns = _plain(table)
    length = len(next(iter(columns.values())))
    for first in range(0, max(length, 1), _SLICE):
        yield {name: values[first : first + _SLICE] for name, values in columns.items()}


def _plain(table: Any) -> dict[str, Any]:
    """Columns as numpy arrays, hashes as text."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        values = getattr(table, field.name)
        if isinstance(values, list):
            texts = [value.hex() if isinstance(value, bytes) else value for value in values]
            values = np.array(texts, dtype=object) if texts else np.zeros(0, dtype=str)
        columns[field.name] = values
    return columns


def _library() -> Any:
    try:
        import polars
        import polars.io.plugins
    except ImportError as error:
        raise TraceError(
            "Tables are written with the package polars, which is not installed: run pip install 'cbtrace[export]'.",
            slug="export-missing",
        ) from error
    return polars


declare(
    "export-missing",
    Severity.BROKEN,
    "Parquet and CSV files are written with the optional package polars, which is not installed.",
    "Run pip install 'cbtrace[export]'.",
)
