"""The conditions of a run that its settings do not tell: software, hardware, environment, PyTorch's switches.

Keys are dotted (``software.torch``). ``None`` is unknown; ``"none"`` is known to be absent; ``"unset"`` is an
environment variable that is not set. By default nothing identifies a person or a machine: no user name, host name,
path, GPU serial number or UUID. A value that could hold one is replaced by 32 bits of a hash, which still tells whether
two runs differ. Tokens and keys are never read. Nothing here initializes CUDA or imports Transformers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from cbtrace.recorder.facts import NONE, UNSET, collect, digest, scalar
from cbtrace.recorder.gpu_facts import gpu_facts
from cbtrace.traces.schema import Facts, Scalar

_Readers = Mapping[str, Callable[[], Any]]

_LIBRARIES = {
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "huggingface_hub": "huggingface-hub",
    "accelerate": "accelerate",
    "numpy": "numpy",
    "triton": "triton",
    "flash_attn": "flash-attn",
    "kernels": "kernels",
}

_NUMBERS = re.compile(r"-?\d+(\.\d+)?(,-?\d+)*|true|false|yes|no|on|off|", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z0-9_:,;.=+^<>\[\]-]*")

_VARIABLES: dict[str, re.Pattern[str]] = {
    "CUDA_VISIBLE_DEVICES": _NUMBERS,
    "CUDA_DEVICE_ORDER": _WORDS,
    "CUDA_DEVICE_MAX_CONNECTIONS": _NUMBERS,
    "CUDA_LAUNCH_BLOCKING": _NUMBERS,
    "CUDA_MODULE_LOADING": _WORDS,
    "PYTORCH_ALLOC_CONF": _WORDS,
    "PYTORCH_CUDA_ALLOC_CONF": _WORDS,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _NUMBERS,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _NUMBERS,
    "NVIDIA_TF32_OVERRIDE": _NUMBERS,
    "CUBLAS_WORKSPACE_CONFIG": _WORDS,
    "CUBLASLT_WORKSPACE_SIZE": _NUMBERS,
    "TORCH_BLAS_PREFER_CUBLASLT": _NUMBERS,
    "FLASH_ATTENTION_DETERMINISTIC": _NUMBERS,
    "TORCHDYNAMO_DISABLE": _NUMBERS,
    "TORCH_COMPILE_DISABLE": _NUMBERS,
    "TORCHINDUCTOR_MAX_AUTOTUNE": _NUMBERS,
    "OMP_NUM_THREADS": _NUMBERS,
    "MKL_NUM_THREADS": _NUMBERS,
    "OPENBLAS_NUM_THREADS": _NUMBERS,
    "KMP_AFFINITY": _WORDS,
    "LD_PRELOAD": _NUMBERS,
    "TOKENIZERS_PARALLELISM": _NUMBERS,
    "USE_HUB_KERNELS": _NUMBERS,
    "HF_HUB_OFFLINE": _NUMBERS,
    "TRANSFORMERS_OFFLINE": _NUMBERS,
    "TRANSFORMERS_VERBOSITY": _WORDS,
    "TRANSFORMERS_SDPA_FORCE_GQA": _NUMBERS,
    "TRANSFORMERS_DISABLE_DEEPGEMM_LINEAR": _NUMBERS,
    "PYTHONOPTIMIZE": _NUMBERS,
    "PYTHONHASHSEED": _WORDS,
    "PYTHON_GIL": _NUMBERS,
    "WORLD_SIZE": _NUMBERS,
    "RANK": _NUMBERS,
    "LOCAL_RANK": _NUMBERS,
}
"""Variables that change behavior, and the shape in which a value cannot be a path or a name; others are hashed."""

_FAMILIES = ("NCCL_", "TORCH_NCCL_")
_NCCL_WORDS = re.compile(
    r"(TORCH_)?NCCL_(ALGO|PROTO|DEBUG|DEBUG_SUBSYS|P2P_LEVEL|NET_GDR_LEVEL|SHM_LOCALITY|CROSS_NIC)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL")


def fingerprint(*, paths: bool = False, device: Any = None, settings: Mapping[str, Scalar] | None = None) -> Facts:
    """All conditions by dotted name. Never raises.

    ``device`` (a ``torch.device``) chooses the GPU that ``hardware.gpu`` describes, when there are several of different
    kinds. ``settings`` are the recorder's own, stored as ``measurement.<name>``. ``paths=True`` stores the values of
    the listed environment variables as they are.
    """
    facts: Facts = {}
    for part in (_software, _torch_switches, _machine):
        facts |= collect(part())
    facts |= gpu_facts(device)
    facts |= _environment(os.environ, paths)
    facts |= collect(_measurement(settings or {}))
    return facts


def _software() -> _Readers:
    readers: dict[str, Callable[[], Any]] = {
        "software.cbtrace": lambda: metadata.version("cbtrace"),
        "software.python": platform.python_version,
        "software.python_implementation": platform.python_implementation,
        "software.os": platform.system,
        "software.os_release": platform.release,
        "software.os_distribution": lambda: platform.freedesktop_os_release()["PRETTY_NAME"],
        "software.machine": platform.machine,
        "software.transformers": lambda: _loaded_version("transformers"),
        "software.transformers_commit": lambda: _git_commit("transformers"),
        "software.torch": lambda: _torch().__version__,
        "software.torch_commit": lambda: _torch().version.git_version,
        "software.cuda_runtime": lambda: _torch().version.cuda or NONE,
        "software.hip_runtime": lambda: _torch().version.hip or NONE,
        "software.cudnn": lambda: _torch().backends.cudnn.version() or NONE,
        "software.flash_attn_3": lambda: _module_present("flash_attn_interface"),
    }
    for name, distribution in _LIBRARIES.items():
        readers[f"software.{name}"] = partial(_installed_version, distribution)
    return readers


def _torch() -> Any:
    return importlib.import_module("torch")


def _installed_version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return NONE


def _loaded_version(package: str) -> str:
    """The version of the package that is in use; what is installed may be another one."""
    loaded = sys.modules.get(package)
    return str(loaded.__version__) if loaded is not None else _installed_version(package)


def _module_present(name: str) -> str:
    return NONE if importlib.util.find_spec(name) is None else "present"


def _git_commit(package: str) -> str | None:
    """The commit of a package that runs from a checkout or was installed from git; ``"none"`` for a release."""
    loaded = sys.modules.get(package)
    if loaded is not None and loaded.__file__:
        root = Path(loaded.__file__).resolve().parents[2]
        if (root / "src" / package).is_dir() and (root / ".git").is_dir():
            return _head_commit(root / ".git")
    installed = metadata.distribution(package)
    if loaded is not None and loaded.__version__ != installed.version:
        return None
    text = installed.read_text("direct_url.json")
    commit = json.loads(text).get("vcs_info", {}).get("commit_id") if text else None
    return commit or NONE


def _head_commit(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    if (git / ref).is_file():
        return (git / ref).read_text().strip()
    for line in (git / "packed-refs").read_text().splitlines():
        if line.endswith(" " + ref):
            return line.split()[0]
    return None


def _torch_switches() -> _Readers:
    return {
        "torch.float32_matmul_precision": lambda: _torch().get_float32_matmul_precision(),
        "torch.matmul_tf32": lambda: _torch().backends.cuda.matmul.allow_tf32,
        "torch.cudnn_tf32": lambda: _torch().backends.cudnn.allow_tf32,
        "torch.cudnn_benchmark": lambda: _torch().backends.cudnn.benchmark,
        "torch.cudnn_deterministic": lambda: _torch().backends.cudnn.deterministic,
        "torch.bf16_reduced_precision_reduction": lambda: (
            _torch().backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "torch.deterministic_algorithms": lambda: _torch().are_deterministic_algorithms_enabled(),
        "torch.num_threads": lambda: _torch().get_num_threads(),
        "torch.num_interop_threads": lambda: _torch().get_num_interop_threads(),
        "torch.sdp_flash": lambda: _torch().backends.cuda.flash_sdp_enabled(),
        "torch.sdp_mem_efficient": lambda: _torch().backends.cuda.mem_efficient_sdp_enabled(),
        "torch.sdp_cudnn": lambda: _torch().backends.cuda.cudnn_sdp_enabled(),
        "torch.default_dtype": lambda: str(_torch().get_default_dtype()).removeprefix("torch."),
    }


def _machine() -> _Readers:
    return {
        "hardware.cpu": _cpu_model,
        "hardware.cpu_cores": lambda: _psutil().cpu_count(logical=False),
        "hardware.cpu_threads": lambda: _psutil().cpu_count(),
        "hardware.cpu_threads_usable": lambda: len(os.sched_getaffinity(0)),
        "hardware.cpu_quota": _cpu_quota,
        "hardware.ram_bytes": lambda: _psutil().virtual_memory().total,
    }


def _psutil() -> Any:
    return importlib.import_module("psutil")


def _cpu_model() -> str | None:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _cpu_quota() -> float | str:
    """Cores that the control group grants (as containers do); ``"none"`` without a limit. Linux, version 2 groups."""
    quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    return NONE if quota == "max" else int(quota) / int(period)


def _environment(environment: Mapping[str, str], paths: bool) -> Facts:
    facts: Facts = {}
    for name, harmless in _VARIABLES.items():
        value = environment.get(name)
        facts[f"environment.{name}"] = UNSET if value is None else _shown(value, harmless, paths)
    for prefix in _FAMILIES:
        names = sorted(name for name in environment if name.startswith(prefix) and not _SECRET.search(name))
        # A variable of the family that is not listed is not set; the count lets a comparison see that.
        facts[f"environment.{prefix}*"] = len(names)
        for name in names[:50]:
            harmless = _WORDS if _NCCL_WORDS.fullmatch(name) else _NUMBERS
            facts[f"environment.{name}"] = _shown(environment[name], harmless, paths)
    return facts


def _shown(value: str, harmless: re.Pattern[str], paths: bool) -> str:
    if paths:
        return value[:500]
    return value if len(value) <= 200 and harmless.fullmatch(value) else digest(value)


def _measurement(settings: Mapping[str, Scalar]) -> _Readers:
    clock = time.get_clock_info("monotonic")
    readers: dict[str, Callable[[], Any]] = {
        "measurement.clock": lambda: f"time.monotonic_ns ({clock.implementation})",
        "measurement.clock_resolution_ns": lambda: round(clock.resolution * 1e9),
    }
    for name, value in settings.items():
        readers[f"measurement.{name}"] = partial(scalar, value)
    return readers
