"""Lack of memory, and threads that cannot be started: an error or the right result, and the next call works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import C

SOURCE = C / "failing_malloc.c"

PROGRAM = """
import ctypes, resource, sys
import numpy as np, tvmdml
from tvmdml import functions
from tvmdml.targets import _quick
everything = ctypes.CDLL(None)
fail_after, fail_no_more = everything.fail_after, everything.fail_no_more
fail_after.argtypes = ctypes.c_long, ctypes.c_long
x = np.random.default_rng(0).standard_normal((64, 4096)).astype("float32")
out = np.empty_like(x)
desc = tvmdml.TensorDesc("float32", x.shape)
compiled = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode="toward_zero"))
bound = compiled.bind(x, out)
CALLS = {
    "round": (lambda: tvmdml.round(x), np.rint(x)),
    "round into": (lambda: tvmdml.round(x, out=out), np.rint(x)),
    "compiled": (lambda: (compiled(x, out), out)[1], np.trunc(x)),
    "bound": (lambda: (bound(), out)[1], np.trunc(x)),
    "top_k": (lambda: tvmdml.top_k(x, 20).values, -np.sort(-x)[:, :20]),
    "sort": (lambda: tvmdml.top_k(x, 4096).values, -np.sort(-x)),
    "nonzero": (lambda: tvmdml.nonzero_coordinates(x), np.argwhere(x)),
    "diagonal": (lambda: tvmdml.diagonal_matrix(sizes=(300, 300)), np.eye(300)),
}

def right(name):
    call, expected = CALLS[name]
    result = call()
    assert np.array_equal(result, expected), name

def anew():
    functions._plans, functions._quick_plans = {}, _quick.plans()

# CPython's own: os.environ.get() where there is no memory.
NOT_OURS = "error return without exception set"

def sweep(name, before, step):
    # Have one allocation after the other fail, until a call has none that does; says how many.
    call, expected = CALLS[name]
    right(name)
    for number in range(0, 100_000, step):
        before()
        problem = None
        fail_after(number, -1)
        try:
            call()
        except BaseException as error:
            problem = error
        failed = fail_no_more()
        expectable = isinstance(problem, (MemoryError, tvmdml.TvmdmlError)) or NOT_OURS in str(problem)
        if problem is not None and not expectable:
            raise problem
        problem = None
        right(name)
        if not failed:
            return number
"""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that has allocations fail."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("it takes a C compiler, and glibc")
    library = tmp_path_factory.mktemp("malloc") / "failing_malloc.so"
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def run(preloaded: Path, code: str, **variables: str) -> list[str]:
    """What a program says in which allocations can fail: Python's own as well, each by itself."""
    environment = {**os.environ, "LD_PRELOAD": str(preloaded), "PYTHONMALLOC": "malloc", "TVMDML_NUM_THREADS": "2", **variables}
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split()


@pytest.mark.full
def test_any_allocation_of_a_call_may_fail(preloaded: Path) -> None:
    counts = run(
        preloaded,
        """
for name in CALLS:
    print(sweep(name, lambda: None, 1))
for name in ("round", "top_k"):
    print(sweep(name, anew, 7))
""",
    )
    assert max(map(int, counts[:-2])) > 4, "calls that allocate nothing"
    assert min(map(int, counts[-2:])) > 100


@pytest.mark.exhaustive
def test_any_allocation_of_a_plan_may_fail(preloaded: Path) -> None:
    run(preloaded, "for name in CALLS: print(sweep(name, anew, 1))")


@pytest.mark.full
def test_a_thread_that_begins_needs_no_memory(preloaded: Path) -> None:
    """It may begin at any time, and what the loader cannot allocate for a thread's variables ends the process."""
    code = """
pool = "tvmdml"  # the name of its threads
def names():
    return [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
everything.hold_threads()
right("bound")
assert pool not in names(), "it has begun"
print(everything.fail_elsewhere(1_000_000))
while pool not in names():
    pass
for name in CALLS:
    right(name)
print("fine")
"""
    assert run(preloaded, f"import os\n{code}") == ["0", "fine"]


@pytest.mark.full
@pytest.mark.parametrize("given", [0, 1])
def test_threads_that_the_system_refuses_are_done_without(preloaded: Path, given: int) -> None:
    code = f"""
fail_after(-1, {given})
right("bound")
assert fail_no_more(), "no thread was asked for"
for name in CALLS:
    fail_after(-1, 0)  # the compiler may ask for one, too
    right(name)
fail_no_more()
for name in CALLS:
    right(name)
print("fine")
"""
    assert run(preloaded, code, TVMDML_NUM_THREADS="3") == ["fine"]


@pytest.mark.full
def test_a_process_that_may_have_no_more_memory_says_so_and_goes_on(preloaded: Path) -> None:
    found = run(
        preloaded,
        """
big = np.zeros((24 << 20,), "float32")  # larger than anything that malloc has put by

def work():
    tvmdml.round(big)
    tvmdml.top_k(big, 3)
    tvmdml.nonzero_coordinates(big)

work()
for name in CALLS:
    right(name)
sizes = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize")]
before = resource.getrlimit(resource.RLIMIT_AS)
refused = 0
for more in range(0, 400 << 20, 80 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (sizes[0] + more, before[1]))
    try:
        work()
    except (MemoryError, tvmdml.TvmdmlError):
        refused += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    for name in CALLS:
        right(name)
work()
print(refused)
""",
        PYTHONMALLOC="default",
    )
    assert int(found[0]) > 0


@pytest.mark.full
def test_a_first_call_ends_whatever_memory_is_left(preloaded: Path) -> None:
    found = run(
        preloaded,
        """
import os, signal, sys
from tvmdml.system import imports
imports.tvm()  # an import that memory runs out in cannot be repeated: TVM's libraries stay half known

def first(limit):
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        tvmdml.round(np.arange(6, dtype="float32") / 4)
    except (MemoryError, tvmdml.TvmdmlError):
        print("refused")
    resource.setrlimit(resource.RLIMIT_AS, before)
    result = tvmdml.round(np.arange(6, dtype="float32") / 4)  # of no kernel that the parent has
    return result.tolist() == [0, 0, 0, 1, 1, 1]

sizes = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize")]
before = resource.getrlimit(resource.RLIMIT_AS)
root = os.environ["TVMDML_CACHE_DIR"] + "/first"
for more in (0, 1, 4, 8.1, 9, 12, 32, 80):  # a thread takes 8 MiB
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        os.environ["TVMDML_CACHE_DIR"] = f"{root}-{os.getpid()}"
        ok = first(sizes[0] + int(more * (1 << 20)))
        sys.stdout.flush()
        os._exit(0 if ok else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, (more, code)
print("over")
""",
        PYTHONMALLOC="default",
    )
    assert found[-1] == "over"
    assert "refused" in found, "there was memory all the time"


@pytest.mark.full
def test_work_in_another_thread_is_answered_whatever_allocation_fails(preloaded: Path) -> None:
    counts = run(
        preloaded,
        """
import faulthandler
from tvmdml import system
faulthandler.dump_traceback_later(120, exit=True)
sys.unraisablehook = lambda *_: None  # a thread that had no memory to begin says so
assert system.apart(lambda: 3) == 3
for step in (1, 3):
    for number in range(0, 10_000, step):
        result = None
        fail_after(number, -1)
        try:
            result = system.apart(lambda: 3)
        except BaseException as error:
            assert isinstance(error, MemoryError) or NOT_OURS in str(error), repr(error)
        failed = fail_no_more()
        assert result in (3, None) and not system._under_way
        if not failed:
            break
    print(number)
""",
    )
    assert int(counts[0]) > 10
