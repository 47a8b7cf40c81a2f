"""Interruptions of a process at any moment: signals, interrupts, cancelled tasks, exit. ``--exhaustive`` tests many moments."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from folders import TESTS
from programs import BARE, assert_consistent, end, moments, program, start


@pytest.fixture
def often(request: pytest.FixtureRequest) -> bool:
    """Whether there is time to run a race over and over."""
    return bool(request.config.getoption("--exhaustive"))


# -- Signals, and asyncio -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_tasks_of_asyncio_share_kernels_and_may_be_cancelled(tmp_path: Path) -> None:
    program(
        """
async def main():
    loop = asyncio.get_running_loop()
    answers = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: answers.append(fine("float32")))
    tasks = [asyncio.create_task(asyncio.to_thread(fine, "float32", "int16")) for _ in range(8)]
    tasks += [loop.run_in_executor(None, fine, "uint8") for _ in range(40)]
    await asyncio.sleep(0.1)
    for task in tasks[::3]:
        task.cancel()
    os.kill(os.getpid(), signal.SIGUSR1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert set(map(type, results)) <= {bool, asyncio.CancelledError} and results.count(True) >= 30, results
    while not answers:
        await asyncio.sleep(0.01)
    assert answers == [True]
    assert await asyncio.to_thread(fine)
asyncio.run(main())
""",
        tmp_path,
    )


@pytest.mark.full
def test_a_signal_handler_may_compile_whatever_is_under_way(tmp_path: Path) -> None:
    program(
        """
answers = []
def compile_then_ask_again(*_):
    answers.append(fine("float32", "uint8"))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
signal.signal(signal.SIGALRM, compile_then_ask_again)
signal.signal(signal.SIGCHLD, lambda *_: answers.append(fine("float32")))  # the linker's end
signal.setitimer(signal.ITIMER_REAL, 0.3)
assert fine("float32", "int32")
signal.setitimer(signal.ITIMER_REAL, 0)
signal.raise_signal(signal.SIGCHLD)
assert answers and all(answers), answers
""",
        tmp_path,
    )


_NEEDED = {
    "an operator": (0.1, "return tvmdml.round(x).tolist() == [2, 0, 1, 2, 2]"),
    "a graph": (
        0.25,
        """
    made = tvmdml.Graph()
    run = made.compile([tvmdml.round(made.input((5,), name="x"))], target="cpu")
    return run({"x": x})[0].tolist() == [2, 0, 1, 2, 2]""",
    ),
    "a model": (
        0.4,
        """
    import tvmdml.onnx
    return tvmdml.onnx.load(sys.argv[1])(x=x)[0].tolist() == [2, 0, 1, 2, 2]""",
    ),
}
"""What a handler and the program need at once: seconds that it takes, and how it is found right."""


@pytest.mark.full
@pytest.mark.parametrize("what", _NEEDED)
def test_a_signal_handler_may_need_what_is_being_imported(cache_dir: Path, tmp_path: Path, often: bool, what: str) -> None:
    """At any moment of the first call: each attempt is a child that has only ``import tvmdml`` behind it."""
    last, body = _NEEDED[what]
    if what == "a model":
        onnx: Any = pytest.importorskip("onnx", reason="ONNX is not installed")
        text = '<ir_version: 8, opset_import: ["": 17]> rounded (float[n] x) => (float[n] y) { y = Round(x) }'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    code = (
        f"""
def works():
    {body}
"""
        + """
def interrupted(moment):
    answers = []
    signal.signal(signal.SIGVTALRM, lambda *_: answers.append(works()))
    signal.setitimer(signal.ITIMER_VIRTUAL, moment)
    return works() and all(answers)
assert child(works) == 0  # the kernel is there
for moment in map(float, sys.argv[2:]):
    assert child(lambda: interrupted(moment)) == 0, moment
"""
    )
    program(code, cache_dir, tmp_path / "model.onnx", *moments(50 if often else 8, last), preface=BARE)


@pytest.mark.full
def test_a_process_that_blocks_all_signals_compiles(tmp_path: Path) -> None:
    program("signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nassert fine()", tmp_path)


@pytest.mark.full
def test_signals_that_interrupt_system_calls_are_waited_out(tmp_path: Path) -> None:
    holding = """
with stores.DiskStore().lock("ab" * 20):
    print("held", flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    open(sys.argv[2], "w").close()
"""
    waiting = """
hits = []
def hit(*_):
    hits.append(1)
    if len(hits) == 20: open(sys.argv[1], "w").close()
with stores.DiskStore().lock("cd" * 20): pass  # all of it is imported
signal.signal(signal.SIGALRM, hit)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
with stores.DiskStore().lock("ab" * 20):
    print(os.path.exists(sys.argv[2]))
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    holder = start(holding, tmp_path, tmp_path / "enough", tmp_path / "over")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert program(waiting, tmp_path, tmp_path / "enough", tmp_path / "over") == "True\n"
    end(holder)


_INTERRUPTED = """
moments = [float(text) for text in sys.argv[2:]]
if sys.argv[1] != "import":
    imports.tvm()
    tvmdml.round(x)
def attempt(moment):
    os.environ["TVMDML_CACHE_DIR"] += f"/{moment}"
    later = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    how = "done"
    try:
        later.start()
        assert fine("float32", "int16")
        later.join()
        time.sleep(0.01)
    except KeyboardInterrupt:
        how = "interrupted"
    assert fine("float32", "int16")
    assert gc.isenabled() and not [f for f in sys.meta_path if type(f).__module__.startswith("tvmdml")]
    print(how)
    return True
for moment in moments:
    sys.stdout.flush()
    assert child(lambda: attempt(moment)) == 0, moment
"""


@pytest.mark.full
@pytest.mark.parametrize(("what", "last", "few"), [("import", 1.6, 2), ("compile", 0.3, 6)])
def test_an_interrupt_at_any_moment_leaves_all_in_order(tmp_path: Path, often: bool, what: str, last: float, few: int) -> None:
    printed = program(_INTERRUPTED, tmp_path, what, *moments(50 if often else few, last)).split()
    assert "interrupted" in printed
    for folder in tmp_path.iterdir():
        if folder.name not in ("kernels", "CACHEDIR.TAG"):  # that were compiled before
            assert assert_consistent(folder) >= 2


_ENDED = """
print("begun", flush=True)
def load():
    time.sleep(0.5)
    exec("pass")  # makes Python forget that an interrupt ended the program, as what is imported does
from tvmdml import system
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
"""
_ENDINGS = {
    "not caught": ("system.apart(load)", -signal.SIGINT, "KeyboardInterrupt"),
    "not caught while another thread works": ("daemon(system.imported, load)\ntime.sleep(5)", -signal.SIGINT, "KeyboardInterrupt"),
    "caught": ("try: system.apart(load)\nexcept KeyboardInterrupt: pass", 0, ""),
    "an exit instead": ("try: system.apart(load)\nexcept KeyboardInterrupt: sys.exit(3)", 3, ""),
    "an error instead": ("try: system.apart(load)\nexcept KeyboardInterrupt: raise ValueError from None", 1, "ValueError"),
}


@pytest.mark.full(first=1)
@pytest.mark.parametrize("ending", _ENDINGS)
def test_a_program_ends_by_an_interrupt_that_it_does_not_catch(tmp_path: Path, ending: str) -> None:
    code, status, last = _ENDINGS[ending]
    process = start(_ENDED + code, tmp_path, preface=BARE)
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said.strip().split("\n")[-1]) == (status, last), said


_PROGRAMS = {
    "calls": """
import tvmdml
tvmdml.top_k  # which imports NumPy where no interrupt comes: some of its own imports make an ImportError of one
import numpy as np
for k in range(1, 9): tvmdml.top_k(np.arange(9, dtype="float32"), k)
""",
    "the command": "from tvmdml.cli import main\nmain(['run', sys.argv[1]])",
}


@pytest.mark.full
@pytest.mark.parametrize("what", _PROGRAMS)
def test_an_interrupt_at_any_moment_is_the_end_of_a_program(tmp_path: Path, often: bool, what: str) -> None:
    code, ends = "import sys\nprint('begun', flush=True)\n" + _PROGRAMS[what], set()
    for number, moment in enumerate(moments(75 if often else 6, 2.4)):
        process = start(code, tmp_path / str(number), TESTS / "models" / "top_k.json", preface="")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
        ends.add(process.returncode)
        last = {-signal.SIGINT: ("KeyboardInterrupt", ""), 130: ("interrupted",), 0: ("",)}.get(process.returncode, ())
        assert said.strip().split("\n")[-1] in last, said
    assert ends - {0}


@pytest.mark.full
def test_an_interrupt_ends_the_wait_for_another_process(tmp_path: Path) -> None:
    printed = program(
        """
import subprocess
kept = {}
class Known(stores.DiskStore):
    def lock(self, digest):
        if not kept:  # somebody else has it, and goes on having it
            code = "import sys, time; from tvmdml.system.disk import stores; held = stores.DiskStore().lock(sys.argv[1]); " \\
                   "held.__enter__(); print(flush=True); sys.stdin.read()"
            kept["other"] = subprocess.Popen([sys.executable, "-c", code, digest], stdin=-1, stdout=-1)
            kept["other"].stdout.readline()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return super().lock(digest)
stores.DiskStore = Known
try:
    fine("float32")
except KeyboardInterrupt:
    print("interrupted", kept["other"].poll())
kept["other"].communicate()
assert fine("float32")
print(finding.compiled_count)
""",
        tmp_path,
    )
    assert printed.split() == ["interrupted", "None", "1"]
    assert assert_consistent(tmp_path) == 1


# -- The end ------------------------------------------------------------------------------------------------------

ENDS = {
    "while threads compile": "for _ in range(2): daemon(fine, 'float32', 'float16', 'int32', 'uint8', 'int8')\ntime.sleep(moment)",
    "while threads run": "assert fine()\nfor _ in range(3): daemon(forever)\ntime.sleep(moment / 4)",
    "while atexit's functions call": "atexit.register(lambda: fine('float32', 'uint8'))\ndaemon(forever)\ntime.sleep(moment / 4)",
    "by sys.exit in a thread": "threading.Thread(target=lambda: fine() and sys.exit(3)).start()\ndaemon(forever)",
    "by os._exit": "daemon(fine)\ndaemon(forever)\ntime.sleep(moment)\nos._exit(0)",
    "with everything held by a module": """
desc = tvmdml.TensorDesc("float32", x.shape)
operator = tvmdml.compile(tvmdml.ElementWiseRound(input_tensor=desc, output_tensor=desc, rounding_mode=tvmdml.RoundingMode(0)))
sys.modules["held"] = cycle = [operator, operator.bind(x, x.copy()), tvmdml.round, compiler]
cycle.append(cycle)
class Late:
    def __del__(self):
        operator(x, x.copy())
held_to_the_end = Late()
""",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("native", ["native", "in Python"])
def test_the_process_ends_well(tmp_path: Path, often: bool, native: str) -> None:
    code = """
large = np.arange(300_000, dtype="float32") / 4
def forever():
    while True:
        tvmdml.round(large)
imports.tvm()
faulthandler.cancel_dump_traceback_later()  # a child that ends would wait for its thread, which is the parent's
for how, moment in ENDS:
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        break
    if (code := code_of(process)) != 0:
        print(f"{how} after {moment}: {code}")
else:
    os._exit(0)
signal.alarm(100)
os.environ["TVMDML_CACHE_DIR"] += f"/{abs(hash(how))}{moment}"
exec(how)
"""
    each = [
        (how, moment + 0.02) for how in ENDS.values() for moment in (moments(20 if often else 1, 0.4) if "moment" in how else [0.0])
    ]
    assert program(f"ENDS = {each!r}\n" + code, tmp_path, TVMDML_DISABLE_NATIVE=str(int(native != "native"))) == ""


@pytest.mark.full
def test_an_interrupt_ends_the_compilation_of_a_graph_and_loses_no_kernel(tmp_path: Path) -> None:
    printed = program(
        """
graph = tvmdml.Graph()
y = x = graph.input((8, 8))
for axis in (0, 1):
    y = tvmdml.activation_softmax(tvmdml.top_k(y, 8, axis=axis).values, axes=[axis])
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    graph.compile(y)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted")
print(graph.compile(y)([np.eye(8, dtype=np.float32)])[0].shape)
""",
        tmp_path,
    )
    assert printed == "interrupted\n(8, 8)\n"
