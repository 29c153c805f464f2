"""Building again: only what has changed, the same bytes as a fresh build, and no harm from builds that are ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cbtrace.site.build import BuildReport, build_site
from cbtrace.site.folder import FILES, RECORDS, STATE
from conftest import COMMAND, started
from site_runs import busy_run
from test_site_build import contents


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    (tmp_path / "runs").mkdir()
    for number, name in enumerate("abc"):
        busy_run(tmp_path / "runs" / f"{name}.cbt", name, seed=number, requests=3, tags={"experiment": "x"})
    return sorted((tmp_path / "runs").glob("*.cbt"))


def built(report: BuildReport) -> set[str]:
    return {run.name for run in report.runs if not run.kept}


def same_as_fresh(site: Path, traces: list[Path], **options: str) -> bool:
    fresh = site.with_name("fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    build_site(traces, fresh, **options)  # type: ignore[arg-type]
    return contents(fresh) == contents(site)


def test_new_changed_and_vanished_runs(traces: list[Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert built(build_site(traces, site)) == {"a", "b", "c"}
    before = contents(site)
    assert built(build_site(traces, site)) == set()
    assert contents(site) == before

    busy_run(tmp_path / "runs" / "d.cbt", "d", seed=7, requests=3)  # new
    traces[1].unlink()
    busy_run(traces[1], "b", seed=8, requests=3)  # changed
    traces[2].unlink()  # gone
    now = [traces[0], traces[1], tmp_path / "runs" / "d.cbt"]
    assert built(build_site(now, site)) == {"b", "d"}
    assert len(list((site / "runs").iterdir())) == 3
    assert same_as_fresh(site, now)


def test_what_pages_depend_on_builds_them_again(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    build_site(traces, site)
    assert built(build_site(traces, site, language="ja")) == {"a", "b", "c"}
    assert built(build_site(traces, site, language="ja", title="Another")) == {"a", "b", "c"}
    assert same_as_fresh(site, traces, language="ja", title="Another")
    assert built(build_site(traces, site, language="ja", title="Another", fresh=True)) == {"a", "b", "c"}
    monkeypatch.setattr("cbtrace.site.records._version", lambda name: f"another {name}")
    assert built(build_site(traces, site, language="ja", title="Another")) == {"a", "b", "c"}


def test_a_change_of_program_or_template_builds_again(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cbtrace.site.records as records

    real = records.files
    copy = tmp_path / "templates"
    shutil.copytree(str(real("cbtrace.templates")), copy)
    monkeypatch.setattr(records, "files", lambda package: copy if package == "cbtrace.templates" else real(package))
    build_site(traces, tmp_path / "site")
    assert built(build_site(traces, tmp_path / "site")) == set()
    (copy / "pages" / "run.html").write_text("another template")
    assert built(build_site(traces, tmp_path / "site")) == {"a", "b", "c"}


def test_a_trace_of_another_name_is_built_again(traces: list[Path], tmp_path: Path) -> None:
    build_site(traces, tmp_path / "site")
    renamed = traces[0].with_name("renamed.cbt")
    traces[0].rename(renamed)
    report = build_site([renamed, *traces[1:]], tmp_path / "site")
    assert built(report) == {"a"}, "its page shows the name of its file"
    assert "renamed.cbt" in (report.out / report.runs[0].page).read_text()


def test_files_that_were_lost_or_cut_are_written_again(traces: list[Path], tmp_path: Path) -> None:
    site = build_site(traces, tmp_path / "site").out
    before = contents(site)
    pages = sorted(site.glob("runs/*/index.html"))
    pages[0].unlink()
    pages[1].write_text("cut")
    assert built(build_site(traces, site)) == {"a", "b"}
    assert contents(site) == before


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"record": 1, "files": {}}', b"[" * 10_000])
def test_a_damaged_record_counts_for_nothing(traces: list[Path], tmp_path: Path, damage: bytes) -> None:
    site = build_site(traces[:1], tmp_path / "site").out
    before = contents(site)
    for record in (site / RECORDS).iterdir():
        record.write_bytes(damage)
    assert built(build_site(traces[:1], site)) == {"a"}
    assert contents(site) == before


def test_a_record_cannot_claim_files_of_others(traces: list[Path], tmp_path: Path) -> None:
    site = build_site(traces[:1], tmp_path / "site").out
    (site / "notes.txt").write_text("mine")
    for record in (site / RECORDS).iterdir():
        data = json.loads(record.read_bytes())
        data["files"] |= {"notes.txt": 4, "../../runs/a.cbt": traces[0].stat().st_size}
        record.write_text(json.dumps(data))
    assert built(build_site(traces[:1], site)) == {"a"}
    build_site(traces[1:2], site)
    assert (site / "notes.txt").read_text() == "mine"
    assert traces[0].exists()


def test_many_processes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cbtrace.site.run_builds.WORTH_A_PROCESS", 1)
    paths = [tmp_path / f"{number}.cbt" for number in range(5)]
    for number, path in enumerate(paths):
        busy_run(path, f"run {number}", seed=number, requests=3)
    paths.append(tmp_path / "text.cbt")
    paths[-1].write_text("no trace")
    told: list[tuple[float, int]] = []
    one = build_site(paths, tmp_path / "one")
    many = build_site(paths, tmp_path / "many", jobs=3, progress=lambda done, total, name: told.append((done, total)))
    assert contents(tmp_path / "one") == contents(tmp_path / "many")
    assert [run.name for run in many.runs] == [run.name for run in one.runs]
    assert [(run.source, run.slug) for run in many.failed] == [(paths[-1], "not-a-trace")]
    done = [share for share, _ in told]
    assert {total for _, total in told} == {6}
    assert (done[0], done[-1]) == (0, 6) and done == sorted(done)
    assert len(set(done)) > 4 * len(many.runs)  # runs are told of while they are built, too


def test_a_build_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    runs, site = tmp_path / "runs", tmp_path / "site"
    runs.mkdir()
    for number in range(12):
        busy_run(runs / f"{number:02}.cbt", f"run {number}", seed=number, requests=4)
    traces = sorted(runs.glob("*.cbt"))
    build_site(traces[:1], site)
    (site / "notes.txt").write_text("mine")
    index = (site / "index.html").read_bytes()
    with started([COMMAND, "build", runs, "-o", site, "--jobs", "1"]) as process:
        _wait_until(lambda: len(list((site / RECORDS).glob("*.json"))) >= 4)
        process.kill()
    assert (site / "index.html").read_bytes() == index, "the list of runs is the old one until all are there"
    report = build_site(traces, site)
    assert 0 < len(built(report)) <= 12 - 3
    assert (site / "notes.txt").read_text() == "mine"
    (site / "notes.txt").unlink()
    assert same_as_fresh(site, traces, title="Continuous batching runs")


IN_PROCESSES = """
import sys, cbtrace.site.run_builds as builds
builds.WORTH_A_PROCESS = 1
from cbtrace.commands import main
main()
"""


@pytest.fixture
def many(tmp_path: Path) -> list[str]:
    """A command that builds many small traces in two processes."""
    runs, site = tmp_path / "runs", tmp_path / "site"
    runs.mkdir()
    for number in range(20):
        busy_run(runs / f"{number:02}.cbt", f"run {number}", seed=number, requests=4)
    return [sys.executable, "-c", IN_PROCESSES, "build", str(runs), "-o", str(site), "-j", "2"]


def test_ctrl_c_keeps_what_is_finished(many: list[str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    with started(many, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_until(lambda: len(list((site / RECORDS).glob("*.json"))) >= 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to its processes as well
        said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, ("", ""))
    finished = len(list((site / RECORDS).glob("*.json")))
    assert not (site / "index.html").exists()
    done = subprocess.run(many, check=True, capture_output=True, text=True)
    assert f"Runs: {20 - finished} built, {finished} unchanged." in done.stdout


def test_a_process_that_the_system_ends_is_told(many: list[str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    with started(many, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_until(lambda: len(list((site / RECORDS).glob("*.json"))) >= 2)
        ours = psutil.Process(process.pid)
        workers = set(ours.children(recursive=True)) - set(ours.children())
        assert workers
        for worker in workers:
            worker.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "memory ran out" in said and said.endswith("[build-worker-ended]\n") and said.count("\n") == 1
    done = subprocess.run([*many[:-1], "1"], check=True, capture_output=True, text=True)
    assert " 0 unchanged" not in done.stdout


def _wait_until(ready: object) -> None:
    end = time.monotonic() + 60
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_builds_at_once_do_each_other_no_harm(traces: list[Path], tmp_path: Path) -> None:
    busy_run(tmp_path / "more.cbt", "more", seed=9)
    site = tmp_path / "site"
    code = "import sys; from pathlib import Path; from cbtrace.site.build import build_site; "
    code += "build_site([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]))"
    sets = [traces, [*traces[:2], tmp_path / "more.cbt"], [tmp_path / "more.cbt"], traces[1:]]
    running = [subprocess.Popen([sys.executable, "-c", code, str(site), *map(str, paths)]) for paths in sets]
    assert [process.wait(120) for process in running] == [0, 0, 0, 0]
    assert any(same_as_fresh(site, paths) for paths in sets), "the site is that of one of them, whole"
    assert {path.name for path in (site / STATE).iterdir()} - {"lock"} == {"files", "runs"}


def test_a_full_disk_leaves_the_list_of_runs_and_says_so(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build_site(traces[:1], tmp_path / "site").out
    before = contents(site)
    real, written = Path.write_bytes, 0

    def full(path: Path, data: bytes) -> int:
        nonlocal written
        written += 1
        if written > 40:
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Exception, match="no space left on device") as error:
        build_site(traces, site)
    assert error.value.slug == "output-unwritable"  # type: ignore[attr-defined]
    monkeypatch.undo()
    after = contents(site)
    assert {name: digest for name, digest in after.items() if name in before and name != FILES} == {
        name: digest for name, digest in before.items() if name != FILES
    }
    build_site(traces, site)
    assert same_as_fresh(site, traces)
    assert os.listdir(site / STATE / "runs")  # noqa: PTH208
