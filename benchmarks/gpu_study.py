"""Runs a plan like ``cbtrace run --max-time``, on a machine that has PyTorch, Transformers, msgspec and little else.

    python benchmarks/gpu_study.py recorder/experiments/plans/h200.toml -o h200 --max-time 9m

The same command goes on with what is left; the folder may have been carried to another machine of the same kind.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cbtrace.recorder.experiments.estimate import runs_left
from cbtrace.recorder.experiments.plan import read_plan
from cbtrace.recorder.experiments.runner import Progress, Runner
from cbtrace.recorder.experiments.time_budget import parse_duration
from cbtrace.traces.errors import CbtraceError


def tell(progress: Progress) -> None:
    """Print a line for each run that has ended."""
    run, right = progress.run, progress.run.correctness
    if progress.news != "ended":
        return
    parts = [f"[{progress.number}/{progress.total}] {run.id} {run.status} in {run.seconds:.1f} s"]
    if run.failure:
        parts.append(f"{run.failure} in {run.phase}: {run.text}")
    if right is not None:
        parts.append(f"{right.complete}/{right.requests} complete")
    if right is not None and right.reference:
        parts.append(f"{right.equal}/{right.compared} as in {right.reference}")
    if run.submit_lag is not None:
        parts.append(f"submitted {run.submit_lag.p99_ms:.2f} ms late (p99)")
    print("; ".join(parts), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the experiment")
    parser.add_argument("--max-time", metavar="TIME", help="start no run that would not end in time (540s, 9m)")
    parser.add_argument("--mix", action="store_true", help="let runs of different software or hardware together")
    options = parser.parse_args()
    try:
        runner = Runner(
            read_plan(options.plan),
            options.plan.parent,
            options.output,
            mix=options.mix,
            max_time_s=parse_duration(options.max_time) if options.max_time else None,
            on_progress=tell,
        )
        runner.run()
    except CbtraceError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{len(runs_left(runner.experiment))} of {len(runner.experiment.runs)} runs are left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
