"""Old traces read for ever; upgrading them; newer ones refused.

When the format gets a new version: record the fixtures anew with the old version, add an upgrader, add a section to
docs/trace-format-changelog.md, and nothing of what is here changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbtrace.traces import Trace, TraceError, TraceExistsError, UsageError, open_trace, upgrade_trace, versions
from cbtrace.traces.frames import preamble, read_preamble, seal
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import FORMAT_VERSION, Roster
from trace_builder import eventful

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = {
    name: expected
    for file in sorted(FIXTURES.glob("version-*-expected.json"))
    for name, expected in json.loads(file.read_text()).items()
}


def plain(column: Any) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [value.hex() if isinstance(value, bytes) else value for value in values]


def reads_as_expected(trace: Trace, expected: dict[str, Any]) -> None:
    for table, columns in expected["columns"].items():
        for name, values in columns.items():
            assert plain(getattr(getattr(trace, table), name)) == values, (table, name)
    for table, sums in expected["sums"].items():
        for name, total in sums.items():
            assert int(getattr(getattr(trace, table), name).sum()) == total, (table, name)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_trace_reads_as_it_did(name: str) -> None:
    trace = open_trace(FIXTURES / f"{name}.cbt")
    assert name.startswith(f"version-{trace.format_version}-")
    assert trace.recovery.whole
    assert check(trace) == []
    reads_as_expected(trace, EXPECTED[name])


def test_there_is_a_fixture_and_an_upgrader_and_a_section_for_every_old_version() -> None:
    old = list(range(1, FORMAT_VERSION))
    assert sorted(versions.UPGRADERS) == old
    assert sorted({open_trace(FIXTURES / f"{name}.cbt").format_version for name in EXPECTED}) == old
    changelog = (FIXTURES.parent.parent / "docs" / "trace-format-changelog.md").read_text()
    for version in range(1, FORMAT_VERSION + 1):
        assert f"\n## Version {version}\n" in changelog


@pytest.mark.parametrize("name", EXPECTED)
def test_an_upgraded_trace_reads_the_same(name: str, tmp_path: Path) -> None:
    source, target = FIXTURES / f"{name}.cbt", tmp_path / "new.cbt"
    before = source.read_bytes()
    assert upgrade_trace(source, target) == open_trace(source).format_version
    assert read_preamble(target.read_bytes()) == FORMAT_VERSION
    assert source.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["new.cbt"]
    trace = open_trace(target)
    assert trace.recovery.whole
    reads_as_expected(trace, EXPECTED[name])


def test_a_trace_may_be_upgraded_in_place(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    path.write_bytes((FIXTURES / "version-1-eventful.cbt").read_bytes())
    with pytest.raises(TraceExistsError):
        upgrade_trace(path, path)
    upgrade_trace(path, path, overwrite=True)
    assert open_trace(path).format_version == FORMAT_VERSION


def test_what_cannot_be_upgraded_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    newest = eventful(tmp_path / "newest.cbt")
    newest.close()
    with pytest.raises(UsageError, match="already"):
        upgrade_trace(newest.path, tmp_path / "out.cbt")
    damaged = bytearray((FIXTURES / "version-1-eventful.cbt").read_bytes())
    damaged[500] ^= 1
    (tmp_path / "damaged.cbt").write_bytes(damaged)
    with pytest.raises(TraceError, match="damaged"):
        upgrade_trace(tmp_path / "damaged.cbt", tmp_path / "out.cbt")
    assert not (tmp_path / "out.cbt").exists()


def test_rosters_of_version_1_know_no_positions() -> None:
    upgraded = versions._from_1([6, 5, 2, [0, 0, 1, 1], [0, 1]])
    assert upgraded == [6, 5, 2, [0, 0, 1, 1], [0, 1], [-1, -1], [-1, -1]]
    trace = open_trace(FIXTURES / "version-1-eventful.cbt")
    rosters = [frame for frame in trace._intake.membership if isinstance(frame, Roster)]
    assert rosters
    assert all(roster.positions == roster.delivered == [-1] * len(roster.serials) for roster in rosters)


@pytest.mark.parametrize("payload", [b"\x90", b"\x91\x06", b"\xc0", b"\x95\x06\x00\x00\x05\x05", b"\x91\xa1x"])
def test_a_malformed_frame_of_an_old_version_is_skipped(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "run.cbt"
    old = (FIXTURES / "version-1-eventful.cbt").read_bytes()
    path.write_bytes(old + seal(payload))
    trace = open_trace(path)
    assert [finding.slug for finding in trace.recovery.findings] == ["frames-unreadable"]
    assert old.startswith(preamble(1))
