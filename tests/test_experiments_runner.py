"""The runner with real processes: failures of every kind, resuming, one experiment under one set of conditions."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cbtrace.recorder.experiments.estimate import longest_s, remaining_s
from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.runner import Progress, Runner
from cbtrace.recorder.experiments.take_up import new_experiment, take_up
from cbtrace.recorder.experiments.time_budget import TimeBudget, parse_duration
from cbtrace.traces import open_trace
from cbtrace.traces.errors import CbtraceError, UsageError
from cbtrace.traces.experiment import Experiment, RunEntry, read_experiment, write_experiment
from conftest import COMMAND

HEAD = """
name = "trial"
seed = 1
repeats = {repeats}
[model]
source = "random:tiny"
device = "cpu"
threads = 1
[workload]
kind = "synthetic"
requests = 10
prompt_tokens = {{ kind = "uniform", low = 8, high = 60 }}
new_tokens = {{ kind = "uniform", low = 4, high = 16 }}
{arrivals}
[settings]
page_size = 16
max_batch_tokens = 256
[time_limits]
run_s = 120
stall_s = 4
"""
STATIC = '[[variants]]\nstage = 1\nkind = "static"\nbatch_size = 4\n'
SLOWLY = 'arrivals = { kind = "constant", per_s = 5 }'


def plan(*variants: str, repeats: int = 1, arrivals: str = "") -> str:
    return HEAD.format(repeats=repeats, arrivals=arrivals) + "\n".join(variants)


def variant(name: str, change: str, stage: int = 2) -> str:
    return f'[[variants]]\nname = "{name}"\nstage = {stage}\nset = {{ {change} }}\n'


def run_plan(text: str, folder: Path, on_progress: Callable[[Progress], None] | None = None) -> Experiment:
    read = parse_plan(text, folder.parent)
    return Runner(read, folder.parent, folder, on_progress=on_progress).run()


def of(experiment: Experiment, name: str, repeat: int = 1) -> RunEntry:
    return next(run for run in experiment.runs if (run.variant, run.repeat) == (name, repeat))


def signal_worker_of(name: str, number: int) -> Callable[[Progress], None]:
    """Send a signal to the process of a run once, when its engine generates."""
    sent: list[str] = []

    def on_progress(progress: Progress) -> None:
        report = progress.report
        if progress.run.variant == name and report is not None and report.phase == "generation" and not sent:
            sent.append(name)
            [worker] = psutil.Process().children()
            worker.send_signal(number)

    return on_progress


@pytest.mark.engine
def test_one_run_fails_and_the_rest_goes_on(tmp_path: Path) -> None:
    text = plan(
        STATIC,
        variant("too much memory", "num_blocks = 100000000"),
        variant("dead end", "num_blocks = 3, allow_block_sharing = false").replace("stage", "together = true\nstage"),
        '[[variants]]\nname = "GPU only"\nstage = 4\nset = { use_cuda_graph = true }\nneeds = "cuda"\n',
        '[[variants]]\nname = "half"\nstage = 3\nset = { num_blocks = "50%" }\npin = ["max_requests_per_batch"]\n',
    )
    # A warm-up has a cache of its own: what a variant fails of is found, and recorded, in the run itself.
    told: list[str] = []

    def on_progress(progress: Progress) -> None:
        if progress.news == "ended":
            told.append(progress.run.variant)

    experiment = run_plan(text.replace("seed = 1", "seed = 1\nwarmup_requests = 2"), tmp_path / "x", on_progress)
    assert read_experiment(tmp_path / "x") == experiment

    baseline, static = of(experiment, "baseline"), of(experiment, "static")
    for run in (baseline, static):
        assert (run.status, run.failure, run.text) == ("done", None, "")
        trace = open_trace(tmp_path / "x" / run.trace)
        assert trace.recovery.status == "clean"
        assert trace.header.tags["experiment"] == "trial" and trace.header.tags["variant"] == run.variant
    assert baseline.correctness is not None and baseline.correctness.reference == static.id
    assert baseline.correctness.equal == baseline.correctness.same_termination == 10
    assert baseline.submit_lag is not None and baseline.submit_lag.max_ms < 1000

    memory = of(experiment, "too much memory")
    assert (memory.status, memory.failure, memory.phase) == ("failed", "oom", "cache creation") or (
        # Up to 5.17 the engine finds no size at all, which is no error of memory to the recorder.
        (memory.status, memory.failure, memory.phase) == ("failed", "oom", "engine creation")
    )
    dead = of(experiment, "dead end")
    assert (dead.status, dead.failure, dead.phase) == ("failed", "dead_end", "generation")
    assert dead.correctness is not None and dead.correctness.complete < 10
    assert sum(dead.correctness.failures.values()) == 10 - dead.correctness.complete
    assert set(dead.correctness.failures) == {"dead_end"}
    assert open_trace(tmp_path / "x" / dead.trace).footer is not None, "its trace was closed"

    skipped = of(experiment, "GPU only")
    assert told == ["baseline", "static", "too much memory", "dead end", "half"], "nothing waits for what is skipped"
    assert (skipped.status, skipped.trace) == ("skipped", "") and "CUDA" in skipped.text
    resolved = open_trace(tmp_path / "x" / baseline.trace).engines[0].resolved
    half = of(experiment, "half")
    assert half.status == "done"
    assert half.settings["num_blocks"] == round(int(resolved["num_blocks"] or 0) / 2)
    assert half.settings["max_requests_per_batch"] == resolved["max_requests_per_batch"]


def test_a_hang_and_a_kill_are_told_apart(tmp_path: Path) -> None:
    text = plan(
        variant("stopped", "max_batch_tokens = 128"), variant("killed", "max_batch_tokens = 64"), arrivals=SLOWLY
    )
    stop, kill = signal_worker_of("stopped", signal.SIGSTOP), signal_worker_of("killed", signal.SIGKILL)

    def both(progress: Progress) -> None:
        stop(progress)
        kill(progress)

    experiment = run_plan(text, tmp_path / "x", both)
    assert of(experiment, "baseline").status == "done"
    hang, killed = of(experiment, "stopped"), of(experiment, "killed")
    assert (hang.status, hang.failure, hang.phase) == ("failed", "hang", "generation")
    assert "No step was finished for 4 s" in hang.text
    assert (killed.status, killed.failure, killed.phase) == ("failed", "killed", "generation")
    assert "SIGKILL" in killed.text
    for run in (hang, killed):
        open_trace(tmp_path / "x" / run.trace)
        assert run.correctness is not None and run.correctness.failures == {run.failure: 10 - run.correctness.complete}
    assert not psutil.Process().children()


def test_a_run_that_is_asked_to_end_is_cancelled_and_closes_its_trace(tmp_path: Path) -> None:
    experiment = run_plan(plan(arrivals=SLOWLY), tmp_path / "x", signal_worker_of("baseline", signal.SIGTERM))
    run = of(experiment, "baseline")
    assert (run.status, run.failure) == ("failed", "cancelled")
    assert open_trace(tmp_path / "x" / run.trace).recovery.status == "clean"


def test_after_kill_9_of_the_runner_only_the_unfinished_run_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan(repeats=2, arrivals=SLOWLY))
    command = [COMMAND, "run", "plan.toml", "-o", "x"]
    runner = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    worker = second_worker(runner, tmp_path / "x")
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    assert worker.wait(timeout=10) is None or not worker.is_running(), "no orphan goes on writing"

    broken = read_experiment(tmp_path / "x")
    assert broken is not None and [run.status for run in broken.runs] == ["done", "running"]
    first = broken.runs[0]
    open_trace(tmp_path / "x" / broken.runs[1].trace)
    stamp = (tmp_path / "x" / first.trace).stat().st_mtime_ns

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "s1-baseline-r2 done" in done.stdout and "s1-baseline-r1" not in done.stdout
    whole = read_experiment(tmp_path / "x")
    assert whole is not None and whole.runs[0] == first and whole.runs[1].status == "done"
    assert (tmp_path / "x" / first.trace).stat().st_mtime_ns == stamp
    assert open_trace(tmp_path / "x" / whole.runs[1].trace).recovery.status == "clean"


def second_worker(runner: subprocess.Popen[bytes], folder: Path) -> psutil.Process:
    """Wait until the second run generates; return its process."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        experiment = read_experiment(folder) if folder.is_dir() else None
        if experiment is not None and experiment.runs[1].status == "running":
            trace = folder / experiment.runs[1].trace
            # At its very first moment a trace is empty.
            with contextlib.suppress(CbtraceError):
                if len(open_trace(trace).steps.index) > 2:
                    return psutil.Process(runner.pid).children()[0]
        time.sleep(0.1)
    raise AssertionError("the second run did not begin")


def test_a_time_budget_ends_between_runs_and_what_is_left_is_for_next_time(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan(repeats=3))
    command = [COMMAND, "run", "plan.toml", "-o", "x", "--max-time"]

    def statuses(max_time: str) -> tuple[list[str], str]:
        run = subprocess.run(
            [*command, max_time], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        experiment = read_experiment(tmp_path / "x")
        assert experiment is not None
        return [entry.status for entry in experiment.runs], run.stdout

    # Nothing is known of how long a run takes: the first one begins, and ends.
    first, said = statuses("0.5s")
    assert first == ["done", "planned", "planned"] and "2 of 3 are left" in said
    none, said = statuses("0.5s")
    assert none == first and "No further run fits into 0.5s" in said
    whole, said = statuses("10m")
    assert whole == ["done"] * 3 and "No further run" not in said


def test_a_run_is_expected_to_take_as_long_as_the_longest_of_its_variant(tmp_path: Path) -> None:
    experiment = new_experiment(parse_plan(plan(STATIC, repeats=2), tmp_path))
    base, static, base_again, static_again = experiment.runs
    assert longest_s(experiment, base) == 0 and remaining_s(experiment) is None
    base.status, base.seconds = "done", 3.0
    assert longest_s(experiment, static) == 3
    static.status, static.seconds = "failed", 40.0
    assert (longest_s(experiment, base_again), longest_s(experiment, static_again)) == (3, 40)
    assert remaining_s(experiment) == 43
    budget = TimeBudget(10)
    assert budget.allows(9) and not budget.allows(11)


def test_without_token_ids_answers_are_compared_by_their_hashes(tmp_path: Path) -> None:
    text = plan(STATIC).replace("repeats = 1", "repeats = 1\ntoken_ids = false")
    experiment = run_plan(text, tmp_path / "x")
    baseline = of(experiment, "baseline")
    for run in experiment.runs:
        trace = open_trace(tmp_path / "x" / run.trace)
        assert not trace.token_ids and "token_ids" not in trace.header.stored
    assert baseline.correctness is not None
    assert (baseline.correctness.compared, baseline.correctness.equal) == (10, 10)


def test_ctrl_c_leaves_everything_readable(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan(repeats=2, arrivals=SLOWLY))
    runner = subprocess.Popen(
        [COMMAND, "run", "plan.toml", "-o", "x"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    second_worker(runner, tmp_path / "x")  # type: ignore[arg-type]
    runner.send_signal(signal.SIGINT)
    out, err = runner.communicate(timeout=60)
    assert runner.returncode == 130 and "Traceback" not in err
    assert "Interrupted" in out
    experiment = read_experiment(tmp_path / "x")
    assert experiment is not None and [run.status for run in experiment.runs] == ["done", "running"]
    assert open_trace(tmp_path / "x" / experiment.runs[1].trace).recovery.status == "clean"


def test_one_experiment_is_one_plan_under_one_set_of_conditions(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    experiment = run_plan(plan(repeats=2), folder)
    assert [run.status for run in experiment.runs] == ["done", "done"]
    with pytest.raises(UsageError, match="another plan") as changed:
        run_plan(plan(repeats=2).replace("seed = 1", "seed = 2"), folder)
    assert changed.value.slug == "plan-changed"

    # As if the second run was still to be done, and the first had been made with another version.
    experiment.runs[1].status = "running"
    experiment.conditions["software.transformers"] = "5.0.0"
    write_experiment(experiment, folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with pytest.raises(CbtraceError, match=r"software\.transformers was 5\.0\.0 and is") as differs:
        run_plan(plan(repeats=2), folder)
    assert differs.value.slug == "conditions-differ"
    again = read_experiment(folder)
    assert again is not None and again.runs[1].status == "planned" and not again.mixed

    mixed = Runner(parse_plan(plan(repeats=2), tmp_path), tmp_path, copy, mix=True).run()
    assert mixed.mixed and mixed.runs[1].status == "done"


def test_a_run_whose_recording_stopped_is_not_done(tmp_path: Path) -> None:
    """Its process cannot write past a size, as on a full disk: generation goes on, and the trace lacks most of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(progress: Progress) -> None:
        if progress.report is not None and progress.report.phase == "engine creation":
            [worker] = psutil.Process().children()
            worker.rlimit(psutil.RLIMIT_FSIZE, (4096, hard))

    run = of(run_plan(plan(arrivals=SLOWLY), tmp_path / "x", limit), "baseline")
    assert (run.status, run.failure, run.phase) == ("failed", "error", "recording")
    assert "its recording stopped: io_error" in run.text
    assert run.correctness is not None and run.correctness.complete < 10
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (soft, hard)


@pytest.mark.parametrize(
    ("given", "seconds"), [("540", 540), ("540s", 540), ("9m", 540), ("9 min", 540), ("1.5h", 5400)]
)
def test_durations_have_units(given: str, seconds: float) -> None:
    assert parse_duration(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "9 days", "-3m", "0", "m"])
def test_what_is_no_duration_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="write it as in"):
        parse_duration(given)


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    write_experiment(new_experiment(parse_plan(plan(), tmp_path)), folder)
    before = (folder / "experiment.json").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(CbtraceError, match="the same command goes on") as caught:
            run_plan(plan(), folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.slug == "output-unwritable"
    assert (folder / "experiment.json").read_bytes() == before


def test_runs_that_are_not_those_of_the_plan_are_refused(tmp_path: Path) -> None:
    read = parse_plan(plan(), tmp_path)
    changed = new_experiment(read)
    changed.runs[0].variant = "nobody"
    write_experiment(changed, tmp_path)
    with pytest.raises(CbtraceError, match="does not hold the runs of its plan"):
        take_up(read, tmp_path)


@pytest.mark.parametrize("order", ["interleaved", "by_stage", "random"])
def test_more_repeats_add_runs_and_fewer_are_refused(tmp_path: Path, order: str) -> None:
    def of_repeats(count: int) -> Plan:
        text = plan(STATIC, variant("small", "max_batch_tokens = 64"), repeats=count)
        return parse_plan(text.replace("seed = 1", f'seed = 1\norder = "{order}"'), tmp_path)

    found = new_experiment(of_repeats(2))
    (tmp_path / "kept.cbt").touch()
    for run in found.runs:
        run.status, run.trace = "done", "kept.cbt"
    write_experiment(found, tmp_path)
    larger = take_up(of_repeats(3), tmp_path)
    assert [run.id for run in larger.runs] == [run.id for run in new_experiment(of_repeats(3)).runs]
    assert {run.repeat: run.status for run in larger.runs} == {1: "done", 2: "done", 3: "planned"}
    assert [run for run in larger.runs if run.repeat < 3] == sorted(found.runs, key=larger.runs.index)

    write_experiment(larger, tmp_path)
    assert take_up(of_repeats(3), tmp_path) == larger, "it is taken up as one of three repeats"
    with pytest.raises(UsageError, match="holds 3 repeats of each variant, and the plan now has 2") as fewer:
        take_up(of_repeats(2), tmp_path)
    assert fewer.value.slug == "plan-changed"


def test_a_run_whose_trace_was_removed_is_repeated(tmp_path: Path) -> None:
    read = parse_plan(plan(repeats=2), tmp_path)
    found = new_experiment(read)
    (tmp_path / "kept.cbt").touch()
    for run, trace in zip(found.runs, ("removed.cbt", "kept.cbt"), strict=True):
        run.status, run.trace = "done", trace
    write_experiment(found, tmp_path)
    assert [run.status for run in take_up(read, tmp_path).runs] == ["planned", "done"]


def test_sampled_answers_are_never_compared(tmp_path: Path) -> None:
    text = plan(STATIC).replace("[settings]", "[generation]\ndo_sample = true\n[settings]")
    for run in run_plan(text, tmp_path / "x").runs:
        assert run.correctness is not None and run.correctness.compared == 0
        assert run.correctness.remark == "Tokens were not compared: they are sampled."


def test_two_runners_do_not_share_a_folder(tmp_path: Path) -> None:
    folder, refused = tmp_path / "x", []

    def second_runner(progress: Progress) -> None:
        if progress.news == "begins" and not refused:
            with pytest.raises(CbtraceError) as caught:
                Runner(parse_plan(plan(), tmp_path), tmp_path, folder).run()
            refused.append(caught.value.slug)

    run_plan(plan(), folder, second_runner)
    assert refused == ["experiment-busy"]
