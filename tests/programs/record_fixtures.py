"""Records the traces that the tests keep of a format version, and what they are read as.

    record_fixtures.py FOLDER [KIND ...]

Run it once when a version is complete, and never again for that version. ``offload`` needs a GPU; the others run
anywhere. Writes FOLDER/version-N-KIND.cbt and FOLDER/version-N-KIND.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import zstandard

from cbtrace.traces import open_trace
from cbtrace.traces.archive import compress_trace
from cbtrace.traces.schema import (
    FORMAT_VERSION,
    Clock,
    EndReason,
    Engine,
    Event,
    EventKind,
    Gpu,
    GraphKey,
    KvGeometry,
    KvGroup,
    Memory,
    Notice,
    Severity,
    Step,
    StepDetail,
    StepFlag,
    TokenIds,
)
from cbtrace.traces.stepcode import pack_chunks, pack_ordinals, pack_slots, pack_times
from pinned_values import values, write
from trace_builder import TraceBuilder, engine, eventful


def real(path: Path) -> None:
    """An engine on the CPU with little KV: soft resets, forks, a shared prefix, token ids, two requests taken back, and
    their children, which go on until nothing fits any more and the engine gives up."""
    from cbtrace.recorder import record
    from engines import Case, drain, prompts, tiny_llama

    begin = prompts(1, 33, 34, seed=7)[0]
    inputs = [begin + rest for rest in prompts(2, 4, 20)] + prompts(2, 10, 30, seed=2)
    case = Case(inputs, settings={"num_blocks": 16}, generation={"num_return_sequences": 2, "do_sample": True})
    with record(path, name="real", tags={"fixture": "real"}, token_ids=True), case.manager(tiny_llama()) as manager:
        for prompt in inputs:
            manager.add_request(prompt, max_new_tokens=24)
        victims = [manager.add_request(prompt, max_new_tokens=5000) for prompt in prompts(2, 5, 9)]
        drain(manager, 4)
        manager.add_request(inputs[0], max_new_tokens=8)
        for victim in victims:
            manager.cancel_request(victim)
        drain(manager, 10_000)


def offload(path: Path) -> None:
    """An engine on a GPU with little KV and a CPU pool: offloads, restores, CUDA graphs, async batching, GPU times."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.generation import ContinuousBatchingConfig

    from cbtrace.recorder import record

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model: Any = LlamaForCausalLM(config).to(torch.bfloat16).cuda().eval()
    size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    settings = ContinuousBatchingConfig(
        **{size: 32},
        num_blocks=16,
        max_batch_tokens=128,
        max_blocks_per_request=0,
        cpu_offload_space=0.5,
        use_cuda_graph=True,
        use_async_batching=True,
    )
    generation = GenerationConfig(max_new_tokens=60, do_sample=False, eos_token_id=-1)
    with record(path, name="offload", tags={"fixture": "offload"}, token_ids=True):
        manager = model.init_continuous_batching(generation, settings)
        ids = manager.add_requests([[1 + at, 2, 3] * (8 + 3 * at) for at in range(10)], max_new_tokens=60)
        manager.start()
        for _ in ids:
            while not manager.get_result(timeout=60).is_finished():
                pass
        manager.stop(block=True, timeout=30)


def synthetic(path: Path) -> None:
    """Every frame, every field of it, and every form of a step."""
    build = eventful(path)
    build.write(_sliding_engine(build.now))
    for kind in EventKind:
        if kind is not EventKind.FORK:
            build.now += 1000
            build.write(Event(kind, build.now, build.steps, 0, kind * 11, kind * 7, kind * 4096, kind * 99, kind.name))
    build.write(GraphKey(1, False, 64, 16384))
    build.write(GraphKey(300, True, 8, 0))
    build.write(Memory(build.now, "model_loaded", *range(101, 108)))
    build.write(Memory(build.now + 1, "", *range(201, 208)))
    build.write(Gpu(build.now + 2, *range(301, 309)))
    build.write(Clock(build.now + 3, 1_700_000_001_000_000_000))
    build.write(TokenIds(0, bytes(range(24))))
    build.write(Notice(build.now + 4, "fixture", Severity.INFO, "Written for the tests: é, 中, \U0001f600."))
    late = build.submit(9, 40)
    build.admit(late)
    build.step({late: 9})
    for step in _steps(build, late.slot, late.ordinal):
        build.write(step)
        late.generated += step.detail is None or step.detail.wasted is None
    other = build.submit(5, 40, planned_ns=build.now)
    build.admit(other)
    build.step({other: 5})
    for step in _compact_steps(build, other.ordinal):
        build.write(step)
        late.generated += 1
        other.generated += step.detail is not None
    build.finish(late, EndReason.EOS, output_hash=bytes(range(8)))
    build.finish(other, EndReason.LENGTH, output_hash=bytes(range(8, 16)))
    build.close()


def _sliding_engine(t_ns: int) -> Engine:
    groups = [KvGroup("full_attention", 2, 4096, 16), KvGroup("sliding_attention", 4, 8192, 16, 32)]
    second = engine()
    second.t_ns, second.adapter, second.verified = t_ns, "sectors", False
    second.kv = KvGeometry(8192, 100_000, 8192, 9999, groups, "sector")
    second.missing, second.predicted_memory = ["Scheduler.nonesuch"], {"kv": 12345, "logits": 678}
    return second


def _steps(build: TraceBuilder, slot: int, request: int) -> list[Step]:
    """One decode a step of one request, in every form that a step can have."""
    bits = pack_slots([slot])
    decode = pack_chunks([(request, 0, 0, 3)])
    details = [
        *(None, None, None, StepDetail(decode)),
        StepDetail(starved=pack_ordinals([request])),
        StepDetail(wasted=pack_ordinals([request])),
        StepDetail(attempts=3),
        StepDetail(groups=b"".join(value.to_bytes(4, "little") for value in (5, 6, 7, 8))),
    ]
    long_schedule = (1 << 25, 2, 3, 4, 5)  # has no compact form
    gaps = [long_schedule, (1, 2, 3, 4, 1 << 25), (1, 2, 3, 4, 1 << 33), long_schedule, *[(10, 20, 30, 40, 50)] * 4]
    steps = []
    for number, (detail, distances) in enumerate(zip(details, gaps, strict=True)):
        instants = [build.now]
        for distance in distances:
            instants.append(instants[-1] + distance)
        build.now = instants[-1] + 10
        in_chunk = detail is not None and detail.chunks is not None
        flags = StepFlag(0) if number else StepFlag.DECODE_FAST_PATH | StepFlag.GRAPH_HIT
        graph = (1, 300, 0)[number] if number < 3 else 0
        values = (900 + number, b"" if in_chunk else bits, 70_000 if number == 5 else 3000 + number, number)
        steps.append(
            Step(build.steps, pack_times(*instants), *values, number, 1, number % 8, int(flags), graph, detail)
        )
        build.steps += 1
    return steps


def _compact_steps(build: TraceBuilder, other: int) -> list[Step]:
    """A step in each compact form: the first slot decodes, and the other request does so in a chunk where there is one.

    The forms are told by whether the slots that decode are all active ones, by chunks, and by a long launch or wait.
    """
    steps = []
    for form in range(12):
        active, chunks = (2, 1)[form & 1], pack_chunks([(other, 0, 0, 3)]) if form & 2 else None
        distances = (10, 20, 1 << 24 if form & 4 else 30, 1 << 24 if form & 8 else 40, 50)
        instants = list(accumulate((build.now, *distances)))
        build.now = instants[-1] + 10
        times, detail = pack_times(*instants), StepDetail(chunks) if chunks else None
        steps.append(
            Step(build.steps, times, 700 + form, b"\1", 880 - form, form, form, active, form % 8, 0, 0, detail)
        )
        build.steps += 1
    return steps


def blocks(path: Path) -> None:
    """What there is in a synthetic trace, with its frames in blocks."""
    synthetic(path)
    stored = path.with_suffix(".zst")
    compress_trace(path, stored)
    with stored.open("rb") as file:
        path.write_bytes(zstandard.ZstdDecompressor().stream_reader(file).read())
    stored.unlink()


def ring(path: Path) -> None:
    """The newest steps of a long run in 64 KiB."""
    from test_traces_ring import limited, run

    build = limited(path, ring=True)
    build.roster_positions = True
    build.write(Event(EventKind.WARMUP_END, 3, 0, duration_ns=7))
    run(build, 2_500)
    build.close()


KINDS: dict[str, Callable[[Path], None]] = {
    "real": real,
    "offload": offload,
    "synthetic": synthetic,
    "ring": ring,
    "blocks": blocks,
}


def main() -> None:
    folder, kinds = Path(sys.argv[1]), sys.argv[2:] or [kind for kind in KINDS if kind != "offload"]
    for kind in kinds:
        path = folder / f"version-{FORMAT_VERSION}-{kind}.cbt"
        KINDS[kind](path)
        write(path.with_suffix(".json"), values(open_trace(path)))


if __name__ == "__main__":
    main()
