"""Building a site: same input, same bytes; untrusted names; damaged and unreadable traces."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cbtrace.site.analysis.attribution import Cuts
from cbtrace.site.analysis.summary import RunSummary, summarize
from cbtrace.site.build import BuildReport, build_site, sources
from cbtrace.site.folder import STATE, OutputFolderError
from cbtrace.site.run_files import run_slug
from cbtrace.traces import Trace, TraceError, TraceWriter, UsageError, open_trace
from cbtrace.traces.frames import preamble
from cbtrace.traces.schema import Frame
from pages import read_links
from site_runs import HOSTILE, busy_run, troubled_run
from trace_builder import engine, eventful, header


def contents(folder: Path) -> dict[str, str]:
    """Every file and its digest, what cbtrace remembers of the site included; the lock is empty, and may be gone."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (name := path.relative_to(folder).as_posix()) != f"{STATE}/lock"
    }


def pages(folder: Path) -> list[Path]:
    """The files that readers see."""
    return [path for path in folder.rglob("*") if path.is_file() and STATE not in path.relative_to(folder).parts]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("traces")
    busy_run(folder / "first.cbt", "first", stall_step=20, tags={"b": "2", "a": "1"})
    busy_run(folder / "second.cbt", "second", requests=70, limit=60, step_ns=1_200_000)
    troubled_run(folder / "third.cbt")
    eventful(folder / "fourth.cbt").close()
    return sorted(folder.glob("*.cbt"))


def test_the_same_traces_give_the_same_bytes(traces: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom cbtrace.site.build import build_site\n"
        "build_site([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]), title='T')"
    )
    found = []
    for number, (seed, zone) in enumerate((("0", "UTC"), ("4242", "Asia/Tokyo"))):
        copies = tmp_path / f"elsewhere-{number}" / "deep"
        copies.mkdir(parents=True)
        for trace in traces:
            shutil.copy(trace, copies)
        out = tmp_path / f"site-{number}"
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"}
        command = [sys.executable, "-c", code, str(out), *(str(copies / trace.name) for trace in traces)]
        subprocess.run(command, check=True, env=environment)
        found.append(contents(out))
    assert found[0] == found[1]
    assert len(found[0]) > 15


def test_the_report_tells_what_was_built(traces: list[Path], tmp_path: Path) -> None:
    told: list[tuple[float, int, str]] = []
    report = build_site(traces, tmp_path / "site", progress=lambda *now: told.append(now))
    assert [run.source for run in report.runs] == traces
    assert all((report.out / run.page).is_file() for run in report.runs)
    on_disk = pages(report.out)
    assert report.files == len(on_disk)
    assert report.bytes == sum(path.stat().st_size for path in on_disk)
    assert told[0] == (0, len(traces), traces[0].name)
    assert told[-1][:2] == (len(traces), len(traces))
    done = [share for share, _, _ in told]
    assert done == sorted(done)
    for at, trace in enumerate(traces):  # and how far each run is while it is built
        assert len({share for share, _, name in told if at < share < at + 1 and name == trace.name}) >= 4


def test_every_link_leads_somewhere(traces: list[Path], tmp_path: Path) -> None:
    report = build_site(traces, tmp_path / "site")
    out = report.out
    steps = {(out / run.page).resolve(): open_trace(run.source).steps.index.tolist() for run in report.runs}
    linked = {path: read_links(path) for path in out.rglob("*.html")}
    assert len(linked) == 5 + len(traces)
    for path, links in linked.items():
        assert links.inline == [], path
        assert len(links.ids) == len(set(links.ids)), path
        for address in links.addresses:
            if address == "data:,":  # no icon, so that no browser asks a server for one
                continue
            assert not re.match(r"[a-z]+:|//", address), (path, address)
            name, _, fragment = address.partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.is_file(), (path, address)
            assert target.is_relative_to(out.resolve())
            if fragment and "=" not in fragment:
                assert fragment in linked[target].ids, (path, address)
            elif fragment.startswith("step="):
                assert int(fragment.partition("=")[2]) in steps[target], (path, address)
            elif fragment:
                slugs = {run.parent.name for run in out.glob("runs/*/index.html")}
                assert all(part.partition("=")[2] in slugs for part in fragment.split("&")), (path, address)


def test_files_that_data_names_exist(traces: list[Path], tmp_path: Path) -> None:
    out = build_site(traces, tmp_path / "site").out
    runs = next((out / "assets").glob("runs.*.js")).read_text()
    listed = json.loads(runs.removeprefix('cbtrace.load("runs",').removesuffix(");\n"))
    for run in listed["runs"]:
        assert (out / run["src"]).is_file()
    for path in out.glob("runs/*/run.*.js"):
        data = json.loads(path.read_text().partition(",")[2].removesuffix(");\n"))
        assert {level["kind"] for level in data["levels"]} | {"requests", "list", "request", "goodput"} == set(
            data["parts"]
        )
        for kind, digests in data["parts"].items():
            for number, digest in enumerate(digests):
                part = (path.parent / f"{kind}-{number}.{digest}.js").read_text()
                assert part.startswith(f'cbtrace.load("{data["slug"]}/{kind}-{number}",')


def test_two_runs_of_one_name_and_one_file_name_are_two(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths.append(folder / "run.cbt")
        busy_run(paths[-1], "same", seed=min(number, 1))  # the second and the third are equal to the last byte
    report = build_site(paths, tmp_path / "site")
    assert len({run.page for run in report.runs}) == 3
    assert paths[1].read_bytes() == paths[2].read_bytes()


def test_untrusted_names_are_text_and_stay_inside(tmp_path: Path) -> None:
    names = [HOSTILE, "../../etc/passwd", "x" * 10_000, "", " ", "\u202eabc", "nul\0name", "con", "{name}{0}"]
    paths = []
    for number, name in enumerate(names):
        paths.append(tmp_path / f"{number}.cbt")
        busy_run(paths[-1], name, tags={HOSTILE: name}, request_id=HOSTILE, requests=4)
    out = build_site(paths, tmp_path / "site").out
    assert {path.name for path in tmp_path.iterdir()} == {"site", *(path.name for path in paths)}
    for folder in (out / "runs").iterdir():
        assert re.fullmatch(r"[a-z0-9-]{1,60}", folder.name)
    for path in [*out.rglob("*.html"), *out.glob("runs/*/*.js"), *out.glob("assets/runs.*.js")]:
        text = path.read_text(encoding="utf-8")
        assert "<script>alert" not in text, path
        assert "<b>" not in text, path


def test_untrusted_file_names_are_text_and_stay_inside(tmp_path: Path) -> None:
    """The runs have no name of their own: their file's is shown instead."""
    names = [b"\"'<b>&\xe2\x80\xae\xf0\x9f\x98\x80", b"new\nline", b"..", b"-o", b"x" * 230, b"not utf-8 \xff", b"{0}"]
    (tmp_path / "runs").mkdir()
    paths = [tmp_path / "runs" / os.fsdecode(name + b".cbt") for name in names]
    for number, path in enumerate(paths):
        busy_run(path, "", requests=2, seed=number)
    (tmp_path / "runs" / "<b>\nno trace.cbt").write_text("no trace")
    report = build_site(sorted((tmp_path / "runs").iterdir()), tmp_path / "site")
    assert [run.slug for run in report.failed] == ["not-a-trace"]
    assert all(run.kept for run in build_site(paths, tmp_path / "site").runs)
    assert {path.name for path in tmp_path.iterdir()} == {"site", "runs"}
    assert len(list((report.out / "runs").iterdir())) == len(names)
    for folder in (report.out / "runs").iterdir():
        assert re.fullmatch(r"[a-z0-9-]{1,60}", folder.name)
    for page in report.out.rglob("*.html"):
        assert "<b>" not in page.read_text(encoding="utf-8")


def test_slugs_are_never_taken_twice(tmp_path: Path) -> None:
    busy_run(tmp_path / "run.cbt")
    slugs = [run_slug("Größe: 14 blocks!", source) for source in sources([tmp_path / "run.cbt"] * 3)]
    assert re.fullmatch(r"gro-?e-14-blocks-[0-9a-f]{8}", slugs[0])
    assert slugs[1:] == [f"{slugs[0]}-2", f"{slugs[0]}-3"]


def cut(path: Path, share: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def test_a_cut_trace_is_built_under_a_banner(tmp_path: Path) -> None:
    busy_run(tmp_path / "run.cbt")
    report = build_site([cut(tmp_path / "run.cbt", 0.6)], tmp_path / "site")
    assert not report.runs[0].complete
    html = (report.out / report.runs[0].page).read_text()
    assert "This recording did not end normally." in html
    assert "The file ends within a frame" in html or "was not closed" in html
    assert "incomplete" in (report.out / "index.html").read_text()


def test_a_damaged_trace_is_built_under_a_banner(tmp_path: Path) -> None:
    path = tmp_path / "run.cbt"
    busy_run(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(bytes(data))
    report = build_site([path], tmp_path / "site")
    html = (report.out / report.runs[0].page).read_text()
    assert "This trace is damaged or cut." in html


@pytest.mark.parametrize("share", [0.35, 0.5, 0.7, 0.9])
def test_any_part_of_a_trace_gives_a_page(tmp_path: Path, share: float) -> None:
    eventful(tmp_path / "run.cbt").close()
    report = build_site([cut(tmp_path / "run.cbt", share)], tmp_path / "site")
    assert not report.runs[0].complete


ALMOST_NOTHING = {"header": [header()], "engine": [engine()], "both": [header("only"), engine()]}


@pytest.mark.parametrize("frames", ALMOST_NOTHING.values(), ids=ALMOST_NOTHING)
def test_a_trace_of_almost_nothing_gives_a_page(tmp_path: Path, frames: list[Frame]) -> None:
    writer = TraceWriter(tmp_path / "run.cbt")
    for frame in frames:
        writer.write(frame)
    writer.close()
    report = build_site([tmp_path / "run.cbt"], tmp_path / "site")
    assert "No step was recorded" in (report.out / report.runs[0].page).read_text()


UNREADABLE = {
    "trace-not-found": None,
    "trace-empty": b"",
    "not-a-trace": b"just some text, no trace",
    "trace-too-new": preamble(999),
}


@pytest.mark.parametrize(("slug", "content"), UNREADABLE.items(), ids=UNREADABLE)
def test_an_unreadable_trace_does_not_stop_the_others(
    traces: list[Path], tmp_path: Path, slug: str, content: bytes | None
) -> None:
    bad = tmp_path / "<b>bad.cbt"
    if content is not None:
        bad.write_bytes(content)
    report = build_site([traces[0], bad, traces[1]], tmp_path / "site")
    assert [run.source for run in report.runs] == traces[:2]
    assert [(run.source, run.slug) for run in report.failed] == [(bad, slug)]
    index = (report.out / "index.html").read_text(encoding="utf-8")
    assert "Traces that could not be read: 1" in index
    assert f'messages.html#{slug}"' in index
    assert "&lt;b&gt;bad.cbt" in index and "<b>bad" not in index
    assert f'id="{slug}"' in (report.out / "messages.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("slug", "content"), UNREADABLE.items(), ids=UNREADABLE)
def test_without_one_readable_trace_nothing_is_written(tmp_path: Path, slug: str, content: bytes | None) -> None:
    bad = tmp_path / "bad.cbt"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(TraceError, match=r"bad\.cbt") as error:
        build_site([bad, bad], tmp_path / "site")
    assert error.value.slug == slug
    assert [path.name for path in tmp_path.iterdir()] == (["bad.cbt"] if content is not None else [])


def test_a_page_that_cannot_be_made_does_not_stop_the_others(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trace: Trace, cuts: Cuts) -> RunSummary:
        if trace.path == traces[1]:
            raise ZeroDivisionError("of ours")
        return summarize(trace, cuts)

    monkeypatch.setattr("cbtrace.site.run_files.summarize", fail)
    report = build_site(traces[:3], tmp_path / "site")
    assert [run.source for run in report.runs] == [traces[0], traces[2]]
    assert report.failed[0].slug == "page-failed"
    assert "ZeroDivisionError: of ours; test_site_build.py, line" in report.failed[0].text


def test_a_pipe_is_no_trace(traces: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.cbt")
    report = build_site([traces[0], tmp_path / "pipe.cbt"], tmp_path / "site")
    assert "is not a regular file" in report.failed[0].text


def test_a_site_in_japanese(traces: list[Path], tmp_path: Path) -> None:
    out = build_site(traces, tmp_path / "site", language="ja").out
    index = (out / "index.html").read_text(encoding="utf-8")
    assert '<html lang="ja">' in index
    assert "実行一覧" in index
    with pytest.raises(UsageError, match="choose one of en, ja"):
        build_site(traces, tmp_path / "other", language="fr")


def test_no_trace_and_a_foreign_folder_are_usage_errors(traces: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name one or more"):
        build_site([], tmp_path / "site")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(OutputFolderError):
        build_site(traces, tmp_path / "mine")


def test_a_rebuild_drops_runs_that_are_gone(traces: list[Path], tmp_path: Path) -> None:
    first: BuildReport = build_site(traces, tmp_path / "site")
    build_site(traces[:1], tmp_path / "site")
    assert [path.name for path in (tmp_path / "site" / "runs").iterdir()] == [
        Path(run.page).parent.name for run in first.runs[:1]
    ]


def test_the_shipped_samples_make_a_site(tmp_path: Path) -> None:
    samples = sorted((Path(__file__).parents[1] / "traces" / "samples").glob("*.cbt"))
    assert samples
    report = build_site(samples, tmp_path / "site")
    assert all(run.complete and run.summary.requests.failed == 0 for run in report.runs)
    assert all("Findings" in (report.out / run.page).read_text() for run in report.runs)
