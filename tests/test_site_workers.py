"""Work that is spread over processes: all of it is done once, errors are told, and no process is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from textwrap import dedent

import pytest

from cbtrace.site.workers import forked

PRELUDE = """
import multiprocessing, os, signal, sys, time
from contextlib import closing
import psutil
from cbtrace.site.workers import BuildWorkerError, Done, Underway, WorkError, forked, spread
from cbtrace.traces.errors import CbtraceError
fork = multiprocessing.get_context("fork")

def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

def gone(processes):
    time.sleep(0.1)  # the system closes the pipes of a process shortly before it is gone
    return not any(map(runs, processes))
"""

Program = Callable[[str], str]


@pytest.fixture
def program() -> Program:
    """Run a program in a process of its own: one that forks must have no threads, and pytest has some at times."""

    def run(code: str) -> str:
        command = [sys.executable, "-W", "error", "-c", PRELUDE + dedent(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""
        return done.stdout

    return run


def test_one_process_is_this_one_and_takes_work_in_order() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number * number

    assert list(forked(work, 4, 1)) == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize(("count", "processes"), [(1, 2), (3, 3), (40, 3), (2, 7), (0, 2)])
def test_every_number_is_done_once_by_processes_that_share_memory(program: Program, count: int, processes: int) -> None:
    said = program(
        f"""
        table = [object() for _ in range(1000)]
        me = os.getpid()
        found = sorted(forked(lambda number: (number, id(table[number]), os.getpid()), {count}, {processes}))
        assert [number for number, _ in found] == list(range({count}))
        assert [at for _, (_, at, _) in found] == [id(table[number]) for number in range({count})]
        workers = {{pid for _, (_, _, pid) in found}}
        assert me not in workers and len(workers) <= {processes}
        assert not psutil.Process().children()
        print(len(found))
        """
    )
    assert said == f"{count}\n"


def test_an_error_is_told_with_its_place_and_ends_the_others(program: Program) -> None:
    said = program(
        """
        def work(number):
            if number == 1:
                return [][number]
            time.sleep(60)
        try:
            list(forked(work, 3, 3))
        except WorkError as error:
            print(error, len(psutil.Process().children()))
        """
    )
    assert said.startswith("IndexError: list index out of range; <string>, line ") and said.endswith(" 0\n")


def test_an_error_of_ours_is_raised_as_it_was(program: Program) -> None:
    said = program(
        """
        def work(number):
            raise CbtraceError("The disk is full.", slug="some-slug")
        try:
            list(forked(work, 3, 2))
        except CbtraceError as error:
            print(error, error.slug)
        """
    )
    assert said == "The disk is full. some-slug\n"


def test_what_cannot_be_sent_is_an_error_and_not_a_lost_process(program: Program) -> None:
    said = program(
        """
        try:
            list(forked(lambda number: lambda: number, 3, 2))
        except WorkError as error:
            print(error)
        """
    )
    assert "pickle" in said


def test_a_process_that_cannot_be_started_is_told_as_such(program: Program) -> None:
    said = program(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
        try:
            list(forked(lambda number: time.sleep(0.2), 40, 40))
        except BuildWorkerError as error:
            print(error, len(psutil.Process().children()))
        """
    )
    assert "could not be started (too many open files)" in said and said.endswith(" 0\n")


def test_a_process_that_is_killed_is_heard_and_ends_the_others(program: Program) -> None:
    said = program(
        """
        def work(number):
            if number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if number > 5:
                time.sleep(60)
        try:
            list(forked(work, 8, 3))
        except BuildWorkerError as error:
            print(error.slug, len(psutil.Process().children()))
        """
    )
    assert said == "build-worker-ended 0\n"


def test_whoever_stops_listening_leaves_no_process_behind(program: Program) -> None:
    said = program(
        """
        with closing(forked(lambda number: time.sleep(number), 100, 3)) as finished:
            print(next(finished))
            ours = psutil.Process().children()
        print(len(ours), gone(ours))
        """
    )
    assert said == "(0, None)\n3 True\n"


def test_a_process_that_does_not_end_when_asked_to_is_killed(program: Program) -> None:
    said = program(
        """
        import cbtrace.site.workers as workers
        workers._PATIENCE_S = 0.5
        def work(number, told):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            told(0.5)
            time.sleep(60)
        hearing = spread(fork, work, 1, 1)
        next(hearing)
        ours = psutil.Process().children()
        hearing.close()
        print(gone(ours))
        """
    )
    assert said == "True\n"


def test_shares_are_heard_before_what_came_of_the_work(program: Program) -> None:
    said = program(
        """
        def work(number, told):
            told(0.25)
            told(0.5)
            return number
        heard = list(spread(fork, work, 2, 1))
        print(heard == [one for n in (0, 1) for one in (Underway(n, 0.25), Underway(n, 0.5), Done(n, n))])
        """
    )
    assert said == "True\n"


WITH_FORKS = """
def work(number, told):
    told(0.5)
    list(forked(lambda number: time.sleep(0.1), 1000, 3))

def tree():
    return psutil.Process().children(recursive=True)

hearing = spread(fork, work, 1, 1)
next(hearing)
while len(tree()) < 4:
    time.sleep(0.01)
ours = tree()
"""


def test_closing_ends_the_forks_of_a_process_too(program: Program) -> None:
    assert program(WITH_FORKS + "hearing.close()\nprint(len(ours), gone(ours))") == "4 True\n"


def test_when_a_process_is_killed_its_forks_do_not_go_on(program: Program) -> None:
    said = program(
        WITH_FORKS
        + dedent(
            """
            psutil.Process().children()[0].kill()
            began = time.monotonic()
            try:
                next(hearing)
            except BuildWorkerError as error:
                print(error.slug, time.monotonic() - began < 10, gone(ours))
            """
        )
    )
    assert said == "build-worker-ended True True\n"
