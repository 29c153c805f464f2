"""Kills and faults during real recordings: is generation unharmed, and the trace readable up to the fault?

``python benchmarks/fault_campaign.py [--kills N] [--seed S] [--report FILE]``. A tiny Llama runs on the CPU under
recording, in a forked child for each case:

* ``kill``: SIGKILL at a random instant, at first while the engine is set up, mostly while it generates and soft resets
  requests; every second child records a ring of 64 KiB, so that kills also hit its rewriting. Every step that was
  written before the kill must be read, whole, and the trace must agree with itself.
* ``disk full`` (a small tmpfs, where mounting is allowed), ``size limit`` of the system, ``folder removed`` under the
  recorder, ``read-only`` target: the tokens must be those of a run without recording, the trace must be readable up to
  the fault, and say why it ends.

Prints a line a kind; exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cbtrace.recorder import RecordingStopped, record
from cbtrace.site.analysis.cut_check import check_cuts
from cbtrace.traces import TraceError, TraceWriter, open_trace
from cbtrace.traces.invariants import check
from cbtrace.traces.schema import Severity
from engines import Case, prompts, tiny_llama

CASE = Case(prompts(8, 10, 40), new_tokens=48, settings={"num_blocks": 14})
"""So little KV that requests are soft reset."""
LONG = Case(prompts(8, 10, 40), new_tokens=160, settings={"num_blocks": 60})
EXPECTED_AFTER_KILL = {"cut", "unfinished", "steps-overwritten", "engine-missing"}


def in_child(act: Callable[[], Any]) -> int:
    """Fork; the child runs ``act`` and leaves, with 1 after an exception."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# Kills ----------------------------------------------------------------------------------------------------------------


def record_until_killed(model: Any, path: Path, ring: bool, progress: mmap.mmap) -> None:
    """Generate under recording, again and again; ``progress`` counts the steps that were written."""
    count = TraceWriter._count

    def counting(self: TraceWriter, frame: Any, start: int) -> None:
        count(self, frame, start)
        progress[:8] = struct.pack("<Q", self.steps)

    TraceWriter._count = counting  # type: ignore[method-assign]
    limits: dict[str, Any] = {"max_size": "64KiB", "ring": True} if ring else {}
    with record(path, **limits), CASE.manager(model) as manager:
        while True:
            for number in range(4):
                manager.add_request(CASE.inputs[number], max_new_tokens=CASE.new_tokens)
            for _ in range(4):
                manager.get_result(timeout=10)


def wrong_after_kill(path: Path, steps: int) -> tuple[str, str]:
    """What is wrong with the trace of a killed recording (empty if nothing is), and what it is like."""
    if not path.exists():
        return ("the trace is not there", "") if steps else ("", "killed before the trace was there")
    try:
        trace = open_trace(path)
    except TraceError as error:
        return (str(error), "") if steps else ("", "killed before the first frame")
    if trace.recovery.after_step + 1 < steps:
        return f"{trace.recovery.after_step + 1} steps read of {steps} that were written", ""
    unexpected = [f.slug for f in trace.recovery.findings if f.slug not in EXPECTED_AFTER_KILL]
    doubts = [f.slug for f in [*check(trace), *check_cuts(trace)] if f.severity == Severity.BROKEN]
    if unexpected or doubts or trace.recovery.steps_missing or not trace.steps.members_known.all():
        return f"{unexpected} {doubts} {trace.recovery.steps_missing} missing", ""
    if not len(trace.steps.index):
        return "", "no step yet"
    slugs = {finding.slug for finding in trace.recovery.findings}
    kind = "ring" if "steps-overwritten" in slugs else "steps"
    return "", f"{kind}, {'cut within a frame' if 'cut' in slugs else 'ends with a frame'}"


def kills(model: Any, folder: Path, count: int, chance: random.Random) -> Iterator[tuple[str, str, int]]:
    for number in range(count):
        path, progress = folder / f"kill-{number}.cbt", mmap.mmap(-1, 8)
        ring = number % 2 == 1
        child = in_child(partial(record_until_killed, model, path, ring, progress))
        time.sleep(chance.uniform(0, 0.6) if number % 8 == 0 else chance.uniform(0.3, 6.0 if ring else 2.0))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        (steps,) = struct.unpack("<Q", progress[:8])
        wrong, like = wrong_after_kill(path, steps)
        yield wrong, like, steps
        for left in folder.glob(f"*kill-{number}.cbt*"):
            left.unlink()


# Faults ---------------------------------------------------------------------------------------------------------------


def generate_recorded(model: Any, path: Path, meanwhile: Callable[[], None] | None = None) -> dict[str, Any]:
    """Run and return the tokens and the warnings; ``meanwhile`` is called when steps are being recorded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with record(path) as recording:
            if meanwhile is not None:
                _when_steps(recording, meanwhile)
            tokens = LONG.run_at_once(model)
    told = [str(warning.message) for warning in caught if issubclass(warning.category, RecordingStopped)]
    return {"tokens": list(tokens.values()), "warnings": told}


def _when_steps(recording: Any, act: Callable[[], None]) -> None:
    import threading

    def wait() -> None:
        while recording.steps < 20:
            time.sleep(0.002)
        act()

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(["size=16k", *options]), "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        disk.rmdir()


def fault(model: Any, expected: list[Any], folder: Path, kind: str) -> str:
    """Let one fault happen in a child; returns what is wrong, and nothing if all is well."""
    told = folder / "told.json"

    def run(path: Path, meanwhile: Callable[[], None] | None = None, limit: int = 0) -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        said = generate_recorded(model, path, meanwhile)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        told.write_text(json.dumps(said))

    path, reason = folder / "run.cbt", ""
    with contextlib.ExitStack() as stack:
        if kind == "size limit":
            reason, child = "io_error", in_child(lambda: run(path, limit=12_000))
        elif kind == "disk full":
            path = stack.enter_context(small_disk(folder)) / "run.cbt"
            reason, child = "disk_full", in_child(lambda: run(path))
        else:
            path = folder / "gone" / "run.cbt"
            path.parent.mkdir()
            child = in_child(lambda: run(path, lambda: shutil.rmtree(path.parent)))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            return "the child failed"
        said = json.loads(told.read_text())
        if said["tokens"] != expected:
            return "the tokens differ"
        if len(said["warnings"]) != 1:
            return f"told: {said['warnings']}"
        if not reason:
            return "" if "removed" in said["warnings"][0] else f"told: {said['warnings']}"
        trace = open_trace(path)
        if trace.footer is None or trace.footer.reason != reason or trace.recovery.status != "stopped":
            return f"the trace says {trace.footer} {trace.recovery.status}"
        if len(trace.steps.index) < 20 or [f for f in check(trace) if f.severity == Severity.BROKEN]:
            return f"{len(trace.steps.index)} steps, {check(trace)}"
        path.unlink()
    return ""


def read_only(folder: Path) -> str:
    """A target that may not be written is refused before the program runs."""
    with small_disk(folder, "ro") as disk:
        command = [Path(sys.executable).with_name("cbtrace"), "record", "-o", disk / "run.cbt", "--", "echo", "ran"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = done.returncode == 1 and not done.stdout and done.stderr.endswith("[trace-unwritable]\n")
    return "" if refused else f"{done}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--faults", type=int, default=5, help="runs of each fault")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    model, failures = tiny_llama(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began, seen, steps = time.perf_counter(), Counter[str](), 0
        for wrong, like, written in kills(model, folder, given.kills, random.Random(given.seed)):
            seen[like or "failed"] += 1
            steps += written
            failures += bool(wrong)
            if wrong:
                print(f"kill: {wrong}", flush=True)
        spent = time.perf_counter() - began
        print(f"kill: {given.kills} kills, {steps} steps written before them, {dict(seen)}, {spent:.0f} s", flush=True)
        expected: list[Any] = []
        child_tokens = folder / "expected.json"
        in_one = in_child(lambda: child_tokens.write_text(json.dumps(list(LONG.run_at_once(model).values()))))
        os.waitpid(in_one, 0)
        expected = json.loads(child_tokens.read_text())
        for kind in ("size limit", "disk full", "folder removed"):
            wrongs = [wrong for _ in range(given.faults) if (wrong := fault(model, expected, folder, kind))]
            failures += len(wrongs)
            print(f"{kind}: {given.faults} runs, {len(wrongs)} failed {wrongs}", flush=True)
        wrong = read_only(folder)
        failures += bool(wrong)
        print(f"read-only: {wrong or 'refused before the program ran'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
