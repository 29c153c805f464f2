"""Writes a long trace of a simulated schedule: ``python benchmarks/long_trace.py OUT.cbt --steps 1000000``.

The schedule is :mod:`long_schedule`'s; every frame goes through the real writer, one write a frame. No engine was
involved, so only sizes and times mean anything.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from long_schedule import Schedule
from long_workload import Plan

from cbtrace.traces import TraceWriter


def write_long_trace(path: Path, plan: Plan) -> Schedule:
    """Write the trace of a plan, over an older one; returns what was simulated."""
    schedule = Schedule(plan)
    with TraceWriter(path, overwrite=True) as writer:
        for frame in schedule.frames():
            writer.write(frame)
    return schedule


def planted(steps: int, seed: int = 0) -> Plan:
    """A calm run with a stall, a soft reset and a cancelled request, far from one another."""
    return Plan(
        steps, seed, calm=True, stall_step=steps * 3 // 10, reset_step=steps * 6 // 10, cancel_step=steps * 8 // 10
    )


def main() -> None:
    """Write one trace and print what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--planted", action="store_true", help="nothing special but one stall, one soft reset, one cancelled request"
    )
    asked = parser.parse_args()
    plan = planted(asked.steps, asked.seed) if asked.planted else Plan(asked.steps, asked.seed)
    began = time.perf_counter()
    schedule = write_long_trace(asked.out, plan)
    size, took = asked.out.stat().st_size, time.perf_counter() - began
    counts = f"{schedule.step} steps, {schedule.submitted} requests, {schedule.tokens} tokens"
    print(f"{counts}, {size} bytes in {took:.1f} s")
    if asked.planted:
        print(f"stall in step {plan.stall_step}, reset before {plan.reset_step}, cancelled before {plan.cancel_step}")


if __name__ == "__main__":
    main()
