"""The output folder: swapped in whole or not at all, and nothing of others deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cbtrace.site.folder import MARKER, OutputFolder, OutputFolderError, OutputWriteError


def files_in(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def build(out: Path, **files: str) -> None:
    with OutputFolder(out) as folder:
        for name, text in files.items():
            folder.write(name.replace("__", "/"), text)


def test_a_later_build_replaces_its_own_files_and_keeps_others(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one", runs__old__page="gone next time")
    (out / "notes.txt").write_text("mine")
    (out / "runs" / "old" / "mine.txt").write_text("mine too")
    build(out, a="two")
    found = files_in(out)
    assert found.pop(MARKER)
    assert found == {"a": "two", "notes.txt": "mine", "runs/old/mine.txt": "mine too"}
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputFolderError, match="is not a site that cbtrace built") as error:
        build(out, a="one")
    assert error.value.slug == "output-not-ours"
    assert files_in(tmp_path) == {"thesis/chapter.tex": "years of work"}


@pytest.mark.parametrize("marker", ["", "[]", '{"files": 3}', "\xff", '{"files": null}'])
def test_a_broken_marker_is_no_licence_to_delete(tmp_path: Path, marker: str) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (out / MARKER).write_text(marker)
    (out / "mine").write_text("mine")
    with pytest.raises(OutputFolderError):
        build(out, a="one")
    assert (out / "mine").read_text() == "mine"


def test_a_marker_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (tmp_path / "precious").write_text("keep")
    (out / MARKER).write_text(json.dumps({"files": ["../precious", str(tmp_path / "precious"), MARKER]}))
    build(out, a="one")
    assert (tmp_path / "precious").read_text() == "keep"


def test_a_file_of_others_in_the_way_is_refused_and_stays(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one")
    (out / "b").write_text("mine")
    with pytest.raises(OutputFolderError, match="move it away"):
        build(out, a="two", b="theirs")
    assert (out / "b").read_text() == "mine"
    assert (out / "a").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_failure_half_way_leaves_the_old_site(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one")
    with pytest.raises(RuntimeError, match="half way"), OutputFolder(out) as folder:
        folder.write("a", "two")
        raise RuntimeError("half way")
    assert files_in(out)["a"] == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("a file")
    with pytest.raises(OutputFolderError, match="is a file"):
        build(tmp_path / "site", a="one")
    assert (tmp_path / "site").read_text() == "a file"


def test_a_parent_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(OutputWriteError, match="cannot be written") as error:
        build(tmp_path / "file" / "site", a="one")
    assert error.value.exit_code == 1


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    build(real, a="one")
    (tmp_path / "link").symlink_to(real)
    build(tmp_path / "link", a="two")
    assert (tmp_path / "link").is_symlink()
    assert (real / "a").read_text() == "two"


def test_the_site_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    build(tmp_path / "site", a="one")
    assert (tmp_path / "site").stat().st_mode == (tmp_path / "plain").stat().st_mode
