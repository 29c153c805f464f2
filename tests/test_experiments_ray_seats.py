"""Which run may go to which machine, and what is taken from machines: clusters of GPUs that no test has, made up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from cbtrace.commands.live_runs import LiveRuns
from cbtrace.recorder.cluster.connection import ClusterError
from cbtrace.recorder.cluster.machines import Machine, Survey
from cbtrace.recorder.experiments import ray_seats
from cbtrace.recorder.experiments.job import Report, differing_conditions
from cbtrace.recorder.experiments.make_job import make_job
from cbtrace.recorder.experiments.places import Begin, Endings, Hear, Seat, Task
from cbtrace.recorder.experiments.plan import parse_plan
from cbtrace.recorder.experiments.plan_spec import Plan
from cbtrace.recorder.experiments.process import Ending
from cbtrace.recorder.experiments.ray_incoming import Incoming
from cbtrace.recorder.experiments.ray_seats import Seats, of_one_model
from cbtrace.recorder.experiments.runner import Runner
from cbtrace.recorder.experiments.shipment import packed
from cbtrace.recorder.experiments.stages import variants_of
from cbtrace.recorder.experiments.take_up import new_experiment
from cbtrace.traces.errors import CbtraceError
from cbtrace.traces.experiment import Experiment, RunEntry, read_experiment
from cbtrace.traces.schema import Facts
from test_experiments_runner import STATIC, plan, variant


def machine(name: str, gpus: int = 0, gpu: str = "", cpus: float = 8) -> Machine:
    return Machine(node=f"node {name}", name=name, shown=f"10.0.0.{name}", cpus=cpus, gpus=gpus, gpu=gpu)


def gpu_plan(**changes: object) -> Plan:
    text = plan(STATIC, variant("small", "max_batch_tokens = 64"), repeats=4).replace(
        'device = "cpu"', 'device = "auto"'
    )
    return msgspec.structs.replace(parse_plan(text, Path()), **changes)


def seats_on(
    monkeypatch: pytest.MonkeyPatch,
    machines: Sequence[Machine],
    the_plan: Plan,
    experiment: Experiment | None = None,
    *,
    mix: bool = False,
) -> tuple[Seats, list[str]]:
    notes: list[str] = []
    monkeypatch.setattr(ray_seats, "survey", lambda _packages, **_: Survey(list(machines), []))
    return Seats(the_plan, experiment or new_experiment(the_plan), mix=mix, note=notes.append), notes


def filled(seats: Seats, runs: Sequence[RunEntry]) -> list[tuple[str, str]]:
    """Give runs to machines, first come first served, until none has room; return who got which."""
    busy: list[Machine] = []
    taken: list[tuple[str, str]] = []
    left = list(runs)
    while True:
        for free, seat in seats.free(busy):
            run = next((run for run in left if seat.takes(run)), None)
            if run is not None:
                left.remove(run)
                seats.take(free, run)
                busy.append(free)
                taken.append((free.name, run.id))
                break
        else:
            return taken


def test_all_runs_go_to_one_model_of_gpu() -> None:
    a, b, c, none = machine("1", 4, "H200"), machine("2", 8, "A100"), machine("3", 5, "H200"), machine("4")
    alike, texts = of_one_model([a, b, c, none], {})
    assert alike == [a, c], "nine GPUs are more than eight"
    assert texts == [
        "Machine 10.0.0.2 is left out: it has A100, and the runs go to H200.",
        "Machine 10.0.0.4 is left out: it has no GPU, and the runs go to H200.",
    ]
    assert of_one_model([a, b, c], {"hardware.gpu.name": "A100"})[0] == [b], "it goes on where it began"
    assert of_one_model([a, none], {"hardware.gpu.name": "none"})[0] == [none]
    with pytest.raises(ClusterError, match=r"began on L4, and the machines of the cluster have H200, A100") as caught:
        of_one_model([a, b], {"hardware.gpu.name": "L4"})
    assert caught.value.slug == "conditions-differ"


def test_unlike_machines_are_used_only_when_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [machine("1", 1, "H200"), machine("2", 1, "A100")]
    seats, notes = seats_on(monkeypatch, both, gpu_plan())
    assert {free.name for free, _ in seats.free([])} == {"1"} and len(notes) == 1
    seats, notes = seats_on(monkeypatch, both, gpu_plan(), mix=True)
    assert {free.name for free, _ in seats.free([])} == {"1", "2"} and not notes


def test_a_round_stays_on_one_machine_and_no_gpu_has_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    the_plan = gpu_plan()
    runs = new_experiment(the_plan).runs
    seats, _ = seats_on(monkeypatch, [machine("1", 2, "H200"), machine("2", 2, "H200")], the_plan)
    taken = filled(seats, runs)
    assert taken == [
        ("1", "s1-baseline-r1"),
        ("2", "s1-baseline-r2"),
        ("1", "s1-static-r1"),
        ("2", "s1-static-r2"),
    ]
    left = [run for run in runs if run.id not in {run_id for _, run_id in taken}]
    assert filled(seats, left)[:4] == [
        ("1", "s2-small-r1"),
        ("2", "s2-small-r2"),
        ("1", "s1-baseline-r3"),
        ("2", "s1-baseline-r4"),
    ]


def test_a_run_gets_the_gpus_of_the_plan_and_the_cores_that_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = machine("1", 8, "H200", cpus=128), machine("2", 1, "H200")
    seats, _ = seats_on(monkeypatch, [large, small], gpu_plan(gpus=2))
    assert (seats.gpus(large), seats.room(large), seats.cores(large)) == (2, 4, 32)
    assert {free.name for free, _ in seats.free([])} == {"1"}
    with pytest.raises(ClusterError, match="A run needs 9 GPUs of one machine"):
        seats_on(monkeypatch, [large, small], gpu_plan(gpus=9))
    cpu = machine("3", cpus=16)
    seats, _ = seats_on(monkeypatch, [cpu], gpu_plan())
    assert (seats.gpus(cpu), seats.room(cpu), seats.cores(cpu)) == (0, 1, 16)


def test_rounds_go_on_where_they_began_and_elsewhere_when_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    the_plan = gpu_plan()
    experiment = new_experiment(the_plan)
    for run in experiment.runs[:2]:
        run.status, run.machine = "done", "2"
    one, two = machine("1", 1, "H200"), machine("2", 1, "H200")
    seats, notes = seats_on(monkeypatch, [one, two], the_plan, experiment)
    assert filled(seats, experiment.runs[2:]) == [("1", "s1-baseline-r2"), ("2", "s2-small-r1")]
    monkeypatch.setattr(ray_seats, "survey", lambda _packages, **_: Survey([one], []))
    monkeypatch.setattr(ray_seats, "is_there", lambda machine: machine is one)
    assert seats.is_gone(two) and seats.is_gone(two) and not seats.is_gone(one)
    assert notes == ["Machine 10.0.0.2 is lost."]
    assert filled(seats, experiment.runs[2:]) == [("1", "s2-small-r1")]
    assert not seats.refuse(one, "hardware.cpu was A and is B"), "no other machine is left"
    assert list(seats.free([])) == []


class MadeUp:
    """A place whose machines do what a test says."""

    def __init__(self, *endings: Ending) -> None:
        self.endings = list(endings)
        self.begun: list[str] = []

    def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
        while self.endings and (task := begin(Seat("blake2b:1", "ten"))) is not None:
            self.begun.append(task.run.id)
            yield task, self.endings.pop(0)


def test_a_lost_run_is_begun_again_at_most_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = [Ending(lost=f"Its machine was lost, {number}.", phase="generation") for number in range(4)]
    place = MadeUp(*lost)
    with LiveRuns() as live, pytest.raises(CbtraceError) as caught:
        Runner(
            parse_plan(plan(repeats=2), tmp_path), tmp_path, tmp_path / "x", place=place, on_progress=live.tell
        ).run()
    assert caught.value.slug == "no-machine-left" and "with 1 of 2 runs to come" in str(caught.value)
    assert place.begun == ["s1-baseline-r1"] * 3 + ["s1-baseline-r2"]
    found = read_experiment(tmp_path / "x")
    assert found is not None
    first, second = found.runs
    assert (first.status, first.failure, first.phase) == ("failed", "killed", "generation")
    assert first.lost == ["Its machine was lost, 0.", "Its machine was lost, 1."]
    assert first.text == "It was given up after 3 attempts. Its machine was lost, 2."
    assert (second.status, second.lost) == ("planned", ["Its machine was lost, 3."])
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "[1/2] s1-baseline-r1 was begun on ten. Its machine was lost, 0. Attempt 2 of 3 follows.",
        "[1/2] s1-baseline-r1 was begun on ten. Its machine was lost, 1. Attempt 3 of 3 follows.",
        "[1/2] s1-baseline-r1 failed (killed, generation) on ten",
        "[2/2] s1-baseline-r2 was begun on ten. Its machine was lost, 3. Attempt 2 of 3 follows.",
    ]


def test_a_machine_under_other_conditions_costs_no_attempt(tmp_path: Path) -> None:
    place = MadeUp(Ending(differing=["hardware.cpu was A and is B"], elsewhere=True), Ending(differing=["the same"]))
    with pytest.raises(CbtraceError) as caught:
        Runner(parse_plan(plan(), tmp_path), tmp_path, tmp_path / "x", place=place).run()
    assert caught.value.slug == "conditions-differ"
    found = read_experiment(tmp_path / "x")
    assert found is not None and (found.runs[0].status, found.runs[0].lost) == ("planned", [])
    assert place.begun == ["s1-baseline-r1"] * 2


def test_what_rests_on_the_baseline_waits_for_it(tmp_path: Path) -> None:
    """Of a machine with room for all, only the first run gets a seat before the conditions are known; then all but the
    one whose settings the baseline resolves."""
    seen: list[str] = []

    class Wide:
        def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Endings:
            first = begin(Seat())
            assert first is not None and begin(Seat()) is None
            hear(first, Report(conditions={"hardware.gpu.count": 0}))
            while (task := begin(Seat())) is not None:
                seen.append(task.run.id)
            yield first, Ending(failure="error", text="made up")

    text = plan(STATIC, variant("small", "max_batch_tokens = 64"), variant("half", 'num_blocks = "50%"', stage=3))
    with pytest.raises(CbtraceError):
        Runner(parse_plan(text, tmp_path), tmp_path, tmp_path / "x", place=Wide()).run()
    assert seen == ["s1-static-r1", "s2-small-r1"]


def task_in(folder: Path) -> Task:
    the_plan = parse_plan(plan(), folder)
    tasks: list[Task] = []

    class Noting:
        def run_all(self, experiment: Experiment, begin: Begin, hear: Hear) -> Iterator[tuple[Task, Ending]]:
            task = begin(Seat())
            assert task is not None
            tasks.append(task)
            yield from ()

    with contextlib.suppress(CbtraceError):
        Runner(the_plan, folder, folder / "x", place=Noting()).run()  # type: ignore[arg-type]
    return tasks[0]


@pytest.mark.parametrize(
    "message", [b"", b"Xnonsense", b"R{", b'R{"steps": "many"}', b'E{"failure": "boredom"}', {"a": 1}]
)
def test_messages_that_no_run_sends_are_refused(tmp_path: Path, message: object) -> None:
    incoming = Incoming(task_in(tmp_path))
    with pytest.raises(msgspec.MsgspecError):
        incoming.take(message)


def test_a_trace_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    path = Path(task.job.trace)
    incoming = Incoming(task)
    assert incoming.take(b"Tone ") is None and incoming.take(b"Ttwo") is None and incoming.take(b"Llog") is None
    assert not path.exists()
    assert incoming.take(b'E{"done": true}') == Ending(done=True)
    assert (path.read_bytes(), task.log.read_bytes()) == (b"one two", b"log")
    cut = Incoming(task)
    cut.take(b"Thalf")
    cut.close()
    assert not list(path.parent.iterdir()), "neither the old one nor a part of a new one"


def test_which_gpu_a_run_got_is_no_condition() -> None:
    here: Facts = {"environment.CUDA_VISIBLE_DEVICES": "0", "placement.gpus": "0", "hardware.gpu.name": "H200"}
    there = here | {"environment.CUDA_VISIBLE_DEVICES": "3", "placement.gpus": "3"}
    assert differing_conditions(here, there) == []
    assert differing_conditions(here, there | {"hardware.gpu.name": "A100"}) != []


def test_files_are_packed_and_folders_of_models_keep_their_place(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("3\n4\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 512}')
    text = plan().replace('source = "random:tiny"', 'source = "./model"')
    text = text.replace(
        'prompt_tokens = { kind = "uniform", low = 8, high = 60 }',
        'prompt_tokens = { kind = "empirical", file = "lengths.txt" }',
    )
    the_plan = parse_plan(text, tmp_path)
    run = new_experiment(the_plan).runs[0]
    job = make_job(the_plan, run, variants_of(the_plan)[0], {})
    job.plan_folder = str(tmp_path)
    moved, files = packed(job)
    assert files == {"0/lengths.txt": b"3\n4\n"}
    assert msgspec.to_builtins(moved.workload)["prompt_tokens"]["file"] == "0/lengths.txt"
    assert moved.model.source == str(tmp_path / "model") and moved.plan_folder == moved.trace == ""
    assert msgspec.to_builtins(job.workload)["prompt_tokens"]["file"] == "lengths.txt", "the job itself stays"
