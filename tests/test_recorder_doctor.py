"""The verdict on an installation: from real runs, from engines that were tampered with, and without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.generation.continuous_batching import ContinuousBatchingManager, Scheduler

from cbtrace.recorder import doctor, hook_points, self_check, supported
from cbtrace.recorder.doctor import Verdict, diagnose
from cbtrace.recorder.engine_watch import EngineWatch
from cbtrace.recorder.hooks import HookSet
from cbtrace.recorder.self_check import Check
from cbtrace.recorder.step_watch import StepWatch
from cbtrace.recorder.supported import TESTED, is_verified
from conftest import Cbtrace
from engines import Case, prompts, recorded, tiny_llama

PASSED = [Check("tokens", True, True, "the same")]


def verdict_of(checks: list[Check], version: str = TESTED[0]) -> Verdict:
    return diagnose({"software.transformers": version}, [], checks).verdict


def failures(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.passed}


def with_version(folder: Path, version: str) -> dict[str, str]:
    """An environment in which the installed Transformers calls itself by another version."""
    faked = folder / "faked" / f"transformers-{version}.dist-info"
    faked.mkdir(parents=True)
    (faked / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n")
    others = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(faked.parent), *others])}


@pytest.mark.engine
def test_every_check_passes_on_a_tested_version(cbtrace: Cbtrace) -> None:
    done = cbtrace("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert (report["verdict"], report["usable"]) == ("verified", True)
    assert report["versions"]["transformers"] == is_verified()[0]
    assert [check for check in report["checks"] if not check["passed"]] == []
    assert {"hook points", "signatures", "tokens", "trace", "pressure"} <= {c["name"] for c in report["checks"]}
    assert report["gpu"]["name"] is not None


@pytest.mark.engine
def test_an_unknown_version_is_tried_and_told_apart(cbtrace: Cbtrace, tmp_path: Path) -> None:
    done = cbtrace("doctor", env=with_version(tmp_path, "9.8.7"))
    assert done.returncode == 0
    assert "verdict       works but unverified version" in done.stdout
    assert "not tested on Transformers 9.8.7; the self-check passed." in done.stdout


@pytest.mark.engine
def test_a_trace_of_an_unknown_version_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(supported, "version", lambda _name: "9.8.7")
    case = Case(prompts(3, 10, 20), new_tokens=4)
    trace, outputs = recorded(case, tiny_llama(), tmp_path / "run.cbt")
    assert not trace.engines[0].verified
    told = {notice.slug: notice.text for notice in trace.notices}
    assert told["unverified-version"] == (
        "Transformers 9.8.7 is not one that cbtrace was tested on: figures may be wrong."
    )
    assert trace.requests.generated.tolist() == [len(tokens) for tokens in outputs.values()] == [4, 4, 4]


def test_nothing_installed_is_said_with_the_remedy() -> None:
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
        "sys.argv = ['cbtrace', 'doctor']\nfrom cbtrace.commands import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.startswith("verdict       not usable\n")
    assert "Recording is not available here: torch and transformers are not installed." in done.stdout
    assert 'pip install "cbtrace[record]"' in done.stdout
    assert "transformers  none" in done.stdout


def test_the_command_itself_loads_nothing_heavy() -> None:
    code = "import sys\nimport cbtrace.commands.doctor\nimport cbtrace.recorder.doctor\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(done.stdout.split())


# Verdicts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "vital", "passed", "verdict"),
    [
        (TESTED[0], True, True, Verdict.VERIFIED),
        (TESTED[0], False, False, Verdict.UNVERIFIED),
        (TESTED[0], True, False, Verdict.UNUSABLE),
        ("9.8.7", True, True, Verdict.UNVERIFIED),
        ("9.8.7", False, False, Verdict.UNVERIFIED),
        ("9.8.7", True, False, Verdict.UNUSABLE),
    ],
)
def test_verdict(version: str, vital: bool, passed: bool, verdict: Verdict) -> None:
    assert verdict_of([*PASSED, Check("trace", passed, vital, "what it says")], version) is verdict


def test_the_reason_names_what_failed_and_what_differs() -> None:
    facts = {"software.transformers": "9.8.7"}
    missing = Check("hook points", False, False, "missing: Scheduler.finish_request")
    assert "missing: Scheduler.finish_request" in diagnose(facts, [], [missing]).reason
    broken = Check("trace", False, True, "it holds no engine")
    report = diagnose(facts, [], [missing, broken])
    assert "it holds no engine" in report.reason and TESTED[-1] in report.remedy


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("raise SystemExit('no such thing')", "ended with code 1 (no such thing)"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_a_self_check_that_dies_or_hangs_is_a_verdict(monkeypatch: Any, code: str, said: str) -> None:
    def start(_folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(doctor, "_start", start)
    monkeypatch.setattr(doctor, "_SECONDS", 3.0)
    report = doctor.examine()
    assert report.verdict is Verdict.UNUSABLE
    assert said in report.reason


# Engines that were tampered with -------------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_recording_that_changes_tokens_is_not_usable(tmp_path: Path, monkeypatch: Any) -> None:
    created = EngineWatch.engine_created

    def meddles(self: EngineWatch, manager: Any, processor: Any) -> None:
        created(self, manager, processor)
        manager.model.lm_head.weight.data.neg_()

    monkeypatch.setattr(EngineWatch, "engine_created", meddles)
    checks = self_check.run(tmp_path)
    assert set(failures(checks)) == {"tokens"}
    assert verdict_of(checks) is Verdict.UNUSABLE


@pytest.mark.engine
def test_a_recorder_that_stops_is_not_usable(tmp_path: Path, monkeypatch: Any) -> None:
    def breaks(*_: Any) -> None:
        raise AttributeError("moved")

    monkeypatch.setattr(StepWatch, "scheduled", breaks)
    checks = self_check.run(tmp_path)
    assert "recorder_error: AttributeError" in failures(checks)["recording"]
    assert verdict_of(checks) is Verdict.UNUSABLE


@pytest.mark.engine
def test_a_hook_that_cannot_be_set_costs_its_fields(tmp_path: Path, monkeypatch: Any) -> None:
    add = HookSet.add_passing

    def lacks(self: HookSet, owner: Any, name: str, around: Any, *, label: str = "") -> Any:
        return add(self, owner, f"{name}_gone" if name == "_process_candidates" else name, around, label=label)

    monkeypatch.setattr(HookSet, "add_passing", lacks)
    checks = self_check.run(tmp_path)
    assert set(failures(checks)) == {"hooks"} and "_process_candidates" in failures(checks)["hooks"]
    assert verdict_of(checks) is Verdict.UNVERIFIED


@pytest.mark.engine
def test_an_engine_that_fails_by_itself_is_not_blamed_on_recording(tmp_path: Path, monkeypatch: Any) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ContinuousBatchingManager, "_create_batch_processor", fails)
    checks = self_check.run(tmp_path)
    assert set(failures(checks)) == {"engine"} and checks[-1].name == "engine"
    assert "without cbtrace" in diagnose({}, [], checks).remedy


@pytest.mark.engine
def test_an_engine_that_hangs_ends_the_check(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ContinuousBatchingManager, "get_result", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(self_check, "RUN_SECONDS", 0.5)
    assert "TimeoutError" in failures(self_check.run(tmp_path))["engine"]


@pytest.mark.engine
def test_methods_that_are_gone_or_take_other_parameters_are_named(monkeypatch: Any) -> None:
    assert list(hook_points.differences()) == []

    def finish_request(self: Any, handle: str) -> None: ...

    monkeypatch.setattr(Scheduler, "finish_request", finish_request)
    monkeypatch.delattr(ContinuousBatchingManager, "cancel_request")
    assert [str(one) for one in hook_points.differences()] == [
        "ContinuousBatchingManager.cancel_request",
        "Scheduler.finish_request(handle) instead of (request_id)",
    ]


@pytest.mark.engine
def test_every_hook_is_in_the_table_of_hook_points(tmp_path: Path, monkeypatch: Any) -> None:
    hooked: set[str] = set()
    add = HookSet.add_passing

    def notes(self: HookSet, owner: Any, name: str, around: Any, *, label: str = "") -> Any:
        *classes, _object = (owner if isinstance(owner, type) else type(owner)).__mro__
        hooked.add(next(cls.__name__ for cls in classes[::-1] if name in vars(cls)) + f".{name}")
        return add(self, owner, name, around, label=label)

    monkeypatch.setattr(HookSet, "add_passing", notes)
    recorded(Case(prompts(1, 10, 20), new_tokens=2), tiny_llama(), tmp_path / "run.cbt")
    table = {point.name for point in hook_points.HOOK_POINTS}
    assert hooked - table == {"Queue.put"}
    assert len(hooked & table) >= 20
