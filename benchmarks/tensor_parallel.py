"""Records tensor-parallel runs with torchrun, checks what was recorded, and prints a table.

A Llama of random weights is saved once and loaded by every rank (``DistributedConfig(tp_size=...)``), as a user would
load one. Each case below is a launch of its own, so that one that hangs costs its own time only. Every rank records
itself; the traces of a case are then held against each other and against the tokens that the ranks returned. Exit code
1 when a check fails. About two minutes on two H200s; ``--small`` takes a tiny model, and gloo where there is no GPU.

    python benchmarks/tensor_parallel.py --out FOLDER [--ranks 2] [--small] [--cases eager,graphs,late,alone]

NVLink multicast is turned off (``NCCL_NVLS_ENABLE=0`` and its like): GPUs that are lent in parts do not have it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from verdict_table import Table

from cbtrace.site.analysis.ranks import analyze_ranks
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.rank_groups import rank_groups, rank_of_trace

MAX_TRACE_BYTES = 150_000
CASES: dict[str, dict[str, Any]] = {
    "eager": {"use_cuda_graph": False, "use_async_batching": False},
    "graphs": {"use_cuda_graph": True, "use_async_batching": True},
    "late": {"use_cuda_graph": False, "use_async_batching": False},
    "alone": {"use_cuda_graph": False, "use_async_batching": False},
}
"""Settings of each case. ``late``: rank 1 schedules :data:`DELAY_S` late in each step, so that the others wait for it.
``alone``: one process and no tensor parallelism, to compare with ``eager``. ``graphs`` needs a GPU."""
DELAY_S = 0.005
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


# In every rank -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """The model and what it is asked."""

    layers: int
    hidden: int
    vocabulary: int
    requests: int
    longest_prompt: int
    new_tokens: int
    page: int
    blocks: int
    batch_tokens: int


SIZES = {
    "large": Size(16, 2048, 32000, 60, 1500, 192, page=256, blocks=128, batch_tokens=512),
    "small": Size(2, 64, 128, 12, 60, 24, page=16, blocks=24, batch_tokens=64),
}


def save_model(folder: Path, size: Size) -> None:
    """Save a Llama of random weights. Run in a process of its own, which leaves nothing behind on a GPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=max(4, size.hidden // 64),
        num_key_value_heads=8 if size.hidden >= 512 else 4,
        vocab_size=size.vocabulary,
        max_position_embeddings=16384,
    )
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):
        model = LlamaForCausalLM(config)
    model.to(torch.bfloat16 if on_gpu else torch.float32).save_pretrained(folder)


def load_model(folder: Path, ranks: int) -> Any:
    """Load it, split over the ranks, with the best attention there is."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = {"dtype": torch.bfloat16 if on_gpu else torch.float32}
    if ranks > 1:
        options["distributed_config"] = DistributedConfig(tp_size=ranks)
    model = LlamaForCausalLM.from_pretrained(folder, **options).eval()
    if on_gpu and ranks == 1:
        model = model.cuda()
    with contextlib.suppress(Exception):
        model.set_attn_implementation("flash_attention_3" if on_gpu else "sdpa")
    return model


def prompts(size: Size) -> list[list[int]]:
    """Log-normal lengths from 4 tokens up."""
    source = random.Random(0)
    lengths = [min(max(int(source.lognormvariate(5.0, 1.0)), 4), size.longest_prompt) for _ in range(size.requests)]
    return [[source.randrange(1, size.vocabulary) for _ in range(length)] for length in lengths]


def work(options: argparse.Namespace) -> None:
    """What one rank does: load, record, generate, and write down the tokens that it got."""
    import torch
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    from cbtrace.recorder import record

    size = SIZES["small" if options.small else "large"]
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    page = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    settings = {page: size.page, "num_blocks": size.blocks, "max_batch_tokens": size.batch_tokens}
    # Before the model: on some versions it sets what NCCL reads when its group is made.
    config = ContinuousBatchingConfig(max_blocks_per_request=0, **settings, **CASES[options.work])
    model = load_model(options.model, ranks)
    generation = GenerationConfig(max_new_tokens=size.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    if options.work == "late" and rank == 1:
        schedule_late()
    path, tags = options.out / f"{options.work}.cbt", {"case": options.work}
    with record(path, name=f"{options.work}, {ranks} ranks", overwrite=True, tags=tags):
        outputs = model.generate_batch(
            prompts(size), generation_config=generation, continuous_batching_config=config, progress_bar=False
        )
    tokens = {name: output.generated_tokens for name, output in outputs.items()}
    (options.tokens / f"{options.work}.{rank}.json").write_text(json.dumps(tokens, sort_keys=True))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def schedule_late() -> None:
    """From now on, schedulers of this process answer late."""
    from transformers.generation.continuous_batching.scheduler import FIFOScheduler

    schedule = FIFOScheduler.schedule_batch

    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(DELAY_S)
        return schedule(*args, **kwargs)

    FIFOScheduler.schedule_batch = late


# Around the ranks ----------------------------------------------------------------------------------------------------


def launch(case: str, options: argparse.Namespace) -> tuple[int, float, str]:
    """Run a case to its end or its time limit; return its exit code, seconds, and the end of what it printed."""
    ranks = 1 if case == "alone" else options.ranks
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
    launcher = [*torchrun, str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, __file__, "--work", case, "--out", str(options.out)]
    command += ["--model", str(options.model), "--tokens", str(options.tokens)] + ["--small"] * options.small
    environment = os.environ | NO_MULTICAST | {"OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = child.communicate(timeout=options.limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        said, _ = child.communicate()
        said += f"\nended after {options.limit} s"
    return child.returncode, time.monotonic() - begun, "\n".join(said.splitlines()[-25:])


def check_case(table: Table, case: str, options: argparse.Namespace) -> None:
    """Launch a case and hold its traces against each other."""
    code, seconds, said = launch(case, options)
    table.check(f"{case}: all ranks ended well", code == 0, f"in {seconds:.1f} s")
    ranks = 1 if case == "alone" else options.ranks
    paths = [options.out / (f"{case}.cbt" if rank == 0 else f"{case}.rank{rank}.cbt") for rank in range(ranks)]
    there = [path for path in paths if path.exists()]
    table.check(f"{case}: a trace of every rank", len(there) == ranks, [path.name for path in there])
    if code != 0 or len(there) < ranks:
        print(said, flush=True)
        return
    traces = [open_trace(path) for path in paths]
    check_traces(table, case, traces, options)
    check_tokens(table, case, traces, options.tokens)
    check_times(table, case, traces)


def check_traces(table: Table, case: str, traces: list[Trace], options: argparse.Namespace) -> None:
    """They are whole, of one run, and tell of one schedule."""
    first = traces[0]
    sizes = [trace.path.stat().st_size for trace in traces]
    table.check(f"{case}: traces are whole", all(trace.recovery.whole for trace in traces))
    table.check(f"{case}: traces are small", max(sizes) < MAX_TRACE_BYTES, f"{sizes} bytes")
    table.check(f"{case}: one run id", len({trace.header.run_id for trace in traces}) == 1, first.header.run_id)
    worlds = [(trace.header.rank, trace.header.world_size) for trace in traces]
    table.check(f"{case}: rank and world size", worlds == [(rank, len(traces)) for rank in range(len(traces))], worlds)
    columns = ("index", "members", "prefill_tokens", "decode_tokens", "recompute_tokens", "new_tokens", "kv_used")
    for name in columns:
        theirs = [getattr(trace.steps, name) for trace in traces]
        table.check(f"{case}: all ranks have the same {name}", all(np.array_equal(theirs[0], it) for it in theirs[1:]))
    count = len(first.steps.index)
    least = 100 if not options.small else 20
    table.check(f"{case}: some hundred steps", count >= least, count)


def check_tokens(table: Table, case: str, traces: list[Trace], folder: Path) -> None:
    """All ranks returned the same tokens, and the traces know them by their hashes."""
    told = [json.loads((folder / f"{case}.{rank}.json").read_text()) for rank in range(len(traces))]
    table.check(f"{case}: all ranks returned the same tokens", all(it == told[0] for it in told[1:]), len(told[0]))
    hashes = [dict(zip(trace.requests.id, trace.requests.output_hash, strict=True)) for trace in traces]
    table.check(f"{case}: and recorded the same", all(it == hashes[0] for it in hashes[1:]) and all(hashes[0].values()))
    counted = [dict(zip(trace.requests.id, trace.requests.generated.tolist(), strict=True)) for trace in traces]
    expected = {name: len(tokens) for name, tokens in told[0].items()}
    table.check(f"{case}: token counts", all(it == expected for it in counted), sum(expected.values()))


def check_times(table: Table, case: str, traces: list[Trace]) -> None:
    """Every step has its GPU time where there is a GPU; steps of all ranks lie on one clock."""
    on_gpu = traces[0].header.fingerprint.get("hardware.gpu.name") not in (None, "none")
    if on_gpu:
        timed = [int((trace.steps.gpu_ns >= 0).sum()) for trace in traces]
        table.check(f"{case}: every step has a GPU time", timed == [len(trace.steps.index) for trace in traces], timed)
        table.say("    ", f"{case}: GPU ms p50 by rank", [_ms(np.percentile(t.steps.gpu_ns, 50)) for t in traces])
        devices = [trace.memory.device_used.max(initial=-1) / 2**30 for trace in traces]
        table.say("    ", f"{case}: device memory GiB by rank", [round(float(used), 2) for used in devices])
        clocks = [int(np.median(t.gpu.sm_clock_mhz)) if len(t.gpu.sm_clock_mhz) else -1 for t in traces]
        table.say("    ", f"{case}: SM clock MHz by rank (median)", clocks)
    table.say("    ", f"{case}: step ms p50 by rank", [_ms(np.median(np.diff(t.steps.ready_ns))) for t in traces])
    if len(traces) > 1:
        check_join(table, case, traces)


def check_join(table: Table, case: str, traces: list[Trace]) -> None:
    """The traces are found together and joined on the host's one clock; who is late is told."""
    groups = rank_groups(filter(None, map(rank_of_trace, traces)))
    together = [len(group.files) for group in groups] == [len(traces)] and not groups[0].findings()
    table.check(f"{case}: the ranks are one run", together, [file.split_over for file in groups[0].files])
    found = analyze_ranks(traces)
    said = [finding.meaning for finding in found.join.findings]
    table.check(f"{case}: joined on one clock, without a remark", found.join.one_clock and not said, said)
    began, ready = found.join.of_all("start_ns"), found.join.of_all("ready_ns")
    table.check(f"{case}: every step overlaps on all ranks", bool((began.max(axis=0) <= ready.min(axis=0)).all()))
    waits = found.waits or []
    last = [round(wait.slowest / found.compared, 3) for wait in waits]
    table.say("    ", f"{case}: last to launch, share of steps by rank", last)
    table.say("    ", f"{case}: lag ms, p50 and sum", (_ms(np.median(found.lag_ns)), _ms(found.lag_ns.sum())))
    table.say("    ", f"{case}: lags and meetings, share of step time", round(found.skew_share or 0.0, 4))
    for name in ("meeting_ns", "launch_ns", "gpu_beyond_ns"):
        amounts = [getattr(wait, name) for wait in waits]
        shown = ["unknown" if amount is None else _ms(amount) for amount in amounts]
        table.say("    ", f"{case}: {name.removesuffix('_ns')} ms by rank", shown)
    if case == "late":
        lag_s = float(np.median(found.lag_ns)) / 1e9
        table.check("late: rank 1 is the slowest rank of nearly all steps", last[1:2] > [0.9], last)
        table.check("late: by what it was delayed", DELAY_S < lag_s < 2 * DELAY_S, f"{DELAY_S} s")


def _ms(ns: Any) -> float:
    return round(float(ns) / 1e6, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the traces")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a machine without GPUs")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--limit", type=float, default=70, help="seconds that a case may take")
    parser.add_argument("--model", type=Path, help="folder of the model, made when it is not there")
    parser.add_argument("--tokens", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save:
        save_model(options.model, SIZES["small" if options.small else "large"])
        return 0
    if options.work:
        work(options)
        return 0
    return check_all(options)


def check_all(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)
    table = Table()
    with tempfile.TemporaryDirectory() as scratch:
        options.tokens = Path(scratch)
        options.model = options.model or options.tokens / "model"
        if not (options.model / "config.json").exists():
            begun = time.monotonic()
            save = [sys.executable, __file__, "--save", "--out", str(options.out), "--model", str(options.model)]
            subprocess.run(save + ["--small"] * options.small, check=True, stderr=subprocess.DEVNULL)
            table.say("    ", "model saved", f"in {time.monotonic() - begun:.1f} s")
        for case in options.cases.split(","):
            if case == "graphs" and options.small:
                table.say("    ", "graphs: left out of --small, as it needs GPUs")
            else:
                check_case(table, case, options)
    print(f"{table.failed} of {len(table.rows)} rows failed", flush=True)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
