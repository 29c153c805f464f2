"""``cbtrace check`` tells scripts and people whether a trace can be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cbtrace.site.analysis import cut_check
from cbtrace.site.analysis.attribution import TtftCuts, all_cuts
from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.site.analysis.gaps import GapCuts
from cbtrace.site.analysis.pieces import COLUMN
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.codec import encode
from cbtrace.traces.frames import preamble, seal
from cbtrace.traces.schema import FORMAT_VERSION, Admit, Frame, Notice, RequestFlag, Severity, Step
from conftest import Cbtrace
from pinned_values import frames_of
from site_runs import busy_run, troubled_run
from trace_builder import eventful

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    eventful(tmp_path / "sound.cbt").close()
    return tmp_path / "sound.cbt"


def with_remark(path: Path, severity: int, text: str = "NVML is not there") -> None:
    build = eventful(path)
    build.write(Notice(2_500_000_000, "no-nvml", int(severity), text))
    build.close()


def assemble(path: Path, frames: list[Frame]) -> Trace:
    path.write_bytes(preamble() + b"".join(seal(encode(frame)) for frame in frames))
    return open_trace(path)


def test_a_sound_trace(cbtrace: Cbtrace, sound: Path) -> None:
    result = cbtrace("check", "sound.cbt")
    assert (result.returncode, result.stdout, result.stderr) == (0, "sound.cbt (clean): sound\n", "")


def test_an_old_trace_is_as_sound_as_it_was(cbtrace: Cbtrace) -> None:
    found = json.loads(cbtrace("check", FIXTURES, "--json").stdout)
    assert {trace["status"] for trace in found["traces"]} == {"clean", "ring"}
    assert {finding["severity"] for trace in found["traces"] for finding in trace["findings"]} == {"info"}


def test_exit_codes_for_scripts(cbtrace: Cbtrace, sound: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.cbt").write_bytes(sound.read_bytes()[:-10])
    eventful(tmp_path / "killed.cbt").writer.close()
    with_remark(tmp_path / "remark.cbt", Severity.INFO)
    with_remark(tmp_path / "doubt.cbt", Severity.WARNING)
    (tmp_path / "text.cbt").write_text("a text")
    codes = {"sound": 0, "remark": 0, "doubt": 3, "killed": 3, "cut": 1, "text": 1}
    for name, code in codes.items():
        assert cbtrace("check", f"{name}.cbt").returncode == code, name
    assert cbtrace("check", "sound.cbt", "killed.cbt").returncode == 3
    assert cbtrace("check", "text.cbt", "killed.cbt").returncode == 1
    assert cbtrace("check", "--nonesuch").returncode == 2


def test_each_finding_has_slug_severity_place_meaning_and_remedy(cbtrace: Cbtrace, sound: Path, tmp_path: Path) -> None:
    data = sound.read_bytes()
    (tmp_path / "damaged.cbt").write_bytes(data[:600] + b"\xff" * 8 + data[608:])
    text, plain = cbtrace("check", "damaged.cbt", "--json"), cbtrace("check", "damaged.cbt").stdout
    (trace,) = json.loads(text.stdout)["traces"]
    assert (trace["trace"], trace["status"], trace["format_version"]) == ("damaged.cbt", "damaged", FORMAT_VERSION)
    assert trace["severity"] == "data_loss"
    assert "damaged" in [finding["slug"] for finding in trace["findings"]]
    for finding in trace["findings"]:
        assert finding.keys() == {"slug", "severity", "place", "meaning", "cause", "remedy"}
        assert all(finding.values())
        assert f"{finding['meaning']} [{finding['slug']}]" in plain


def test_a_file_that_cannot_be_read_does_not_hide_the_others(cbtrace: Cbtrace, sound: Path, tmp_path: Path) -> None:
    (tmp_path / "newer.cbt").write_bytes(preamble(99) + bytes(50))
    found = json.loads(cbtrace("check", "none.cbt", "newer.cbt", "sound.cbt", "--json").stdout)["traces"]
    slugs = [[finding["slug"] for finding in trace["findings"]] for trace in found]
    assert slugs == [["trace-not-found"], ["trace-too-new"], []]


def test_text_from_a_trace_cannot_steer_the_terminal(cbtrace: Cbtrace, tmp_path: Path) -> None:
    with_remark(tmp_path / "run.cbt", 77, "\x1b[2Jred\x07")
    result = cbtrace("check", "run.cbt")
    assert "red" in result.stdout and "\x1b" not in result.stdout and "\x07" not in result.stdout
    assert result.returncode == 3  # a severity that does not exist: a warning


def test_what_does_not_agree_with_itself_is_broken(cbtrace: Cbtrace, sound: Path, tmp_path: Path) -> None:
    """A request that ends with one token less than its steps gave it, in a trace that lacks nothing."""
    build = eventful(tmp_path / "other.cbt")
    build.close()
    for frame in build.frames:
        if type(frame).__name__ == "End" and frame.request == 1:
            frame.generated -= 1
    assemble(tmp_path / "run.cbt", build.frames)
    found = json.loads(cbtrace("check", "run.cbt", "--json").stdout)["traces"][0]
    assert found["severity"] == "broken"
    assert [finding["slug"] for finding in found["findings"]] == ["tokens-not-conserved"]


def test_the_last_token_may_be_lost_with_its_step(tmp_path: Path) -> None:
    """A forked request does not say how many tokens it was given, so those that are there look like all of them."""
    whole = open_trace(FIXTURES / "version-2-real.cbt")
    forked = np.flatnonzero((whole.requests.flags & RequestFlag.FORKED) > 0)
    lasts = {int(whole.tokens.step[whole.tokens.request == row].max()) for row in forked.tolist()}
    frames = frames_of(FIXTURES / "version-2-real.cbt")
    for last in lasts:
        trace = assemble(tmp_path / "part.cbt", [f for f in frames if not (isinstance(f, Step) and f.index == last)])
        assert trace.recovery.steps_missing == 1
        assert check_cuts(trace) == []


@pytest.mark.parametrize("make", [busy_run, troubled_run])
def test_time_adds_up_in_sound_runs(tmp_path: Path, make: Callable[[Path], Trace]) -> None:
    assert check_cuts(make(tmp_path / "run.cbt")) == []


def spoiled(trace: Trace, how: str) -> Iterator[tuple[TtftCuts, GapCuts]]:
    ((ttft, gaps),) = all_cuts(trace)
    if how == "a nanosecond more":
        gaps.pieces[3, COLUMN["decode"]] += 1
    elif how == "a negative piece":
        ttft.pieces[1, COLUMN["host"]] -= 10**12
        ttft.pieces[1, COLUMN["decode"]] += 10**12
    elif how == "totals that do not lead to the last token":
        gaps.pieces[3, COLUMN["decode"]] += 5
        gaps.total_ns[3] += 5
    else:
        ttft.pieces[0, COLUMN["unattributed"]] += ttft.pieces[0, COLUMN["prefill"]]
        ttft.pieces[0, COLUMN["prefill"]] = 0
    yield ttft, gaps


@pytest.mark.parametrize(
    ("how", "slug"),
    [
        ("a nanosecond more", "cuts-not-conserved"),
        ("a negative piece", "cuts-not-conserved"),
        ("totals that do not lead to the last token", "cuts-not-conserved"),
        ("time without a reason", "time-unattributed"),
    ],
)
def test_time_that_does_not_add_up_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, slug: str
) -> None:
    trace = busy_run(tmp_path / "run.cbt")
    monkeypatch.setattr(cut_check, "all_cuts", lambda of: spoiled(of, how))
    found = check_cuts(trace)
    assert {finding.slug for finding in found} == {slug}
    assert all(finding.place.startswith("request ") for finding in found)


def test_damage_is_no_error_of_the_attribution(tmp_path: Path) -> None:
    """Any step or admission may be missing: what is left adds up, with the rest unattributed."""
    build = eventful(tmp_path / "run.cbt")
    build.close()
    for number, frame in enumerate(build.frames):
        if isinstance(frame, Step | Admit):
            rest = [other for at, other in enumerate(build.frames) if at != number]
            assert check_cuts(assemble(tmp_path / "part.cbt", rest)) == [], number
