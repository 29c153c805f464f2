"""The fingerprint of this very machine, and what it must never give away."""

from __future__ import annotations

import getpass
import importlib.metadata
import platform
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import cbtrace.recorder.fingerprint as fingerprint_module
from cbtrace.recorder.facts import NONE, UNSET, collect, digest, scalar
from cbtrace.recorder.fingerprint import fingerprint

NEEDED = [
    "software.transformers",
    "software.transformers_commit",
    "software.python",
    "software.torch",
    "software.cuda_runtime",
    "software.driver",
    "software.cudnn",
    "software.tokenizers",
    "software.flash_attn",
    "software.flash_attn_3",
    "software.kernels",
    "software.cbtrace",
    "software.os",
    "software.os_release",
    "hardware.gpu.name",
    "hardware.gpu.count",
    "hardware.gpu.memory_bytes",
    "hardware.gpu.power_limit_mw",
    "hardware.gpu.sm_clock_set_mhz",
    "hardware.gpu.ecc",
    "hardware.gpu.mig",
    "hardware.gpu.other_processes",
    "hardware.gpu.pcie_generation",
    "hardware.gpu.nvlinks",
    "hardware.cpu",
    "hardware.cpu_cores",
    "hardware.ram_bytes",
    "environment.PYTORCH_ALLOC_CONF",
    "environment.PYTORCH_CUDA_ALLOC_CONF",
    "environment.CUDA_VISIBLE_DEVICES",
    "environment.TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "environment.NVIDIA_TF32_OVERRIDE",
    "environment.CUBLAS_WORKSPACE_CONFIG",
    "environment.OMP_NUM_THREADS",
    "environment.MKL_NUM_THREADS",
    "environment.NCCL_*",
    "torch.float32_matmul_precision",
    "torch.deterministic_algorithms",
    "torch.num_threads",
    "measurement.clock",
    "measurement.clock_resolution_ns",
]


def test_it_holds_what_a_fair_comparison_needs_known_or_explicitly_unknown():
    facts = fingerprint()
    assert [name for name in NEEDED if name not in facts] == []
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts)) == facts


def test_its_values_are_those_of_this_process():
    facts = fingerprint(settings={"memory_period_ms": 100, "gpu_timing": False})
    assert facts["software.python"] == platform.python_version()
    assert facts["software.torch"] == torch.__version__
    assert facts["software.transformers"] == transformers.__version__
    assert facts["software.cbtrace"] == importlib.metadata.version("cbtrace")
    assert facts["hardware.ram_bytes"] == psutil.virtual_memory().total
    assert facts["torch.num_threads"] == torch.get_num_threads()
    assert facts["measurement.memory_period_ms"] == 100
    assert facts["measurement.gpu_timing"] is False


@pytest.mark.skipif(torch.version.cuda is not None, reason="a build with CUDA")
def test_a_cpu_build_has_no_cuda_and_that_is_known():
    facts = fingerprint()
    assert (facts["software.cuda_runtime"], facts["software.cudnn"]) == (NONE, NONE)
    assert (facts["hardware.gpu.count"], facts["hardware.gpu.name"]) == (0, NONE)
    assert facts["hardware.gpu.power_limit_mw"] is None


def test_a_switch_that_is_turned_shows():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert fingerprint()["torch.float32_matmul_precision"] == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_nothing_tells_who_or_where(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_PRELOAD", f"{Path.home()}/libjemalloc.so")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", f"{Path.cwd()}:{getpass.getuser()}/x")
    monkeypatch.setenv("NCCL_COMM_ID", f"{socket.gethostname()}:1234")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "enp-of-alice")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3b1c2d")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NCCL_API_KEY", "4711")
    text = str(fingerprint())
    for private in (
        str(Path.home()),
        str(Path.cwd()),
        socket.gethostname(),
        "alice",
        "GPU-8f3b1c2d",
        "hf_secret",
        "4711",
    ):
        assert private not in text, private
    assert not any(isinstance(value, str) and "/root" in value for value in fingerprint().values())


def test_the_user_may_ask_for_values_as_they_are_but_never_for_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_PRELOAD", "/home/alice/libjemalloc.so")
    monkeypatch.setenv("NCCL_API_KEY", "4711")
    facts = fingerprint(paths=True)
    assert facts["environment.LD_PRELOAD"] == "/home/alice/libjemalloc.so"
    assert "4711" not in str(facts)


def test_harmless_values_are_kept_and_others_still_tell_runs_apart(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    facts = fingerprint()
    assert facts["environment.PYTORCH_ALLOC_CONF"] == "expandable_segments:True,max_split_size_mb:128"
    assert facts["environment.CUDA_VISIBLE_DEVICES"] == "2,3"
    assert facts["environment.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert facts["environment.NCCL_ALGO"] == "Ring"
    assert facts["environment.NCCL_SOCKET_IFNAME"] == digest("eth0") != digest("eth1")
    assert facts["environment.NCCL_*"] == 2
    assert facts["environment.OMP_NUM_THREADS"] == UNSET


@given(st.sampled_from(sorted(fingerprint_module._VARIABLES)), st.text(min_size=1))
def test_a_value_with_a_path_in_it_is_never_stored(name: str, end: str):
    for path in (f"/home/{end}", f"C:\\Users\\{end}", f"~{end}", f"{end}@host", f"a/{end}"):
        assert path not in str(fingerprint_module._environment({name: path}, paths=False))


def checkout(root: Path) -> tuple[Path, str]:
    """A package in a git checkout, and its commit."""
    package = root / "src" / "packaged"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return package / "__init__.py", git("rev-parse", "HEAD").strip()


def loaded(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    module = ModuleType("packaged")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "packaged", module)


def test_the_commit_of_a_checkout_is_read_from_its_branch_packed_or_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, commit = checkout(tmp_path)
    loaded(monkeypatch, file)
    assert fingerprint_module._git_commit("packaged") == commit
    subprocess.run(["git", "pack-refs", "--all"], cwd=tmp_path, check=True)
    assert not (tmp_path / ".git/refs/heads/main").exists()
    assert fingerprint_module._git_commit("packaged") == commit
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=tmp_path, check=True)
    assert fingerprint_module._git_commit("packaged") == commit


class Installed:
    """A distribution as ``importlib.metadata`` shows it."""

    def __init__(self, origin: str | None) -> None:
        self.version, self._origin = "1.0", origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._origin


@pytest.mark.parametrize(
    ("origin", "commit"),
    [
        (None, NONE),
        ('{"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}', "c0ffee"),
        ('{"url": "file:///tmp/x.whl", "archive_info": {}}', NONE),
    ],
)
def test_the_commit_of_an_installed_package_is_what_pip_noted(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, commit: str
):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin))
    assert fingerprint_module._git_commit("not_loaded") == commit


def test_the_commit_is_unknown_when_another_version_is_loaded_than_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    loaded(monkeypatch, tmp_path / "packaged" / "__init__.py")
    monkeypatch.setattr(sys.modules["packaged"], "__version__", "2.0.dev0", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(None))
    assert fingerprint_module._git_commit("packaged") is None


def test_a_fact_that_cannot_be_read_is_unknown_and_costs_only_itself(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("mixed use of the old and the new TF32 switches")

    known = fingerprint()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", fail)
    monkeypatch.setattr(platform, "release", fail)
    unknown = {name for name, value in fingerprint().items() if value is None and known[name] is not None}
    assert unknown == {"torch.float32_matmul_precision", "software.os_release"}


def test_torch_missing_altogether_leaves_its_facts_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "psutil", None)
    facts = fingerprint()
    assert facts["software.torch"] is None
    assert facts["hardware.gpu.count"] is None
    assert facts["hardware.ram_bytes"] is None
    assert facts["software.python"] == platform.python_version()


def test_neither_cuda_nor_a_heavy_import_is_caused():
    code = """
import sys
import cbtrace.recorder.fingerprint, cbtrace.recorder.model_facts, cbtrace.recorder.memory
import cbtrace.recorder.memory_model, cbtrace.recorder.nvml, cbtrace.recorder.gpu_time
loaded = {"torch", "transformers", "pynvml", "psutil"} & set(sys.modules)
assert not loaded, loaded
cbtrace.recorder.fingerprint.fingerprint()
assert "transformers" not in sys.modules
assert not sys.modules["torch"].cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts_are_what_a_trace_can_hold():
    facts = collect(
        {
            "tuple": lambda: (True, None, 3),
            "set": lambda: {"b", "a"},
            "long": lambda: "x" * 10_000,
            "huge": lambda: 1 << 80,
            "object": lambda: torch.float16,
            "broken": lambda: 1 / 0,
        }
    )
    assert facts == {
        "tuple": "True,None,3",
        "set": "a,b",
        "long": "x" * 500,
        "huge": str(1 << 80),
        "object": "torch.float16",
        "broken": None,
    }
    assert scalar(True) is True and scalar(None) is None
