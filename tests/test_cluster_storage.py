"""Storages: files appear whole or not at all, credentials are never shown, and what goes wrong is one sentence."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import fsspec
import pytest

from cbtrace.commands.where import is_url, ray_wanted
from cbtrace.recorder.cluster.storage import Storage, StorageError, shown
from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.storage_copy import StorageCopy
from cbtrace.recorder.experiments.take_up import new_experiment
from cbtrace.traces.errors import CbtraceError, UsageError
from cbtrace.traces.experiment import EXPERIMENT_FILE, read_experiment, write_experiment
from conftest import Cbtrace
from test_cluster_connection import WITHOUT_RAY
from test_experiments_runner import plan

SECRET = "hunter2"


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A store of objects, which appear whole, and a folder, in which files are renamed."""
    url = f"memory://bucket/{tmp_path.name}" if request.param == "memory" else (tmp_path / "kept").as_uri()
    return Storage(url)


def test_what_is_written_is_read_and_listed(storage: Storage, tmp_path: Path) -> None:
    assert storage.read("runs/a.cbt") is None and storage.names() == []
    (tmp_path / "a.cbt").write_bytes(b"one")
    storage.write("runs/a.cbt", tmp_path / "a.cbt")
    storage.write("experiment.json", b"{}")
    storage.write("experiment.json", b"{ }")
    assert (storage.read("runs/a.cbt"), storage.read("experiment.json")) == (b"one", b"{ }")
    assert storage.names() == ["experiment.json", "runs/a.cbt"]
    storage.fetch("runs/a.cbt", tmp_path / "deep" / "b.cbt")
    assert (tmp_path / "deep" / "b.cbt").read_bytes() == b"one"
    storage.check_writable()
    assert storage.names() == ["experiment.json", "runs/a.cbt"], "a probe is not left behind"


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage((tmp_path / "kept").as_uri())
    storage.write("a", b"old")

    def full(*_: object, **__: object) -> None:
        (tmp_path / "kept" / ".a.part").write_bytes(b"ne")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(storage._fs), "pipe_file", full)
    with pytest.raises(StorageError, match="kept cannot be written \\(no space left on device\\)"):
        storage.write("a", b"new")
    assert storage.read("a") == b"old" and storage.names() == ["a"]
    with pytest.raises(StorageError, match=r"cannot be read \(no such file\)"):
        storage.fetch("nonesuch", tmp_path / "b")
    assert not list(tmp_path.glob("*b*"))


def test_credentials_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://me:{SECRET}@bucket/experiments?signature={SECRET}"
    assert shown(url) == "s3://***@bucket/experiments"
    assert shown("file:///a/b") == "file:///a/b" and shown("ftp://host:21/mail@host") == "ftp://host:21/mail@host"

    class Refusing(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "refusing"

        def cat_file(self, path: str, **_: object) -> bytes:
            raise PermissionError(f"403 for https://me:{SECRET}@host/{path}")

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with pytest.raises(StorageError) as caught:
        Storage("refusing://me@host/x").read("a")
    assert str(caught.value).startswith("refusing://***@host/x cannot be read (permissionerror)")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "slug"),
    [
        ("nonsense://bucket/x", "storage-unknown"),
        ("gs://bucket/x", "storage-package"),
        (f"memory://me:{SECRET}@bucket/x", "storage-password"),
        (f"ftp://me:{SECRET[:3]}@{SECRET[3:]}@host/x", "storage-password"),
        (f"s3://me:{SECRET[:3]}/{SECRET[3:]}@bucket/x", "storage-password"),
    ],
)
def test_a_storage_that_cannot_be_had_is_a_usage_error(url: str, slug: str) -> None:
    with pytest.raises(UsageError) as caught:
        Storage(url)
    text = "".join(traceback.format_exception(caught.value))
    assert caught.value.slug == slug and SECRET not in text and SECRET[3:] not in text


def test_the_further_of_folder_and_storage_wins(storage: Storage, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    experiment = new_experiment(parse_plan(plan(repeats=3), tmp_path))

    def end(number: int) -> None:
        run = experiment.runs[number]
        run.status, run.trace = "done", f"runs/{run.id}.cbt"
        (one / "runs").mkdir(parents=True, exist_ok=True)
        (one / run.trace).write_bytes(run.id.encode())
        write_experiment(experiment, one)

    end(0)
    first = StorageCopy(storage)
    first.bring(one)
    first.save(one, None)
    end(1)
    first.save(one, experiment.runs[1])
    assert storage.read(experiment.runs[0].trace) is not None, "what the folder had before is brought along"

    other.mkdir()
    second = StorageCopy(storage)
    second.bring(other)
    assert read_experiment(other) == experiment
    assert [(other / run.trace).read_bytes() for run in experiment.runs[:2]] == [b"s1-baseline-r1", b"s1-baseline-r2"]

    # The first one goes on; the second then sees that it is not alone.
    end(2)
    first.save(one, experiment.runs[2])
    with pytest.raises(CbtraceError) as caught:
        second.save(other, None)
    assert caught.value.slug == "storage-busy"

    # A folder whose last run did not reach the storage brings it there.
    storage.write(EXPERIMENT_FILE, (other / EXPERIMENT_FILE).read_bytes())
    StorageCopy(storage).bring(one)
    assert storage.read(experiment.runs[2].trace) == b"s1-baseline-r3"


def test_what_lies_in_the_storage_is_not_trusted(storage: Storage, tmp_path: Path) -> None:
    experiment = new_experiment(parse_plan(plan(), tmp_path))
    experiment.runs[0].status, experiment.runs[0].trace = "done", "../../outside.cbt"
    (tmp_path / "bad").mkdir()
    write_experiment(experiment, tmp_path / "bad")
    storage.write(EXPERIMENT_FILE, (tmp_path / "bad" / EXPERIMENT_FILE).read_bytes())
    (tmp_path / "x").mkdir()
    with pytest.raises(CbtraceError, match="names a trace outside its folder"):
        StorageCopy(storage).bring(tmp_path / "x")
    assert not list((tmp_path / "x").iterdir())


def test_urls_are_told_from_paths() -> None:
    assert all(map(is_url, ("s3://b/x", "file:///x", "memory://x", "simplecache::s3://b/x", "S3://b")))
    assert not any(map(is_url, ("run.cbt", "/abs/run.cbt", "C:/runs", "odd:name.cbt", "s3:/b/x")))


@pytest.mark.parametrize(("on", "address"), [("cloud", None), ("local", "127.0.0.1:1")])
def test_places_that_do_not_exist_are_refused(on: str, address: str | None) -> None:
    with pytest.raises(UsageError):
        ray_wanted(on, address)


def test_a_storage_that_cannot_be_written_is_told_before_anything_runs(cbtrace: Cbtrace, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan())
    (tmp_path / "file").touch()
    done = cbtrace("run", "plan.toml", "-o", "x", "--storage", (tmp_path / "file" / "below").as_uri())
    assert done.returncode == 1
    assert "cannot be written (" in done.stderr and "[storage-failed]" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "x").exists()


def test_an_experiment_on_one_machine_needs_no_ray_to_be_kept_in_a_storage_and_built_from_it(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_RAY, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    (tmp_path / "plan.toml").write_text(plan())
    kept = tmp_path / "kept"
    done = run("run", "plan.toml", "-o", "x", "--storage", kept.as_uri())
    assert done.returncode == 0, done.stderr
    trace = "runs/s1-baseline-r1.cbt"
    assert (kept / trace).read_bytes() == (tmp_path / "x" / trace).read_bytes()
    built = run("build", kept.as_uri(), "-o", "site")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "experiments" / "trial" / "index.html").is_file()
    missing = run("build", f"{kept.as_uri()}/nonesuch.cbt", "-o", "none")
    assert missing.returncode == 1 and "cannot be read (no such file)" in missing.stderr
    assert not (tmp_path / "none").exists()
