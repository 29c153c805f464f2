"""The command line as a whole: help, version, one sentence for each mistake, and quick to start."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cbtrace import commands
from cbtrace.commands import app, run
from cbtrace.traces.errors import CbtraceError, catalogue
from cbtrace.traces.frames import preamble
from conftest import Cbtrace
from trace_builder import eventful

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]
README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_is_documented(name: str, cbtrace: Cbtrace) -> None:
    result = cbtrace(name, "--help")
    assert result.returncode == 0
    assert "Examples:" in result.stdout and f"  cbtrace {name}" in result.stdout
    assert f"`cbtrace {name}" in README


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str, cbtrace: Cbtrace) -> None:
    words = cbtrace(name, "--help").stdout.partition("\nOptions:\n")[2].replace(",", " ").split()
    options = {word for word in words if word.startswith("--") and len(word) > 2} - {"--help"}
    missing = {option for option in options if f"`{option}" not in README}
    assert not missing


def test_help_lists_every_command(cbtrace: Cbtrace) -> None:
    result = cbtrace("--help")
    assert result.returncode == 0
    assert all(f"\n  {name}" in result.stdout for name in COMMANDS)


def test_version(cbtrace: Cbtrace) -> None:
    assert cbtrace("--version").stdout == f"cbtrace {version('cbtrace')}\n"


def test_nothing_heavy_is_imported_to_parse_a_command_line() -> None:
    code = "import sys, cbtrace.commands; print([name for name in sys.modules if name.split('.')[0] in sys.argv[1:]])"
    heavy = ["torch", "transformers", "altair", "jinja2", "numpy", "msgspec"]
    assert subprocess.check_output([sys.executable, "-c", code, *heavy], text=True).strip() == "[]"
    rooms = "import sys, cbtrace.commands; print([name for name in sys.modules if name.startswith('cbtrace.')])"
    loaded = subprocess.check_output([sys.executable, "-c", rooms], text=True)
    assert not any(f"cbtrace.{room}" in loaded for room in ("recorder", "site", "traces"))


def mistakes() -> list[tuple[str, list[str], int, str, str]]:
    record = ["record", "-o", "run.cbt"]
    python = ["--", sys.executable, "-c", "print('ran')"]
    return [
        ("unknown command", ["nonesuch"], 2, "usage", "nonesuch"),
        ("unknown option", ["info", "--nonesuch"], 2, "usage", "--nonesuch"),
        ("no output", ["record", *python], 2, "usage", "--output"),
        ("missing file", ["info", "nonesuch.cbt"], 1, "trace-not-found", "nonesuch.cbt"),
        ("empty file", ["info", "empty.cbt"], 1, "trace-empty", "empty.cbt"),
        ("text file", ["info", "text.cbt"], 1, "not-a-trace", "text.cbt"),
        ("folder", ["info", "folder"], 1, "trace-not-found", "is a folder"),
        ("newer trace", ["info", "newer.cbt"], 1, "trace-too-new", "version 999"),
        ("missing file to build", ["build", "nonesuch.cbt", "-o", "out"], 1, "trace-not-found", "nonesuch.cbt"),
        ("text file to build", ["build", "text.cbt", "-o", "out"], 1, "not-a-trace", "text.cbt"),
        ("newer trace to build", ["build", "newer.cbt", "-o", "out"], 1, "trace-too-new", "newer.cbt"),
        ("folder without traces", ["build", "folder", "-o", "out"], 2, "no-traces", "folder"),
        ("nothing to build", ["build", "-o", "out"], 2, "usage", "RUN.cbt"),
        ("output not ours", ["build", "good.cbt", "-o", "taken"], 2, "output-not-ours", "taken"),
        ("output is a file", ["build", "good.cbt", "-o", "text.cbt"], 2, "output-not-ours", "text.cbt"),
        ("not a site", ["serve", "folder"], 2, "not-a-site", "folder"),
        ("bad port", ["serve", "folder", "--port", "99999"], 2, "usage", "--port"),
        ("no program", record, 2, "no-program", "after --"),
        ("no program after --", [*record, "--"], 2, "no-program", "after --"),
        ("program not found", [*record, "--", "nonesuch"], 2, "program-not-found", "nonesuch"),
        ("tag without value", [*record, "--tag", "blocks", *python], 2, "bad-tag", "'blocks'"),
        ("tag without key", [*record, "--tag", "=1", *python], 2, "bad-tag", "'=1'"),
        ("tag twice", [*record, "--tag", "a=1", "--tag", "a=2", *python], 2, "bad-tag", "a"),
        ("existing trace", ["record", "-o", "good.cbt", *python], 1, "trace-exists", "--overwrite"),
        ("existing text", ["record", "-o", "text.cbt", "--overwrite", *python], 1, "trace-exists", "not a trace"),
        ("output is a folder", ["record", "-o", "folder", *python], 2, "usage", "is a folder"),
        ("missing folder", ["record", "-o", "none/run.cbt", *python], 2, "no-folder", "none"),
        ("size that is none", [*record, "--max-size", "5 parsecs", *python], 2, "bad-size", "'5 parsecs'"),
        ("size too small", [*record, "--max-size", "5kB", *python], 2, "bad-size", "64 KiB"),
        ("ring without a size", [*record, "--when-full", "ring", *python], 2, "no-size-limit", "--max-size"),
        ("unknown rule", [*record, "--max-size", "1MB", "--when-full", "never", *python], 2, "usage", "never"),
        ("nothing to check", ["check"], 2, "usage", "RUN.cbt"),
        ("folder without traces to check", ["check", "folder"], 2, "no-traces", "folder"),
        (
            "missing file to export",
            ["export", "none.cbt", "--to", "csv", "-o", "out"],
            1,
            "trace-not-found",
            "none.cbt",
        ),
        ("text file to export", ["export", "text.cbt", "--to", "json", "-o", "out"], 1, "not-a-trace", "text.cbt"),
        ("unknown format", ["export", "good.cbt", "--to", "xml", "-o", "out"], 2, "usage", "xml"),
        ("no format", ["export", "good.cbt", "-o", "out"], 2, "usage", "--to"),
        ("over the trace", export("json", "good.cbt", "--overwrite"), 2, "output-is-input", "good.cbt"),
        ("existing file", export("perfetto", "text.cbt"), 1, "trace-exists", "text.cbt"),
        ("existing summary", export("json", "text.cbt"), 1, "trace-exists", "text.cbt"),
        ("tables in a file", export("csv", "text.cbt"), 1, "trace-exists", "not a folder"),
        ("missing folder to export to", export("perfetto", "none/x.json"), 1, "file-unwritable", "none/x.json"),
        ("a folder to export to", export("json", "folder", "--overwrite"), 1, "file-unwritable", "folder"),
        ("newest already", ["upgrade", "good.cbt", "-o", "new.cbt"], 2, "upgrade-newest", "good.cbt"),
        ("newer to upgrade", ["upgrade", "newer.cbt", "-o", "new.cbt"], 1, "trace-too-new", "version 999"),
        ("existing upgrade", ["upgrade", "old.cbt", "-o", "good.cbt"], 1, "trace-exists", "good.cbt"),
        ("upgrade to nowhere", ["upgrade", "old.cbt", "-o", "none/new.cbt"], 1, "file-unwritable", "none/new.cbt"),
        ("upgrade of damage", ["upgrade", "damaged.cbt", "-o", "new.cbt"], 1, "upgrade-damaged", "damaged.cbt"),
        ("compress an old one", ["compress", "old.cbt"], 2, "compress-old", "cbtrace upgrade"),
        ("compress to a text", ["compress", "good.cbt", "-o", "text.cbt"], 1, "trace-exists", "text.cbt"),
        ("compress itself", ["compress", "good.cbt", "-o", "good.cbt"], 2, "output-is-input", "good.cbt"),
        ("compress to nowhere", ["compress", "good.cbt", "-o", "none/x.zst"], 1, "file-unwritable", "none/x.zst"),
        ("compress a text", ["compress", "text.cbt"], 1, "not-a-trace", "text.cbt"),
        ("compress damage", ["compress", "damaged.cbt"], 2, "compress-old", "damaged.cbt"),
        ("compress a folder", ["compress", "folder"], 1, "trace-not-found", "folder"),
        ("compress here", ["compress", "."], 1, "trace-not-found", "is a folder"),
        ("compress a long name", ["compress", "n" * 300], 1, "file-unwritable", "too long"),
        ("check a long name", ["check", "n" * 300], 2, "name-too-long", "shorter"),
        ("decompress to what name", ["decompress", "good.cbt"], 2, "no-output", "--output"),
        ("decompress nothing", ["decompress", "none.cbt.zst"], 1, "trace-not-found", "none.cbt.zst"),
        ("demo in a file", ["demo", "-o", "text.cbt"], 1, "output-unwritable", "text.cbt"),
    ]


def export(to: str, output: str, *options: str) -> list[str]:
    return ["export", "good.cbt", "--to", to, "-o", output, *options]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def material(tmp_path: Path) -> Path:
    """One of each thing that can be named by mistake, and one good trace."""
    eventful(tmp_path / "good.cbt").close()
    (tmp_path / "empty.cbt").write_bytes(b"")
    (tmp_path / "text.cbt").write_text("a text\n" * 100)
    (tmp_path / "newer.cbt").write_bytes(preamble(999) + bytes(100))
    old = (Path(__file__).parent / "fixtures" / "version-1-eventful.cbt").read_bytes()
    (tmp_path / "old.cbt").write_bytes(old)
    (tmp_path / "damaged.cbt").write_bytes(old[:400] + bytes(20) + old[420:])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "slug", "names"), [case[1:] for case in mistakes()], ids=[case[0] for case in mistakes()]
)
def test_a_mistake_gets_one_sentence_and_changes_nothing(
    arguments: list[str],
    code: int,
    slug: str,
    names: str,
    material: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = contents(material)
    monkeypatch.chdir(material)
    monkeypatch.setattr(sys, "argv", ["cbtrace", *arguments])
    assert run() == code
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1 and said.err.startswith("cbtrace: ") and said.err.endswith(f" [{slug}]\n")
    assert names in said.err
    assert contents(material) == before
    assert slug in {message.slug for message in catalogue()}


def test_an_error_of_ours_is_never_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(commands, "app", broken)
    with pytest.raises(ZeroDivisionError):
        run()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (CbtraceError("Words."), 1)])
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(commands, "app", fail)
    assert run() == code


def test_a_reader_that_goes_away_is_no_traceback(material: Path) -> None:
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -c 'from cbtrace.commands import main; main()' info good.cbt --json | head -1"],
        cwd=material,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("{\n", "")
