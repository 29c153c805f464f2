"""Exports of tables: all rows, all columns, nothing half-written."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import polars
import pytest

from cbtrace.traces import Trace, TraceError, TraceExistsError, attribution
from cbtrace.traces.export import tables as export
from cbtrace.traces.export.tables import KINDS, TABLES, write_tables
from cbtrace.traces.schema import Gpu, Memory
from trace_builder import TraceBuilder, eventful


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    build = eventful(tmp_path / "run.cbt")
    build.write(Memory(5, "model_loaded", allocated=2**40))
    build.write(Gpu(6, utilization=50))
    return build.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_of_every_table_comes_back(
    trace: Trace, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "_BLOCK_STEPS", 3)
    monkeypatch.setattr(export, "_SLICE", 4)
    written = write_tables(trace, tmp_path / "out", kind)
    assert [path.name for path in written] == [f"{name}.{kind}" for name in TABLES]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in written)
    for name, path in zip(TABLES, written, strict=True):
        frame = polars.read_parquet(path) if kind == "parquet" else polars.read_csv(path, infer_schema_length=None)
        table = getattr(trace, name)
        assert frame.columns == [field.name for field in fields(table)]
        for column in frame.columns:
            wanted = list(getattr(table, column))
            wanted = [value.hex() if isinstance(value, bytes) else value for value in wanted]
            got = [("" if value is None else value) for value in frame[column].to_list()]
            assert got == wanted, (name, column)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_tables_have_their_columns(tmp_path: Path, kind: str) -> None:
    trace = TraceBuilder(tmp_path / "run.cbt").close()
    for path in write_tables(trace, tmp_path / "out", kind):
        frame = polars.read_parquet(path) if kind == "parquet" else polars.read_csv(path)
        assert frame.height == 0
        assert frame.columns == [field.name for field in fields(getattr(trace, path.stem))]


def test_existing_files_stay_unless_overwriting_is_allowed(trace: Trace, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "tokens.csv").write_text("also mine")
    with pytest.raises(TraceExistsError, match=r"tokens\.csv"):
        write_tables(trace, folder, "csv")
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "tokens.csv"]
    assert (folder / "tokens.csv").read_text() == "also mine"
    write_tables(trace, folder, "csv", tables=["tokens"], overwrite=True)
    assert (folder / "tokens.csv").read_text().startswith("request,position,step,time_ns\n")
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(TraceExistsError, match="not a folder"):
        write_tables(trace, folder / "notes.txt")


def test_an_interrupted_export_leaves_nothing(trace: Trace, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tables(trace, tmp_path / "out", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["run.cbt"]


def test_wrong_names_are_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tables steps"):
        write_tables(trace, tmp_path / "out", tables=["stepz"])
    with pytest.raises(ValueError, match="parquet or csv"):
        write_tables(trace, tmp_path / "out", "xlsx")


def test_without_polars_the_remedy_is_named(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(TraceError, match="cbtrace\\[export\\]"):
        write_tables(trace, tmp_path / "out")
