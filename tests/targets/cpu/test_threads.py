"""The thread pool: used from many threads, across fork, under interrupts, without disturbing the program.

These tests apply to the pool in C and to the one in Python: run them with TVMDML_DISABLE_NATIVE=1 for the latter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import at_once

import tvmdml
from tvmdml import InvalidArgument, targets
from tvmdml.system import imports
from tvmdml.targets.cpu import cgroups, python_pool, threads
from tvmdml.targets.cpu.thread_count import thread_count

only_native = pytest.mark.skipif(threads.native() is None, reason=threads.state())


@pytest.fixture
def x(in_parallel: None) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 9


# The beginning of each program: every kernel in three tasks, however small.
PARALLEL = """
import os
os.environ.setdefault("TVMDML_NUM_THREADS", "3")
import atexit, signal, sys, threading, time
import numpy as np, tvmdml
from tvmdml import knobs
from tvmdml.targets.cpu import CpuTarget, threads
from tvmdml.targets.cpu.thread_count import thread_count
CpuTarget.handover = lambda self: 1
small = knobs.using(pointwise={"task_elements": 1}, nonzero_coordinates={"task_elements": 1})
small.__enter__()
x = np.arange(300_000, dtype="float32") / 4
expected = np.rint(x)
assert np.array_equal(tvmdml.round(x), expected)
def forever():
    while True:
        tvmdml.round(x)
def started():
    return threads.native().started() if threads.native() else sum(t.name == "tvmdml" for t in threading.enumerate())
"""


def program(code: str, limits: Callable[[], None] | None = None, **variables: str) -> str:
    """What a program prints; it must end by itself, without complaint."""
    done = subprocess.run(
        [sys.executable, "-c", PARALLEL + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **variables},
        preexec_fn=limits,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# -- The number of tasks is an integer of the launch ----------------------------------------------------------------

SMALL = """
import os
os.environ["TVMDML_NUM_THREADS"] = "3"
import numpy as np, tvmdml
from tvmdml.targets.cpu import threads
started = threads.native().started
a, b = np.ones((5, 7), "float32"), np.ones((7, 9), "float32")
image, filters = np.ones((1, 3, 9, 9), "float32"), np.ones((4, 3, 3, 3), "float32")
tvmdml.round(a), tvmdml.gemm(a, b), tvmdml.activation_softmax(a), tvmdml.reduce(a, function="sum", axes=[1]), tvmdml.top_k(a, 2)
tvmdml.cumulative_summation(a, axis=1), tvmdml.convolution(image, filters)
assert started() == 0, "little work runs on the caller's thread"
large = np.arange(3_000_000, dtype="float32")
assert np.array_equal(tvmdml.round(large), large)
assert started() == 2, "much of it on others, with the same kernel"
"""


@only_native
def test_one_task_starts_no_thread() -> None:
    """Kernels with parallel loops run alone if their number of tasks is 1."""
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- Calls from everywhere ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_many_threads_call_at_once(x: np.ndarray) -> None:
    def work(number: int) -> None:
        mine = x + number
        rounded = np.rint(mine)
        for _ in range(20):
            assert np.array_equal(tvmdml.round(mine), rounded)
            assert np.array_equal(tvmdml.nonzero_coordinates(rounded)[:, 0], np.flatnonzero(rounded))

    at_once(work, 16)


def test_each_call_has_scratch_memory_of_its_own() -> None:
    # Sorting keeps its elements in temporaries; sizes vary, so that the threads' temporaries must grow.
    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for length in (3000, 50, 40_000, 3000, 20_000):
            mine = rng.integers(-(2**31), 2**31, length, dtype=np.int32)
            for _ in range(4):
                values, indices = tvmdml.top_k(mine, length, axis_direction="increasing")
                assert np.array_equal(values, np.sort(mine))
                assert np.array_equal(mine[indices], values)

    at_once(work, 8)


def test_other_threads_run_python_during_a_launch() -> None:
    x = np.zeros((1 << 22,), np.float32)
    desc = tvmdml.TensorDesc("float32", x.shape)
    run = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=0)).bind(x, x.copy())  # type: ignore[arg-type]
    switch = sys.getswitchinterval()
    seen: list[bool] = []
    during: list[bool] = []

    def work() -> None:
        end = time.monotonic() + 30
        while not seen and time.monotonic() < end:
            run()
        during.extend(seen)

    sys.setswitchinterval(60)  # no thread is forced to release the interpreter lock
    try:
        thread = threading.Thread(target=work)
        thread.start()
        seen.append(True)
        thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert during, "only at the end of all launches"


# -- Fork ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_children_forked_while_other_threads_launch() -> None:
    program("""
stop = False
wrong = []
def work():
    while not stop:
        if not np.array_equal(tvmdml.round(x), expected): wrong.append(1)
callers = [threading.Thread(target=work) for _ in range(3)]
for caller in callers: caller.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        fine = all(np.array_equal(tvmdml.round(x + i), np.rint(x + i)) for i in range(3))
        os._exit(0 if fine and started() == 2 + (threads.native() is None) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for caller in callers: caller.join()
assert not wrong
""")


# -- Signals, and the end -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_interrupt_arrives_after_the_work_is_whole() -> None:
    # Many interrupts at random moments: no call hangs, and no task continues to run on freed memory.
    printed = program("""
armed, caught = False, 0
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def disturb():
    while caught < 300:
        time.sleep(0.0007)
        os.kill(os.getpid(), signal.SIGINT)
thread = threading.Thread(target=disturb, daemon=True)
thread.start()
end = time.monotonic() + 60
while caught < 300 and time.monotonic() < end:
    try:
        armed = True
        result = tvmdml.round(x)
        armed = False
        assert np.array_equal(result, expected)
    except KeyboardInterrupt:
        caught += 1
assert np.array_equal(tvmdml.round(x), expected)
print("caught", caught)
""")
    assert int(printed.split()[-1]) > 10


@pytest.mark.full
@only_native
def test_threads_are_started_once_and_leave_signals_to_the_program() -> None:
    program("""
import glob
before = started()
assert before == 2
for _ in range(100): tvmdml.round(x)
assert started() == before
names, end = {}, time.monotonic() + 30
while "tvmdml" not in names and time.monotonic() < end:  # a worker has its name from when it first runs
    try:
        names = {open(f"{task}/comm").read().strip(): open(f"{task}/status").read() for task in glob.glob("/proc/self/task/*")}
    except OSError: pass  # a thread has ended meanwhile
blocked = int(names["tvmdml"].partition("SigBlk:")[2].split()[0], 16)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
    assert blocked & 1 << (number - 1), number
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
""")


@pytest.mark.full
@pytest.mark.parametrize(
    "ending",
    [
        "atexit.register(lambda: print(np.array_equal(tvmdml.round(x), expected)))",
        "for _ in range(3): threading.Thread(target=forever, daemon=True).start()",
    ],
    ids=["atexit", "daemons"],
)
def test_the_process_ends(ending: str) -> None:
    assert program(ending) in ("", "True\n")


# -- How many threads, and what they cost -------------------------------------------------------------------------


def test_idle_threads_burn_nothing(x: np.ndarray) -> None:
    for _ in range(100):
        tvmdml.round(x)

    def burnt() -> float:
        before = time.process_time()
        time.sleep(0.3)
        return time.process_time() - before

    # A thread that spins does so always; another test's thread, or a busy machine, costs a few windows only.
    assert any(burnt() < 0.01 for _ in range(10))


@pytest.mark.parametrize("given", [0, 1])
def test_the_python_pool_makes_do_with_the_threads_it_gets(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    start = threading.Thread.start
    started = itertools.count()

    def refuse(thread: threading.Thread) -> None:
        if next(started) >= given:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(python_pool, "_pool", python_pool._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    met: list[int] = []
    function = python_pool._TASK(lambda number, *_: met.append(number) or 0)
    entry = ctypes.cast(function, ctypes.c_void_p).value
    python_pool.shielded(lambda: python_pool._launch(entry, 0, 5))()
    assert sorted(met) == list(range(5))
    assert next(started) > given


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999"])
def test_a_bad_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TVMDML_NUM_THREADS", text)
    with pytest.raises(InvalidArgument, match=f"TVMDML_NUM_THREADS: given '{text}'; allowed: a number from 1 to 1024"):
        thread_count()


@pytest.mark.parametrize(("granted", "count"), [(None, 8), (3, 3), (8, 8), (100, 8)])
def test_the_number_of_threads_is_the_processors_of_this_process(
    monkeypatch: pytest.MonkeyPatch, granted: int | None, count: int
) -> None:
    monkeypatch.delenv("TVMDML_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(cgroups, "processors", lambda: granted)
    assert thread_count() == count


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_that_may_use_one_processor_starts_no_threads_for_tasks() -> None:
    def limit() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    shields = int(threads.native() is None)  # without the extension, a thread makes the main thread's calls
    program(f"assert thread_count() == 1; assert started() == {shields}", limit, TVMDML_NUM_THREADS="")


@pytest.mark.parametrize(
    ("group", "files", "count"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, 2),
        ("0::/of/the/host", {"cpu.max": "500000 100000"}, 5),
        ("0::/../other", {"cpu.max": "500000 100000"}, 5),
        ("0::/", {"cpu.max": "garbage"}, None),
        ("0::/", {"cpu.max": "1 0"}, None),
        ("0::/", {"cpu.max": ""}, None),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu,cpuacct:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu:/a", {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("5:cpuset:/\n1:cpu:/\n0::/", {"unified/cpu.max": "100000 100000"}, 1),
        ("nonsense", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_time_granted_to_a_control_group(tmp_path: Path, group: str, files: dict[str, str], count: int | None) -> None:
    texts = {"proc/self/cgroup": f"{group}\n", **{f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroups.processors(tmp_path) == count


def test_a_system_without_control_groups_grants_everything(tmp_path: Path) -> None:
    assert cgroups.processors(tmp_path) is None


# -- The pool itself, with tasks in Python ------------------------------------------------------------------------

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, python_pool._TASK, ctypes.c_void_p, ctypes.c_int)


@contextlib.contextmanager
def limit(count: int) -> Iterator[None]:
    """A pool of so many threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_NUM_THREADS", str(count))
        targets.resolve("cpu").tasks()  # which informs the pool
        threads.connected()
        yield
    targets.resolve("cpu").tasks()


def launch(task: Callable[[int], object], count: int) -> int:
    """``TVMBackendParallelLaunch``, with tasks that may raise nothing."""

    def run(number: int, group: object, data: object) -> int:
        return int(bool(task(number)))

    status: list[int] = []
    address = threads.address()
    function = python_pool._TASK(run)
    if threads.native() is None:  # a pool in Python runs no tasks while the main thread waits in a C call
        entry = ctypes.cast(function, ctypes.c_void_p).value
        python_pool.shielded(lambda: status.append(python_pool._launch(entry, 0, count)))()
    else:
        status.append(_LAUNCH(address)(function, None, count))
    return status[0]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_tasks_run_at_the_same_time(count: int) -> None:
    barrier = threading.Barrier(count, timeout=200)
    met: list[int] = []

    def task(number: int) -> None:
        barrier.wait()  # returns only when every task is inside
        met.append(number)

    with limit(count):
        assert launch(task, count) == 0
    assert sorted(met) == list(range(count))


@pytest.mark.full(first=1)
@pytest.mark.parametrize("count", [1, 2, 3, 100, 70_000, 131_071])
def test_every_task_runs_once_however_many_there_are(count: int) -> None:
    met: list[int] = []
    with limit(3):
        assert launch(met.append, count) == 0
    assert sorted(met) == list(range(count))


def test_what_a_task_launches_runs_in_its_own_thread() -> None:
    outer: list[bool] = []

    def task(number: int) -> None:
        own = threading.get_ident()
        inner: list[int] = []
        function = python_pool._TASK(lambda *_: inner.append(threading.get_ident()) or 0)
        _LAUNCH(threads.address())(function, None, 5)
        outer.append(inner == [own] * 5)

    with limit(3):
        launch(task, 6)
    assert outer == [True] * 6


ASSERTED = """
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(limit: T.int64):
    for i in T.parallel(8):
        assert T.Cast("int64", i) < limit, "a task past the limit"
"""


@only_native
def test_an_error_of_a_task_is_raised_by_the_call() -> None:
    tvm = imports.tvm()
    function = importlib.import_module("tvm.script").from_source(ASSERTED)
    executable = tvm.compile(tvm.IRModule({"main": function}), target="llvm")  # with assertions, unlike kernels
    with threads.everywhere():
        entry = executable.jit()["main"]
    cpu = targets.resolve("cpu")
    with limit(3):
        for allowed in (0, 3, 7):
            launch = cpu.launch(entry, (allowed,), ())
            for call in (launch, launch.bind(), functools.partial(entry, allowed)):
                with pytest.raises(RuntimeError, match="a task past the limit"):
                    call()
        cpu.launch(entry, (8,), ())()
