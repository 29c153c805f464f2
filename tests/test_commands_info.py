"""``cbtrace info`` prints what the summary holds, and what a damaged trace has lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cbtrace.site import formats
from cbtrace.site.analysis.summary import summarize, summary_json
from cbtrace.traces import TraceWriter, open_trace
from conftest import Cbtrace
from site_runs import troubled_run
from trace_builder import eventful, header


def test_json_is_the_summary(cbtrace: Cbtrace, tmp_path: Path) -> None:
    eventful(tmp_path / "run.cbt").close()
    result = cbtrace("info", "run.cbt", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    expected = summary_json(summarize(open_trace(tmp_path / "run.cbt")))
    assert json.loads(result.stdout) == json.loads(json.dumps(expected))


def test_text_has_the_headline_numbers(cbtrace: Cbtrace, tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    lines = cbtrace("info", "run.cbt").stdout.splitlines()
    summary = summarize(trace)
    assert f"{'run':<14}{trace.header.name}" in lines
    ended = summary.requests
    assert any(
        f"{ended.finished} finished, {ended.failed} failed, {ended.cancelled} cancelled" in line for line in lines
    )
    assert any(f"{summary.soft_resets} soft resets, {summary.offloads} offloads" in line for line in lines)
    assert any(line.startswith("TTFT ") and line.split()[5] == str(summary.ttft_ms.n) for line in lines)
    report = trace.recovery
    assert f"{'trace':<14}clean: {report.frames_read} frames read, 0 of {report.bytes_total:,} bytes dropped" in lines


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part, key)
    else:
        yield key, value


def test_text_has_every_number_of_the_json(cbtrace: Cbtrace, tmp_path: Path) -> None:
    """As the pages format it; what only a program wants (ids, versions, adjusted percentiles) is left out."""
    path = tmp_path / "run.cbt"
    troubled_run(path)
    path.write_bytes(path.read_bytes()[:-40])
    shown = cbtrace("info", "run.cbt").stdout
    programs = (
        ".schema",
        ".run_id",
        ".recorded_ns",
        ".predicted",
        ".recovery.ranges",
        ".recovery.findings",
        ".adjusted",
    )
    found = 0
    for key, value in leaves(summary_json(summarize(open_trace(path)))):
        if any(part in key for part in programs) or not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        forms = {formats.number(value), formats.size(value), formats.seconds(value), formats.percent(value), str(value)}
        assert any(form in shown for form in forms), key
        found += 1
    assert found > 40


def test_a_cut_trace_says_what_it_has_lost(cbtrace: Cbtrace, tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    trace = eventful(path).close()
    path.write_bytes(path.read_bytes()[:-40])
    result = cbtrace("info", "run.cbt")
    assert result.returncode == 0
    assert f"{'trace':<14}cut" in result.stdout
    assert open_trace(path).recovery.messages[0] in result.stdout
    assert trace.recovery.status == "clean"


def test_text_from_a_trace_cannot_steer_the_terminal(cbtrace: Cbtrace, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.cbt") as writer:
        writer.write(header("\x1b[2Jred\x07\n", {"\x1b]0;title": "a\r\nb"}))
    shown = cbtrace("info", "run.cbt").stdout
    assert "red" in shown and "title" in shown
    assert not any(character in shown for character in "\x1b\x07\r")
    assert shown.splitlines()[1].startswith("tags")
