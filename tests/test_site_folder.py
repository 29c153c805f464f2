"""The output folder: what is there is whole, what others put there stays, and an ended build does no harm."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from cbtrace.site.folder import FILES, RECORDS, STATE, OutputFolder, OutputFolderError, OutputWriteError


def files_in(folder: Path) -> dict[str, str]:
    """The files that readers see."""
    return {
        name: path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and STATE not in (name := path.relative_to(folder).as_posix())
    }


def texts(**files: str) -> dict[str, str]:
    return {name.replace("__", "/"): text for name, text in files.items()}


def build(out: Path, **files: str) -> None:
    with OutputFolder(out) as folder:
        folder.put(texts(**files))


def test_a_later_build_replaces_its_own_files_and_keeps_others(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one", runs__old__page="gone next time", runs__older__page="gone, and its folder too")
    (out / "notes.txt").write_text("mine")
    (out / "runs" / "old" / "mine.txt").write_text("mine too")
    (out / "runs" / "empty").mkdir()
    build(out, a="two")
    assert files_in(out) == {"a": "two", "notes.txt": "mine", "runs/old/mine.txt": "mine too"}
    assert {path.name for path in (out / "runs").iterdir()} == {"old", "empty"}
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_an_unchanged_file_is_left_alone(tmp_path: Path) -> None:
    build(tmp_path / "site", a="same", b="one")
    same, other = tmp_path / "site" / "a", tmp_path / "site" / "b"
    for path in (same, other):
        os.utime(path, ns=(1, 1))
    build(tmp_path / "site", a="same", b="two")
    assert same.stat().st_mtime_ns == 1
    assert other.stat().st_mtime_ns > 1


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputFolderError, match="is not a site that cbtrace built") as error:
        build(out, a="one")
    assert error.value.slug == "output-not-ours"
    assert files_in(tmp_path) == {"thesis/chapter.tex": "years of work"}
    assert not (out / STATE).exists()


@pytest.mark.parametrize("listed", [b"", b"[]\n", b"a\nmine\n", b"\xff\n", b"# Files\nmine\n"])
def test_a_broken_list_is_no_licence_to_delete(tmp_path: Path, listed: bytes) -> None:
    out = tmp_path / "site"
    (out / STATE).mkdir(parents=True)
    (out / FILES).write_bytes(listed)
    (out / "mine").write_text("mine")
    with pytest.raises(OutputFolderError):
        build(out, a="one")
    assert (out / "mine").read_text() == "mine"


def test_the_list_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one")
    (tmp_path / "precious").write_text("keep")
    with (out / FILES).open("a") as listed:
        listed.write(f"../precious\n{tmp_path / 'precious'}\n")
    build(out, a="two")
    assert (tmp_path / "precious").read_text() == "keep"


def test_a_line_that_was_cut_names_nothing(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one")
    (out / "notes").write_text("mine")
    with (out / FILES).open("a") as listed:
        listed.write("notes")  # the beginning of notes-of-cbtrace, say
    build(out, a="two", b="more")
    assert files_in(out) == {"a": "two", "b": "more", "notes": "mine"}


def test_a_file_of_others_in_the_way_is_refused_and_stays(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one")
    (out / "b").write_text("mine")
    with pytest.raises(OutputFolderError, match="move it away"):
        build(out, a="two", b="theirs")
    assert files_in(out) == {"a": "one", "b": "mine"}


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, runs__one__page="one")
    (tmp_path / "elsewhere" / "one").mkdir(parents=True)
    (tmp_path / "elsewhere" / "one" / "page").write_text("mine")
    (out / "runs" / "one" / "page").unlink()
    (out / "runs" / "one").rmdir()
    (out / "runs").rmdir()
    (out / "runs").symlink_to(tmp_path / "elsewhere")
    for files in ({"runs__one__page": "two"}, {"a": "the run is gone"}):
        with pytest.raises(OutputFolderError, match="through a link"):
            build(out, **files)
    assert files_in(tmp_path / "elsewhere") == {"one/page": "mine"}


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    for name in ("../outside", "/outside", "a/../../outside"):
        with pytest.raises(OutputFolderError), OutputFolder(tmp_path / "site") as folder:
            folder.take(folder.new, {name: 1})
    assert list(tmp_path.iterdir()) == []


def test_a_failure_before_the_first_run_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="early"), OutputFolder(tmp_path / "site") as folder:
        folder.put(texts(assets__style="grey"))
        raise RuntimeError("early")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="early"), OutputFolder(tmp_path / "empty") as folder:
        folder.put(texts(assets__style="grey"))
        raise RuntimeError("early")
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_build_that_was_ended_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, index="old", runs__gone__page="old")
    with pytest.raises(KeyboardInterrupt), OutputFolder(out) as folder:
        folder.put({"runs/new/page": "new", f"{RECORDS}new": "record"})
        (folder.new / "half").write_text("never finished")
        raise KeyboardInterrupt
    assert files_in(out) == {"index": "old", "runs/gone/page": "old", "runs/new/page": "new"}
    with OutputFolder(out) as folder:
        assert folder.keep({"runs/new/page": 3, f"{RECORDS}new": 6})
        folder.put(texts(index="new"))
    assert files_in(out) == {"index": "new", "runs/new/page": "new"}
    assert not (out / STATE / "new").exists()


def test_what_was_tampered_with_is_not_kept(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build(out, a="one", b="two")
    (out / "a").write_text("cut off"[:2])
    (out / "c").write_text("mine")
    with OutputFolder(out) as folder:
        assert not folder.keep({"a": 3})
        assert not folder.keep({"b": 3, "nonesuch": 1})
        assert not folder.keep({"c": 4}), "a file of others is not a part of the site"
        assert folder.keep({"b": 3})
    assert files_in(out) == {"b": "two", "c": "mine"}


def test_a_second_build_waits_for_the_first(tmp_path: Path) -> None:
    out = tmp_path / "site"
    waits = threading.Event()

    def second() -> None:
        with OutputFolder(out, waits.set) as folder:
            folder.put(texts(a="second", b="more"))

    with OutputFolder(out) as folder:
        other = threading.Thread(target=second)
        other.start()
        assert waits.wait(10)
        folder.put(texts(a="first", c="first"))
    other.join(10)
    assert files_in(out) == {"a": "second", "b": "more"}
    with FileLock(out / STATE / "lock", timeout=0):
        pass


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
    (tmp_path / "plain" / "a").write_text("one")
    build(tmp_path / "site", a="one")
    for name in ("", "a"):
        assert (tmp_path / "site" / name).stat().st_mode == (tmp_path / "plain" / name).stat().st_mode
