"""``cbtrace build`` finds traces and writes a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbtrace.commands.progress import progress_bar
from cbtrace.commands.trace_files import trace_files
from conftest import Cbtrace
from trace_builder import eventful


def test_builds_from_files_and_folders(cbtrace: Cbtrace, tmp_path: Path) -> None:
    (tmp_path / "runs" / "deep").mkdir(parents=True)
    for name in ("one.cbt", "runs/two.cbt", "runs/deep/three.cbt"):
        eventful(tmp_path / name).close()
    result = cbtrace("build", "one.cbt", "runs", "-o", "site", "--title", "Three & more")
    assert (result.returncode, result.stderr) == (0, "")
    index = tmp_path / "site" / "index.html"
    assert result.stdout == f"Runs: 3 built, 0 unchanged.\nOpen {index}\n"
    assert len(list((tmp_path / "site" / "runs").iterdir())) == 3
    assert "Three &amp; more" in index.read_text(encoding="utf-8")


def test_a_site_can_be_built_again(cbtrace: Cbtrace, tmp_path: Path) -> None:
    eventful(tmp_path / "run.cbt").close()
    for _ in range(2):
        assert cbtrace("build", "run.cbt", "-o", "site").returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run.cbt", "site"}


def test_only_what_is_new_is_built(cbtrace: Cbtrace, tmp_path: Path) -> None:
    for name in ("one", "two"):
        eventful(tmp_path / f"{name}.cbt").close()
        assert cbtrace("build", ".", "-o", "site").returncode == 0
    again = cbtrace("build", ".", "-o", "site")
    assert again.stdout.startswith("Runs: 0 built, 2 unchanged.\n")
    fresh = cbtrace("build", ".", "-o", "site", "--fresh")
    assert fresh.stdout.startswith("Runs: 2 built, 0 unchanged.\n")


def test_an_unreadable_trace_is_named_and_the_exit_code_is_1(cbtrace: Cbtrace, tmp_path: Path) -> None:
    eventful(tmp_path / "good.cbt").close()
    (tmp_path / "bad.cbt").write_text("no trace")
    result = cbtrace("build", ".", "-o", "site")
    assert result.returncode == 1
    assert result.stderr.startswith("cbtrace: bad.cbt is not a trace") and result.stderr.endswith("[not-a-trace]\n")
    assert result.stdout.startswith("Runs: 1 built, 0 unchanged, 1 left out.\nOpen ")
    assert "bad.cbt" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    alone = cbtrace("build", "bad.cbt", "-o", "other")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert not (tmp_path / "other").exists()


def test_a_site_in_japanese_has_a_title_in_japanese(cbtrace: Cbtrace, tmp_path: Path) -> None:
    eventful(tmp_path / "run.cbt").close()
    assert cbtrace("build", "run.cbt", "-o", "site", "--lang", "ja").returncode == 0
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert '<html lang="ja">' in index and "実行記録</title>" in index
    wrong = cbtrace("build", "run.cbt", "-o", "site", "--lang", "fr")
    assert wrong.returncode == 2 and "choose one of en, ja" in wrong.stderr


def test_traces_are_named_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.cbt", "a.cbt", "c.cbt.zst", "notes.txt"):
        (tmp_path / name).touch()
    given = [tmp_path / "b.cbt", tmp_path, tmp_path / "nonesuch.cbt"]
    assert [path.name for path in trace_files(given)] == ["b.cbt", "a.cbt", "c.cbt.zst", "nonesuch.cbt"]


def test_no_progress_where_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Working") as advance:
        assert advance is None
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar("Working") as advance:
        assert advance is not None
        advance(1, 4, "[red]x.cbt")
    shown = capsys.readouterr()
    assert "Working: [red]x.cbt" in shown.err and "25%" in shown.err and shown.out == ""
