"""Many threads, processes and devices, and forks. With ``--exhaustive``, races are run far more often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import BARE, assert_consistent, moments, program, start

from tvmdml.system.disk import stores


@pytest.fixture
def often(request: pytest.FixtureRequest) -> bool:
    """Whether there is time to run a race over and over."""
    return bool(request.config.getoption("--exhaustive"))


# -- Many at once -------------------------------------------------------------------------------------------------

STORM = """
processes, threads, most = map(int, sys.argv[1:])
def cases():
    for dtype in ("float32", "float16"):
        values = (np.arange(-30, 30) / 4).astype(dtype)
        yield lambda v=values: np.array_equal(tvmdml.round(v), np.rint(v))
        desc = tvmdml.TensorDesc(dtype, values.shape)
        def bound(v=values, desc=desc):
            out = np.empty_like(v)
            down = tvmdml.RoundingMode.TOWARD_ZERO
            operator = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=down))
            operator(v, out)
            first, out[:] = out.copy(), 0
            operator.bind(v, out)()
            return np.array_equal(first, np.trunc(v)) and np.array_equal(out, np.trunc(v))
        yield bound
    for dtype in ("int32", "uint8", "float64", "int8", "uint16"):
        values = np.random.default_rng(1).permutation(100).astype(dtype)
        yield lambda v=values: tvmdml.top_k(v, 3).values.tolist() == [99, 98, 97]
        yield lambda v=values: np.array_equal(tvmdml.top_k(v, 100, axis_direction="increasing").values, np.sort(v))
        table = np.where(values.reshape(10, 10) < 50, values.reshape(10, 10), 0)
        yield lambda t=table: np.array_equal(tvmdml.nonzero_coordinates(t), np.argwhere(t))
        yield lambda t=table: np.array_equal(
            tvmdml.diagonal_matrix(t, value=0, diagonal_fill_begin=1, diagonal_fill_end=2**31 - 1), np.tril(t))
def storm():
    todo, wrong = list(cases())[:most], []
    def work(number):
        order = random.Random(number).sample(todo, len(todo))
        for case in order:
            try:
                if not case():
                    wrong.append("a wrong result")
            except BaseException as error:
                wrong.append(repr(error))
    callers = [threading.Thread(target=work, args=(os.getpid() * 100 + number,)) for number in range(threads)]
    for caller in callers: caller.start()
    for caller in callers: caller.join()
    assert not wrong, wrong[:3]
    os.write(1, b"%d\\n" % finding.compiled_count)  # at once: print may write a number and its end separately
    return True
imports.tvm()
assert [code_of(one) for one in [begin(storm) for _ in range(processes)]] == [0] * processes
"""


def storm(folder: Path, often: bool, **variables: str) -> int:
    """Have processes with threads ask for the same kernels in one cold cache; how many they compiled, all together."""
    return sum(map(int, program(STORM, folder, *((10, 32, 99) if often else (3, 8, 8)), **variables).split()))


@pytest.mark.full
def test_all_processes_and_threads_together_compile_each_kernel_once(tmp_path: Path, often: bool) -> None:
    assert storm(tmp_path, often) == assert_consistent(tmp_path)


@pytest.mark.full
def test_a_cache_that_holds_next_to_nothing_serves_everybody(tmp_path: Path, often: bool) -> None:
    compiled = storm(tmp_path, often, TVMDML_CACHE_SIZE="20K")
    store = stores.DiskStore(tmp_path, 20 << 10)
    store.prune()
    assert assert_consistent(tmp_path) < compiled
    assert sum(entry.size for entry in store.entries()) <= 20 << 10


@pytest.mark.full
def test_a_cache_that_is_cleared_all_the_time_serves_everybody(tmp_path: Path, often: bool) -> None:
    clearing = """
from tvmdml import cli
import contextlib, io
print("begun", flush=True)
while True:
    for command in (["cache", "clear"], ["cache", "prune"]):
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(command, standalone_mode=False)
    time.sleep(0.01)
"""
    vandal = start(clearing, tmp_path)
    try:
        assert vandal.stdout is not None
        assert vandal.stdout.readline() == "begun\n"
        storm(tmp_path, often)
        assert vandal.poll() is None
    finally:
        vandal.kill()
        said = vandal.communicate()[1]
    assert said == ""
    assert_consistent(tmp_path)


# -- Fork ---------------------------------------------------------------------------------------------------------

_FORKED = """
def forks(moment):
    os.environ["TVMDML_CACHE_DIR"] += f"/{moment}"
    worker = threading.Thread(target=fine, args=("float32", "float16", "int32"))
    worker.start()
    time.sleep(moment)
    assert child(fine) == 0
    worker.join()
    return fine()
if sys.argv[1] == "compile":
    imports.tvm()
for moment in map(float, sys.argv[2:]):
    assert child(lambda: forks(moment)) == 0, moment
"""


@pytest.mark.full
@pytest.mark.parametrize(("what", "last", "few"), [("import", 1.5, 1), ("compile", 0.5, 3)])
def test_a_child_forked_while_another_thread_compiles_can_compile_too(
    tmp_path: Path, often: bool, what: str, last: float, few: int
) -> None:
    program(_FORKED, tmp_path, what, *moments(30 if often else few, last))


_FIRST_USES = {
    "a function": "tvmdml.round(x).tolist() == [2, 0, 1, 2, 2]",  # 1.5, 0.5, 1, 2.5, 2
    "a descriptor": "tvmdml.TopK1.NAME == 'TOP_K1'",
    "an error": "issubclass(tvmdml.Unsupported, tvmdml.TvmdmlError)",
    "all names": "'top_k' in dir(tvmdml)",
    "no such name": "not hasattr(tvmdml, 'top_q')",
}


@pytest.mark.full
def test_a_child_forked_while_another_thread_imports_for_the_first_time_works(cache_dir: Path, often: bool) -> None:
    """At any moment of the first 50 ms: each attempt is a child that has only ``import tvmdml`` behind it."""
    code = f"""
uses = {[*_FIRST_USES.values()]!r}
def works():
    return eval(use)
def forks(moment):
    worker = threading.Thread(target=works)
    worker.start()
    end = time.perf_counter() + moment
    while time.perf_counter() < end:
        time.sleep(0)
    assert child(works) == 0
    worker.join()
    return works()
assert {{name for name in sys.modules if name.startswith("tvmdml")}} == {{"tvmdml", "tvmdml.system"}}
for use in uses:
    assert child(works) == 0  # the kernel is there
moments = [float(moment) for moment in sys.argv[1:]]
for number, moment in enumerate(moments):
    for use in uses if {often} else uses[number % len(uses)::len(uses)]:
        assert child(lambda: forks(moment)) == 0, (use, moment)
"""
    program(code, cache_dir, *moments(100 if often else 5, 0.002), *moments(100 if often else 8, 0.05), preface=BARE)


def test_a_fork_waits_for_a_module_that_another_thread_imports(tmp_path: Path) -> None:
    """Wherever it is imported; and what the module does while it is imported does not wait for the fork."""
    slow = """
import time
from tvmdml import system
time.sleep(0.3)
with system.whole():
    time.sleep(0.1)
done = system.apart(lambda: system.whole().__enter__() is None)
"""
    (tmp_path / "slow.py").write_text(slow)
    code = f"""
tvmdml.__path__.append({str(tmp_path)!r})
def imports():
    import tvmdml.slow
    return tvmdml.slow.done
worker = threading.Thread(target=imports)
worker.start()
while "tvmdml.slow" not in sys.modules:
    time.sleep(0.001)
begun = time.monotonic()
assert child(imports) == 0
worker.join()
assert imports() and time.monotonic() - begun < 20
"""
    program(code, tmp_path)


@pytest.mark.full
def test_a_child_forked_while_the_store_is_locked_waits_for_its_turn(tmp_path: Path) -> None:
    program(
        """
real, inside, go = finding._build, threading.Event(), threading.Event()
def slow(*given):
    inside.set()
    return real(*given)
class Held(stores.DiskStore):
    from contextlib import contextmanager
    @contextmanager
    def lock(self, digest):
        with super().lock(digest):
            inside.set()
            go.wait(200)
            yield
whole_store, stores.DiskStore = stores.DiskStore, Held
worker = threading.Thread(target=fine, args=("float32",))
worker.start()
assert inside.wait(60)
def works():
    stores.DiskStore = whole_store
    return fine("float32", "uint8")
threading.Timer(0.3, go.set).start()
assert child(works) == 0
worker.join()
stores.DiskStore = whole_store
assert fine("float32", "uint8") and finding.compiled_count == 1
""",
        tmp_path,
    )


@pytest.mark.full(first=1)
@pytest.mark.parametrize(
    "method",
    [pytest.param("fork", marks=pytest.mark.exhaustive), "spawn", pytest.param("forkserver", marks=pytest.mark.exhaustive)],
)
def test_pools_of_processes(tmp_path: Path, method: str) -> None:
    (tmp_path / "main.py").write_text("""
import concurrent.futures, multiprocessing, sys
import numpy as np, tvmdml
def work(number):
    return tvmdml.round(np.array([number + 0.75, 0.25], "float32")).tolist()
if __name__ == "__main__":
    if sys.argv[1] == "fork":
        work(0)
    context = multiprocessing.get_context(sys.argv[1])
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        assert list(pool.map(work, range(8))) == [[number + 1, 0] for number in range(8)]
    process = context.Process(target=work, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0
""")
    command = [sys.executable, str(tmp_path / "main.py"), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# -- Several devices, knobs and packs -----------------------------------------------------------------------------


@pytest.mark.full
def test_threads_on_several_targets_at_once(tmp_path: Path, vulkan: object) -> None:
    program(
        """
from tvmdml.errors import DeviceError
def there(name):
    try:
        tvmdml.round(x, device=name)
        return True
    except DeviceError:
        return False
found = [name for name in ("cpu", "vulkan", "cuda") if there(name)]
assert found[:2] == ["cpu", "vulkan"], found
wrong = []
handed = []
def work(number):
    name = found[number % len(found)]
    try:
        for turn in range(6):
            mine = np.arange(200, dtype="float32") / 4 + number
            there = mine if name == "cpu" else tvmdml.asarray(mine, device=name)
            result = tvmdml.round(there)
            handed.append(result)  # to be dropped by whichever thread comes next
            if not np.array_equal(result if name == "cpu" else result.numpy(), np.rint(mine)): wrong.append(name)
            if len(handed) > 4: handed.pop(0)
            desc = tvmdml.TensorDesc("float32", mine.shape)
            level = "cpu:x86-64-v" + str(2 + (number + turn) % 2) if name == "cpu" else name
            out = np.empty_like(mine)
            operator = tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=tvmdml.RoundingMode.TOWARD_ZERO)
            tvmdml.compile(operator, target=level)(mine, out)
            if not np.array_equal(out, np.trunc(mine)): wrong.append(level)
    except BaseException as error:
        wrong.append(repr(error))
callers = [threading.Thread(target=work, args=(number,)) for number in range(9)]
for caller in callers: caller.start()
for caller in callers: caller.join()
assert not wrong, wrong[:3]
""",
        tmp_path,
    )


def test_knobs_of_threads_that_cross_do_not_stay(tmp_path: Path) -> None:
    program(
        """
one, other = knobs.using(top_k={"rank_k": 1}), knobs.using(pointwise={"task_elements": 1})
one.__enter__()
other.__enter__()
one.__exit__(None, None, None)
assert knobs.in_force() == {"pointwise": {"task_elements": 1}}
other.__exit__(None, None, None)
assert knobs.in_force() == {}
one, other = knobs.untuned(), knobs.untuned()
one.__enter__(); other.__enter__(); one.__exit__(None, None, None)
assert not knobs.logs_count()
other.__exit__(None, None, None)
assert knobs.logs_count()
""",
        tmp_path,
    )


# -- Other interpreters -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_another_interpreter_in_the_process_is_told_no(tmp_path: Path) -> None:
    pytest.importorskip("_xxsubinterpreters", reason="this Python has no module for other interpreters")
    printed = program(
        """
import warnings
import _xxsubinterpreters as interpreters
assert fine("float32")
other = interpreters.create()
interpreters.run_string(other, '''
import warnings
warnings.simplefilter("ignore")
try:
    import numpy as np, tvmdml
    tvmdml.round(np.zeros(3, "float32"))
except Exception as error:
    print(type(error).__name__, error, flush=True)
''')
interpreters.destroy(other)
assert fine()
""",
        tmp_path,
    )
    assert "Error" in printed  # from NumPy itself, or from the runtime
