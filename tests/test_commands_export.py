"""``cbtrace export`` and ``cbtrace upgrade`` write whole files, or none."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pytest
import zstandard

from cbtrace.commands.export import Target, _write
from cbtrace.site.analysis.summary import summarize, summary_json
from cbtrace.traces import open_trace
from cbtrace.traces.export.tables import TABLES
from cbtrace.traces.schema import FORMAT_VERSION
from conftest import Cbtrace
from trace_builder import eventful

OLD = Path(__file__).parent / "fixtures" / "version-1-soft-resets.cbt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    eventful(tmp_path / "run.cbt").close()
    return tmp_path / "run.cbt"


def test_perfetto(cbtrace: Cbtrace, run: Path, tmp_path: Path) -> None:
    result = cbtrace("export", "run.cbt", "--to", "perfetto", "-o", "trace.json")
    assert (result.returncode, result.stdout, result.stderr) == (0, "trace.json\n", "")
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())]
    assert sum(name.startswith("step ") for name in names) == len(open_trace(run).steps.index)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_tables(cbtrace: Cbtrace, run: Path, tmp_path: Path, kind: str) -> None:
    result = cbtrace("export", "run.cbt", "--to", kind, "-o", "tables")
    assert result.returncode == 0
    assert result.stdout.split() == [f"tables/{name}.{kind}" for name in TABLES]
    read = polars.read_parquet if kind == "parquet" else polars.read_csv
    assert read(tmp_path / "tables" / f"tokens.{kind}").height == len(open_trace(run).tokens.request)


def test_json_is_the_summary_that_info_prints(cbtrace: Cbtrace, run: Path, tmp_path: Path) -> None:
    assert cbtrace("export", "run.cbt", "--to", "json", "-o", "run.json").returncode == 0
    written = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert written == cbtrace("info", "run.cbt", "--json").stdout
    assert json.loads(written) == json.loads(json.dumps(summary_json(summarize(open_trace(run)))))


@pytest.mark.parametrize("to", ["perfetto", "csv", "json"])
def test_a_second_export_needs_leave(cbtrace: Cbtrace, run: Path, tmp_path: Path, to: str) -> None:
    assert cbtrace("export", "run.cbt", "--to", to, "-o", "out").returncode == 0
    again = cbtrace("export", "run.cbt", "--to", to, "-o", "out")
    assert again.returncode == 1 and again.stderr.endswith("[trace-exists]\n")
    assert cbtrace("export", "run.cbt", "--to", to, "-o", "out", "--overwrite").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.cbt"]


@pytest.mark.parametrize("to", list(Target))
def test_progress_is_told(run: Path, tmp_path: Path, to: Target) -> None:
    told: list[tuple[int, int]] = []
    _write(open_trace(run), to, tmp_path / "out", False, lambda done, total, _name: told.append((done, total)))
    if to is Target.json:
        assert told == []  # nothing to wait for
    else:
        assert told[-1][0] == told[-1][1] > 1
        assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_damaged_trace_is_exported_and_the_summary_says_so(cbtrace: Cbtrace, run: Path, tmp_path: Path) -> None:
    run.write_bytes(run.read_bytes()[:-60])
    assert cbtrace("export", "run.cbt", "--to", "json", "-o", "run.json").returncode == 0
    assert json.loads((tmp_path / "run.json").read_text())["recovery"]["status"] == "cut"


def test_upgrade(cbtrace: Cbtrace, tmp_path: Path) -> None:
    result = cbtrace("upgrade", OLD, "-o", "new.cbt")
    assert result.stdout == f"new.cbt: format version {FORMAT_VERSION}, from version 1\n"
    old, new = open_trace(OLD), open_trace(tmp_path / "new.cbt")
    assert new.format_version == FORMAT_VERSION
    assert new.recovery.whole
    assert new.tokens.time_ns.tolist() == old.tokens.time_ns.tolist()


def test_compress_and_decompress(cbtrace: Cbtrace, run: Path, tmp_path: Path) -> None:
    before = run.read_bytes()
    result = cbtrace("compress", "run.cbt")
    size = (tmp_path / "run.cbt.zst").stat().st_size
    assert result.stdout == f"run.cbt.zst: {size:,} bytes, {size / len(before):.0%} of run.cbt\n"
    assert cbtrace("info", "run.cbt.zst", "--json").returncode == 0
    run.unlink()
    assert cbtrace("decompress", "run.cbt.zst").stdout == "run.cbt\n"
    assert run.read_bytes() == before


@pytest.mark.parametrize("name", ["old.cbt", "new.cbt"])
def test_upgrade_in_place_and_elsewhere_from_a_compressed_trace(cbtrace: Cbtrace, tmp_path: Path, name: str) -> None:
    source = tmp_path / ("old.cbt" if name == "old.cbt" else "old.cbt.zst")
    source.write_bytes(OLD.read_bytes() if name == "old.cbt" else zstandard.compress(OLD.read_bytes()))
    assert cbtrace("upgrade", source.name, "-o", name, "--overwrite").returncode == 0
    assert {file.name for file in tmp_path.iterdir()} == {source.name, name}
    upgraded = open_trace(tmp_path / name)
    assert (upgraded.format_version, upgraded.recovery.whole) == (FORMAT_VERSION, True)
    assert len(upgraded.steps.index) == len(open_trace(OLD).steps.index)
