"""Old traces read for ever; upgrading them; newer ones refused.

When the format gets a new version: add an upgrader, a section in docs/trace-format-changelog.md, and fixtures of the
new version (tests/programs/record_fixtures.py). Nothing of what is here changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from cbtrace.traces import (
    TraceError,
    TraceExistsError,
    UsageError,
    codec,
    open_trace,
    packed_requests,
    packed_steps,
    upgrade_trace,
    versions,
)
from cbtrace.traces.blocks import BLOCK
from cbtrace.traces.frames import PREAMBLE_BYTES, FrameScanner, preamble, read_preamble, seal
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import FORMAT_VERSION, EndReason, EventKind, Frame, Severity, Step
from pinned_values import differences, frames_of, values
from trace_builder import eventful

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = {file.stem: json.loads(file.read_text()) for file in sorted(FIXTURES.glob("version-*.json"))}
OLD = [name for name in EXPECTED if not name.startswith(f"version-{FORMAT_VERSION}-")]


def payloads_in(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        file.seek(PREAMBLE_BYTES)
        return [part[1] for part in FrameScanner(file.read, PREAMBLE_BYTES) if isinstance(part, tuple)]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_kept_trace_reads_as_it_did(name: str) -> None:
    trace = open_trace(FIXTURES / f"{name}.cbt")
    assert name.startswith(f"version-{trace.format_version}-")
    assert differences(values(trace), EXPECTED[name]) == []
    assert check(trace) == list(trace.recovery.findings)
    assert trace.recovery.severity <= Severity.INFO


@pytest.mark.parametrize("name", EXPECTED)
def test_a_value_that_differs_is_noticed(name: str) -> None:
    trace = open_trace(FIXTURES / f"{name}.cbt")
    trace.steps.done_ns[-1] += 1
    trace.requests.prefill_computed[0] += 1
    found = differences(values(trace), EXPECTED[name])
    assert [text.split(":")[0] for text in found] == [
        ".columns.requests.prefill_computed",
        ".sums.steps.done_ns",
        ".hashes.steps.done_ns",
    ]


def test_the_kept_traces_of_this_version_have_all_there_is() -> None:
    """What no fixture holds could be lost by a change and nobody would notice."""
    kept = [EXPECTED[name] for name in EXPECTED if name not in OLD]
    events = [kind for expected in kept for kind in expected["columns"]["events"]["kind"]]
    assert set(events) == {int(kind) for kind in EventKind}
    reasons = [reason for expected in kept for reason in expected["columns"]["requests"]["end_reason"]]
    assert set(reasons) == {int(reason) for reason in EndReason}
    frames = [frame for name in EXPECTED if name not in OLD for frame in frames_of(FIXTURES / f"{name}.cbt")]
    assert {type(frame) for frame in frames} == set(get_args(Frame))
    forms = {payload[0] for payload in map(codec.encode, frames)}
    assert forms >= packed_requests.FORMS | {form for form in packed_steps.FORMS if form >= 128}
    assert {bool(packed_steps.FORMS[form].chunk) for form in forms if form < 128} == {False, True}
    assert any(payload[0] == BLOCK for payload in payloads_in(FIXTURES / f"version-{FORMAT_VERSION}-blocks.cbt"))
    for detail in ("chunks", "wasted", "starved", "groups"):
        assert any(isinstance(f, Step) and f.detail and getattr(f.detail, detail) for f in frames), detail


def test_there_is_a_fixture_and_an_upgrader_and_a_section_for_every_version() -> None:
    old = list(range(1, FORMAT_VERSION))
    assert sorted(versions.UPGRADERS) == old
    kept = {open_trace(FIXTURES / f"{name}.cbt").format_version for name in EXPECTED}
    assert sorted(kept) == [*old, FORMAT_VERSION]
    changelog = (FIXTURES.parent.parent / "docs" / "trace-format-changelog.md").read_text()
    for version in range(1, FORMAT_VERSION + 1):
        assert f"\n## Version {version}\n" in changelog


@pytest.mark.parametrize("name", OLD)
def test_an_upgraded_trace_reads_the_same(name: str, tmp_path: Path) -> None:
    source, target = FIXTURES / f"{name}.cbt", tmp_path / "new.cbt"
    before = source.read_bytes()
    assert upgrade_trace(source, target) == open_trace(source).format_version
    assert read_preamble(target.read_bytes()) == FORMAT_VERSION
    assert source.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["new.cbt"]
    trace = open_trace(target)
    assert trace.recovery.status == open_trace(source).recovery.status
    assert differences({**values(trace), "recovery": {}}, {**EXPECTED[name], "recovery": {}}) == []


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
    rosters = trace._intake.rosters
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
