"""What is installed, and what it needs: the wheel works in an environment with neither torch nor Transformers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
ROOMS = ("commands", "recorder", "site", "templates", "traces")
IMPORTABLE = (
    "cbtrace.commands",
    "cbtrace.commands.ray_builds",
    "cbtrace.recorder",
    "cbtrace.recorder.cluster.machines",
    "cbtrace.recorder.cluster.storage",
    "cbtrace.site.build",
    "cbtrace.templates",
    "cbtrace.traces",
)


def python(executable: Path | str, code: str, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the sources as they are, built in a folder of its own: builds leave things behind."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = REPOSITORY / name, folder / name
        if source.is_file() and name.split("/")[0] not in ("tests", "benchmarks"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", folder]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel and its base dependencies, which this environment has too."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", folder / "bin" / "python"]
    pinned = ["-c", REPOSITORY / "constraints" / "dev.txt"]
    installed = subprocess.run([*pip, "install", *pinned, wheel], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


def test_the_wheel_holds_every_module_and_every_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"cbtrace/{path.relative_to(REPOSITORY).as_posix()}"
        for room in ROOMS
        for path in (REPOSITORY / room).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    assert expected - held == set()
    assert {name for name in held if name.startswith("cbtrace/")} == expected
    assert any(name.endswith("/licenses/LICENSE") for name in held)


def test_base_dependencies_have_neither_torch_nor_transformers(plain: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata as m; print(*[d.metadata['Name'].lower() for d in m.distributions()])"
    installed = python(plain / "python", code, tmp_path).split()
    assert "cbtrace" in installed and "numpy" in installed
    assert not {"torch", "transformers", "psutil", "nvidia-ml-py", "polars", "ray", "fsspec", "zstandard"}.intersection(
        installed
    )


def test_every_room_can_be_imported_without_them(plain: Path, tmp_path: Path) -> None:
    for name in IMPORTABLE:
        python(plain / "python", f"import {name}", tmp_path)


@pytest.mark.parametrize("name", IMPORTABLE)
def test_no_room_imports_them_where_they_are_installed(name: str, tmp_path: Path) -> None:
    code = f"import sys, {name}; print({{'torch', 'transformers', 'ray', 'fsspec'}} & set(sys.modules))"
    assert python(sys.executable, code, tmp_path) == "set()\n"


def test_a_shipped_sample_can_be_read_and_built_without_them(plain: Path, tmp_path: Path) -> None:
    code = "import cbtrace.traces, pathlib; print(pathlib.Path(cbtrace.traces.__file__).parent / 'samples')"
    samples = sorted(Path(python(plain / "python", code, tmp_path).strip()).glob("*.cbt"))
    assert samples
    for sample in samples:
        shown = subprocess.run(
            [plain / "cbtrace", "info", sample, "--json"], capture_output=True, text=True, check=True
        )
        assert json.loads(shown.stdout)["generated_tokens"] > 0
    site = tmp_path / "site"
    subprocess.run([plain / "cbtrace", "build", *samples, "-o", site], capture_output=True, check=True)
    further = [sample for sample in samples if ".rank" in sample.name]  # part of another one's run
    assert further and len(list((site / "runs").iterdir())) == len(samples) - len(further)


@pytest.mark.parametrize("arguments", [["record", "-o", "run.cbt", "--", "-m", "this"], ["demo", "-o", "demo"]])
def test_recording_without_them_names_the_extra(arguments: list[str], plain: Path, tmp_path: Path) -> None:
    result = subprocess.run([plain / "cbtrace", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    assert 'pip install "cbtrace[record]"' in result.stderr and result.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.cbt"))


def test_exact_versions_cover_everything_that_is_asked_for() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    tables = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    asked = {name.lower() for name in re.findall(r'"([A-Za-z0-9-]+)>=', tables)}
    pinned = re.findall(r"^([a-z0-9-]+)==", (REPOSITORY / "constraints" / "dev.txt").read_text(), re.MULTILINE)
    assert asked - set(pinned) == set()


def test_nothing_names_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    home = str(Path.home())
    for name in filter(None, listed.stdout.split("\0")):
        path = REPOSITORY / name
        if path.suffix in (".py", ".md", ".toml", ".txt", ".html") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert str(REPOSITORY) not in text and (len(home) < 3 or f"{home}/" not in text), name
