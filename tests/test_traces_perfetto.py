"""The export for Perfetto: strict JSON, nested slices, time in order, in bounded memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cbtrace.traces import TraceExistsError, TraceWriter, attribution, by_request, open_trace
from cbtrace.traces.export.perfetto import perfetto, write_perfetto
from cbtrace.traces.schema import Memory, Step, StepFlag
from trace_builder import TraceBuilder, eventful

FIXTURES = Path(__file__).parent / "fixtures"
KEPT = [path.stem for path in sorted(FIXTURES.glob("*.cbt"))]


def strict(text: str) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise ValueError(name)

    events = json.loads(text, parse_constant=refuse, parse_float=Fraction, object_pairs_hook=unique)
    assert isinstance(events, list)
    return events


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def tracks(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            found[event["pid"], event["tid"], event["id"] if event["ph"] in "bne" else "", event["ph"] == "C"].append(
                event
            )
    return found


def well_formed(events: list[dict[str, Any]]) -> None:
    for track in tracks(events).values():
        times = [event["ts"] for event in track]
        assert times == sorted(times)
        slices: list[Fraction] = []
        for event in (event for event in track if event["ph"] == "X"):
            while slices and slices[-1] <= event["ts"]:
                slices.pop()
            end = event["ts"] + event["dur"]
            assert not slices or end <= slices[-1], event
            slices.append(end)
        names: list[str] = []
        for event in track:
            if event["ph"] == "b":
                names.append(event["name"])
            elif event["ph"] == "e":
                assert names.pop() == event["name"]
            elif event["ph"] == "n":
                assert names, event
        assert not names


def asynchronous(path: Path) -> Path:
    build = TraceBuilder(path)
    request = build.submit(4, 99)
    build.admit(request)
    build.step({request: 4})
    for _ in range(5):
        build.now -= build.step_ns // 3  # the next step starts before this one is done
        build.step([request])
    frames = [replace(frame, flags=StepFlag.ASYNC) if isinstance(frame, Step) else frame for frame in build.frames]
    with TraceWriter(path, overwrite=True) as writer:
        for frame in frames:
            writer.write(frame)
    return path


@pytest.fixture(params=["eventful", "asynchronous", "killed", "damaged", *KEPT])
def trace_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "run.cbt"
    if request.param in KEPT:
        return FIXTURES / f"{request.param}.cbt"
    if request.param == "asynchronous":
        return asynchronous(path)
    build = eventful(path)
    if request.param == "eventful":
        build.close()
    if request.param == "damaged":
        data = bytearray(path.read_bytes())
        data[700:900] = bytes(200)
        path.write_bytes(data)
    return path


def test_it_is_strict_json_with_nested_slices_in_order_of_time(trace_path: Path) -> None:
    trace = open_trace(trace_path)
    events = strict("".join(perfetto(trace)))
    well_formed(events)
    assert sum(event["name"].startswith("step ") for event in events if event["ph"] == "X") == len(trace.steps.index)
    assert sum(event["ph"] == "n" for event in events) == len(trace.tokens.step)
    ends = [event for event in events if event["ph"] == "e"]
    assert len(ends) == sum(event["ph"] == "b" for event in events) >= len(trace.requests.id)


def test_times_are_exact_and_counters_are_those_of_the_steps(tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    events = strict("".join(perfetto(trace)))
    starts = [event["ts"] * 1000 for event in events if event["ph"] == "X" and event["name"].startswith("step ")]
    assert starts == trace.steps.start_ns.tolist()
    kv = [event["args"] for event in events if event["name"] == "KV bytes"]
    assert [args["used"] for args in kv] == trace.steps.kv_used.tolist()
    budget = {event["args"]["tokens"] for event in events if event["name"] == "token budget"}
    assert budget == {256}


def test_memory_without_a_gpu_is_that_of_the_process(tmp_path: Path) -> None:
    build = eventful(tmp_path / "run.cbt")
    build.write(Memory(5, "", host_rss=77))
    build.write(Memory(6, "nothing known"))
    events = strict("".join(perfetto(build.close())))
    assert [event["args"] for event in events if event["name"] == "memory bytes"] == [{"host_rss": 77}]
    assert all(event["args"] for event in events if event["ph"] == "C")


def test_an_arrow_leads_from_a_soft_reset_to_the_next_admission(tmp_path: Path) -> None:
    events = strict("".join(perfetto(eventful(tmp_path / "run.cbt").close())))
    start, finish = (next(event for event in events if event["ph"] == phase) for phase in "sf")
    assert start["id"] == finish["id"]
    slices = {event["ts"]: event["name"] for event in events if event["ph"] == "X" and event["name"].startswith("step")}
    assert (slices[start["ts"]], slices[finish["ts"]]) == ("step 4", "step 6")


def test_the_words_of_others_cannot_break_it(tmp_path: Path) -> None:
    build = TraceBuilder(tmp_path / "run.cbt")
    build.submit(3, id='"}],\n\x00</script>\u2028\U0001f600' + "x" * 5000)
    build.write(Memory(5, "mark", allocated=7))
    text = "".join(perfetto(build.close()))
    names = [event["name"] for event in strict(text) if event["ph"] == "b"]
    assert len(text) < 3000
    assert names[0].startswith('"}],??</script>?\U0001f600xxx')


def test_a_cut_file_loads_when_the_bracket_is_added(tmp_path: Path) -> None:
    """Perfetto and chrome://tracing accept an array without its end, and drop an event that is cut."""
    text = "".join(perfetto(eventful(tmp_path / "run.cbt").close()))
    for at in range(200, len(text), 997):
        whole = text[:at].rsplit(",\n", 1)[0].rstrip().removesuffix("]")
        assert strict(whole + "\n]")


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    target = tmp_path / "run.json"
    seen: list[tuple[int, int]] = []
    write_perfetto(trace, target, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (11, 11)
    assert strict(target.read_text()) == strict("".join(perfetto(trace)))
    with pytest.raises(TraceExistsError):
        write_perfetto(trace, target)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = target.read_text()
    with pytest.raises(KeyboardInterrupt):
        write_perfetto(trace, target, overwrite=True, progress=interrupt)
    assert target.read_text() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.cbt", "run.json"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    trace = eventful(tmp_path / "run.cbt").close()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("run.json", f".run.json.{os.getpid()}.part"):
        (tmp_path / name).symlink_to(precious)
    write_perfetto(trace, tmp_path / "run.json", overwrite=True)
    assert precious.read_text() == "mine"
    assert not (tmp_path / "run.json").is_symlink()
    assert strict((tmp_path / "run.json").read_text())


def test_memory_grows_with_the_steps_and_not_with_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "_BLOCK_STEPS", 50)
    monkeypatch.setattr(by_request, "PART_PAIRS", 1600)
    peaks = []
    for steps in (200, 800):
        build = TraceBuilder(tmp_path / f"{steps}.cbt")
        requests = [build.submit(2, 10**6) for _ in range(32)]
        for request in requests:
            build.admit(request)
        build.step(dict.fromkeys(requests, 2))
        for _ in range(steps):
            build.step(requests)
        trace = build.close()
        tracemalloc.start()
        size = sum(map(len, perfetto(trace)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert size > steps * 32 * 80
    assert peaks[1] - peaks[0] < 600 * 600  # some hundred bytes a step; its 32 tokens take 3000 in the file
