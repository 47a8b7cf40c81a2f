"""The thread pool: from many threads, across fork, under interrupts, and never in the way."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tvmdml
from tvmdml.targets.cpu import threads


@pytest.fixture
def x(in_parallel: None) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 9


def test_many_threads_call_at_once(x: np.ndarray) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = x + number
        wrong.extend(number for _ in range(30) if not np.array_equal(tvmdml.round(mine), np.rint(mine)))

    callers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert not wrong


def test_a_forked_child_and_its_parent_both_go_on(x: np.ndarray) -> None:
    np.testing.assert_array_equal(tvmdml.round(x), np.rint(x))
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is killed, and the test fails
        os._exit(0 if np.array_equal(tvmdml.round(x + 1), np.rint(x + 1)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(tvmdml.round(x), np.rint(x))


def test_an_interrupt_arrives_after_the_work_is_whole() -> None:
    # Many interrupts at odd moments: none is lost in a hang, none leaves a task running on memory that is gone.
    code = """
import os, signal, sys, threading, time
os.environ["TVMDML_NUM_THREADS"] = "3"
import numpy as np, tvmdml
from tvmdml.schedules.cpu import element_wise_round
element_wise_round.LEAST_TASK_BYTES = 1
x = np.arange(300_000, dtype="float32") / 4
expected = np.rint(x)
tvmdml.round(x)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start its jobs without
stop = False
def disturb():
    while not stop:
        time.sleep(0.0007)
        os.kill(os.getpid(), signal.SIGINT)
caught = 0
deadline = time.time() + 3
thread = threading.Thread(target=disturb, daemon=True)
def calls():
    global caught
    while time.time() < deadline:
        try:
            result = tvmdml.round(x)
            assert np.array_equal(result, expected)
        except KeyboardInterrupt:
            caught += 1
started = False
while time.time() < deadline:
    try:
        if not started:
            started = True
            thread.start()
        calls()
    except KeyboardInterrupt:
        caught += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
stop = True
assert np.array_equal(tvmdml.round(x), expected)
print("caught", caught)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 10


def test_idle_threads_burn_nothing(x: np.ndarray) -> None:
    tvmdml.round(x)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.3)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.1


@pytest.mark.parametrize("count", [2, 3])
def test_tasks_of_the_main_thread_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    barrier = threading.Barrier(count, timeout=20)
    met: list[int] = []

    def task(number: int, group: object, data: object) -> int:
        barrier.wait()  # passes only when every task is inside
        met.append(number)
        return 0

    function = threads._TASK(task)
    address = ctypes.cast(function, ctypes.c_void_p).value
    threads.shielded(lambda: threads._launch(address, 0, count))()
    assert sorted(met) == list(range(count))


def test_threads_are_started_once(x: np.ndarray) -> None:
    tvmdml.round(x)
    count = threading.active_count()
    for _ in range(50):
        tvmdml.round(x)
    assert threading.active_count() == count


def test_the_process_ends_while_threads_wait() -> None:
    code = """
import os
os.environ["TVMDML_NUM_THREADS"] = "4"
import numpy as np, tvmdml
tvmdml.round(np.zeros(1 << 23, "float32"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999"])
def test_a_bad_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", text)
    with pytest.raises(tvmdml.InvalidArgument, match=f"TVMDML_NUM_THREADS: given '{text}'; allowed: a number from 1 to 1024"):
        threads.thread_count()


def test_the_number_of_threads_is_the_processors_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVMDML_NUM_THREADS", raising=False)
    assert threads.thread_count() == len(os.sched_getaffinity(0))


def test_memory_does_not_grow_with_calls() -> None:
    x = np.arange(64, dtype=np.float32)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def calls(count: int) -> None:
        for _ in range(count):
            tvmdml.round(x)
            tvmdml.top_k(x, 3)
            tvmdml.nonzero_coordinates(x)

    calls(1000)
    before = resident()
    calls(20_000)
    assert resident() - before < 1 << 20
