"""Experiments on a real Ray cluster of several nodes on loopback: what they give, and what they survive."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.runner import Runner
from cbtrace.traces import Trace, open_trace
from cbtrace.traces.experiment import Experiment, read_experiment
from conftest import COMMAND
from ray_cluster import Cluster, ray_cluster
from test_experiments_runner import SLOWLY, STATIC, plan, variant

pytestmark = pytest.mark.ray
TWELVE = plan(
    STATIC,
    variant("small", "max_batch_tokens = 64"),
    '[[variants]]\nname = "half"\nstage = 3\nset = { num_blocks = "50%" }\npin = ["max_requests_per_batch"]\n',
    repeats=3,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one core."""
    with ray_cluster(a={"cpus": 1}, b={"cpus": 1}) as made:
        yield made


def command(cluster: Cluster, folder: Path, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a plan on the cluster, in a process of its own, to its end."""
    (folder / "plan.toml").write_text(text)
    return subprocess.run(
        [COMMAND, "run", "plan.toml", "-o", "x", "--on", "ray", *more],
        cwd=folder,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@contextlib.contextmanager
def begun(cluster: Cluster, folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A run of a plan that is under way."""
    (folder / "plan.toml").write_text(text)
    process = subprocess.Popen(
        [COMMAND, "run", "plan.toml", "-o", "x", "--on", "ray"],
        cwd=folder,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def experiment_in(folder: Path) -> Experiment:
    found = read_experiment(folder / "x")
    assert found is not None
    return found


def wait_for(folder: Path, what: Callable[[Experiment], object]) -> Experiment:
    """Wait until something is so in an experiment that is under way."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        found = read_experiment(folder / "x") if (folder / "x").is_dir() else None
        if found is not None and what(found):
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def content(trace: Trace) -> dict[str, object]:
    """What a run did, whenever and wherever it did it."""
    requests = trace.requests
    order = sorted(range(len(requests.id)), key=lambda number: requests.id[number])
    asked = [(requests.id[n], int(requests.prompt_tokens[n]), int(requests.generated[n])) for n in order]
    facts = {name: value for name, value in trace.header.fingerprint.items() if name.startswith("workload.")}
    tokens = {requests.id[number]: list(ids) for number, ids in trace.token_ids.items()}
    return {
        "facts": facts,
        "requests": asked,
        "tokens": tokens,
        "tags": trace.header.tags,
        "steps": len(trace.steps.index),
    }


def test_a_plan_of_twelve_runs_gives_what_it_gives_on_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    done = command(cluster, tmp_path, TWELVE)
    assert done.returncode == 0, done.stderr
    there = experiment_in(tmp_path)
    here = Runner(parse_plan(TWELVE, tmp_path), tmp_path, tmp_path / "here").run()
    assert len(there.runs) == 12 and {run.status for run in there.runs} == {"done"}
    assert [run.id for run in there.runs] == [run.id for run in here.runs]
    assert there.workloads == here.workloads
    for far, near in zip(there.runs, here.runs, strict=True):
        mine, theirs = open_trace(tmp_path / "here" / near.trace), open_trace(tmp_path / "x" / far.trace)
        assert theirs.recovery.status == "clean"
        assert content(theirs) == content(mine), far.id
        assert (far.settings, far.correctness) == (near.settings, near.correctness)
        assert theirs.header.fingerprint["placement.machine"] == far.machine
        assert theirs.header.fingerprint["placement.attempt"] == 1
        assert not any(name.startswith("placement.") for name in mine.header.fingerprint)
    # Each round stays on one machine, and both machines had work.
    machines = {repeat: {run.machine for run in there.runs if run.repeat == repeat} for repeat in (1, 2, 3)}
    assert all(len(names) == 1 for names in machines.values()), machines
    assert len(set.union(*machines.values())) == 2
    assert not list((tmp_path / "x" / "runs").glob(".*")), "nothing half-written is left"
    again = command(cluster, tmp_path, TWELVE)
    assert again.returncode == 0 and "] s" not in again.stdout, "there is nothing left to run"


def test_a_lost_machine_costs_its_unfinished_run_only(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("doomed", cpus=1)
    with begun(cluster, tmp_path, plan(repeats=4, arrivals=SLOWLY)) as driver:
        found = wait_for(tmp_path, lambda experiment: len({run.machine for run in experiment.runs} - {""}) == 3)
        raylet = cluster.raylet("doomed")
        doomed = [run for run in found.runs if run.status == "running"][-1]
        finished = {run.id: run for run in found.runs if run.status == "done"}
        raylet.kill()
        out, err = driver.communicate(timeout=200)
    assert driver.returncode == 0, err
    assert "Traceback" not in err and "doomed" in out
    after = experiment_in(tmp_path)
    assert [run.status for run in after.runs] == ["done"] * 4
    [lost] = [run for run in after.runs if run.lost]
    assert lost.id in out and len(lost.lost) == 1 and "was lost" in lost.lost[0]
    assert f"{lost.id} was begun on doomed" in out and "Attempt 2 of 3 follows" in out
    assert open_trace(tmp_path / "x" / lost.trace).header.fingerprint["placement.attempt"] == 2
    assert all(after.run(name) == run for name, run in finished.items()), "what was done was not repeated"
    assert doomed.id in {run.id for run in after.runs}
    built = subprocess.run(
        [COMMAND, "build", "x", "-o", "site"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    [page] = (tmp_path / "site" / "experiments").glob("*/index.html")
    assert lost.lost[0] in page.read_text(), "the page tells of the lost attempt"


def test_a_killed_worker_is_retried_twice_and_then_given_up(cluster: Cluster, tmp_path: Path) -> None:
    with begun(cluster, tmp_path, plan(repeats=1, arrivals=SLOWLY)) as driver:
        for attempt in range(3):
            wait_for(
                tmp_path,
                lambda experiment, attempt=attempt: (  # type: ignore[misc]
                    len(experiment.runs[0].lost) == attempt and experiment.runs[0].status == "running"
                ),
            )
            worker_of_a_run(cluster).kill()
        out, err = driver.communicate(timeout=100)
    assert driver.returncode == 1, err
    assert "Attempt 2 of 3 follows" in out and "Attempt 3 of 3 follows" in out
    [run] = experiment_in(tmp_path).runs
    assert (run.status, run.failure, len(run.lost)) == ("failed", "killed", 2)
    assert run.text.startswith("It was given up after 3 attempts. The worker it was on was lost")
    assert comes_true(lambda: not runs_under_way(cluster)), "the process of the run goes with its worker"


def comes_true(what: Callable[[], bool]) -> bool:
    """Whether something is so within a little while."""
    deadline = time.monotonic() + 30
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def runs_under_way(cluster: Cluster) -> list[psutil.Process]:
    """The processes of runs on the cluster."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            ours = "cbtrace.recorder.experiments.worker" in (process.info["cmdline"] or [])
            if ours and process.environ().get("RAY_TMPDIR") == str(cluster.folder):
                found.append(process)
    return found


def worker_of_a_run(cluster: Cluster) -> psutil.Process:
    """Ray's worker that a run is on, as soon as there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in runs_under_way(cluster):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if parent is not None and parent.pid > 1:
                    return parent
        time.sleep(0.1)
    raise AssertionError("no run began")


def test_after_kill_9_of_the_driver_only_unfinished_runs_are_repeated(cluster: Cluster, tmp_path: Path) -> None:
    text = plan(repeats=4, arrivals=SLOWLY)
    with begun(cluster, tmp_path, text) as driver:
        wait_for(tmp_path, lambda experiment: experiment.runs[0].status == "done")
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    broken = experiment_in(tmp_path)
    done = {run.id: run for run in broken.runs if run.status == "done"}
    assert 1 <= len(done) < 4 and any(run.status == "running" for run in broken.runs)
    stamps = {run.trace: (tmp_path / "x" / run.trace).stat().st_mtime_ns for run in done.values()}
    again = command(cluster, tmp_path, text)
    assert again.returncode == 0, again.stderr
    after = experiment_in(tmp_path)
    assert [run.status for run in after.runs] == ["done"] * 4
    assert all(after.run(name) == run for name, run in done.items())
    assert {trace: (tmp_path / "x" / trace).stat().st_mtime_ns for trace in stamps} == stamps
    assert sorted(re.findall(r"] (\S+) done", again.stdout)) == sorted(
        run.id for run in after.runs if run.id not in done
    )
    assert not any(run.lost for run in after.runs), "the driver was killed, and no machine was lost"


def test_ctrl_c_ends_the_runs_too(cluster: Cluster, tmp_path: Path) -> None:
    with begun(cluster, tmp_path, plan(repeats=2, arrivals=SLOWLY)) as driver:
        wait_for(tmp_path, lambda experiment: experiment.runs[0].status == "running")
        worker_of_a_run(cluster)
        driver.send_signal(signal.SIGINT)
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130 and "Traceback" not in err
    assert "Interrupted" in out
    assert comes_true(lambda: not runs_under_way(cluster))


def test_runs_beside_each_other_never_share_a_gpu(cluster: Cluster, tmp_path: Path) -> None:
    """The GPUs are numbers that Ray hands out, and the model is on the CPU: what is tested is who gets which."""
    cluster.add("gpus", cpus=2, gpus=2)
    done = command(cluster, tmp_path, plan(repeats=4).replace("seed = 1", "seed = 1\ngpus = 1"))
    assert done.returncode == 0, done.stderr
    runs = experiment_in(tmp_path).runs
    assert [run.status for run in runs] == ["done"] * 4 and len({run.machine for run in runs}) == 1
    facts = [open_trace(tmp_path / "x" / run.trace).header.fingerprint for run in runs]
    gpus = [fact["placement.gpus"] for fact in facts]
    assert set(gpus) == {"0", "1"}
    assert [fact["environment.CUDA_VISIBLE_DEVICES"] for fact in facts] == gpus
    spans = [(run.started_ns, run.started_ns + int(run.seconds * 1e9)) for run in runs]
    for i, one in enumerate(spans):
        for j, other in enumerate(spans[:i]):
            assert gpus[i] != gpus[j] or one[0] >= other[1] or other[0] >= one[1], "a GPU had two runs at once"
    cluster.nodes["gpus"].kill()


def test_files_of_the_workload_travel_with_the_run(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.jsonl").write_text('{"tokens": [1, 2, 3], "new_tokens": 4}\n{"tokens": [5, 6]}\n')
    head, _, rest = plan().partition("[workload]")
    spec = '[workload]\nkind = "prompts"\nfile = "data/prompts.jsonl"\nnew_tokens = { kind = "fixed", tokens = 3 }\n'
    done = command(cluster, tmp_path, head + spec + rest[rest.index("[settings]") :])
    assert done.returncode == 0, done.stderr
    [run] = experiment_in(tmp_path).runs
    trace = open_trace(tmp_path / "x" / run.trace)
    assert trace.requests.prompt_tokens.tolist() == [3, 2] and trace.requests.generated.tolist() == [4, 3]
    assert trace.header.fingerprint["workload.file"] == "prompts.jsonl"


def test_another_machine_goes_on_from_the_storage(cluster: Cluster, tmp_path: Path) -> None:
    storage = (tmp_path / "kept").as_uri()
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = command(cluster, one, plan(repeats=1), "--storage", storage)
    assert first.returncode == 0, first.stderr
    kept = {path.relative_to(tmp_path / "kept").as_posix() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert kept == {"experiment.json", "runs/s1-baseline-r1.cbt", "logs/s1-baseline-r1.log"}
    second = command(cluster, other, plan(repeats=2), "--storage", storage)
    assert second.returncode == 0, second.stderr
    assert re.findall(r"] (\S+) done", second.stdout) == ["s1-baseline-r2"]
    trace = "runs/s1-baseline-r1.cbt"
    assert (other / "x" / trace).read_bytes() == (one / "x" / trace).read_bytes()
    assert (tmp_path / "kept" / "experiment.json").read_bytes() == (other / "x" / "experiment.json").read_bytes()


def test_machines_that_cannot_do_it_are_left_out_with_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "other" / "cbtrace-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: cbtrace\nVersion: 9.9\n")
    cluster.add("newer", cpus=1, PYTHONPATH=str(other.parent))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("torch", "cbtrace"):
        hidden = bare / name / "sitecustomize.py"
        hidden.parent.mkdir()
        hidden.write_text(HIDE.format(name=name))
        cluster.add(f"no-{name}", cpus=1, PYTHONPATH=str(hidden.parent))
    done = command(cluster, tmp_path, plan(repeats=1))
    assert done.returncode == 0, done.stderr
    assert "cbtrace is version 9.9 there and 0.1.0 here" in done.stdout
    assert "torch cannot be imported there. Run pip install 'cbtrace[record]' on it." in done.stdout
    assert "cbtrace is not installed there." in done.stdout
    assert experiment_in(tmp_path).runs[0].status == "done"


HIDE = """
import importlib.metadata, importlib.util, sys
real, found = importlib.metadata.version, importlib.util.find_spec
def version(name):
    if name == "{name}":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
importlib.util.find_spec = lambda name, package=None: None if name == "{name}" else found(name, package)
"""


def test_without_a_cluster_one_is_started_and_stopped(tmp_path: Path) -> None:
    with ray_cluster() as nowhere:
        done = command(nowhere, tmp_path, plan(repeats=1))
        assert done.returncode == 0, done.stderr
        assert experiment_in(tmp_path).runs[0].status == "done"
        assert (nowhere.folder / "ray" / "session_latest").exists(), "it was a cluster of its own"
        assert comes_true(lambda: not nowhere.processes()), "and was stopped"


def test_a_cluster_of_another_version_is_told(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(plan())
    program = "import ray, sys; ray.__version__ = '2.1.0'; from cbtrace.commands import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "plan.toml", "-o", "x", "--on", "ray"],
        cwd=tmp_path,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(
        r"The cluster has Ray \S+ with Python \S+, and this command Ray 2\.1\.0 with Python \S+: .*\[cluster-version\]",
        done.stderr,
    )
    assert not (tmp_path / "x").exists()
