"""The C code under the compiler's sanitizers: AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer.

The thread pool runs alone (``c/stress_pool.c``). The extension runs in a separate Python process, in place of the installed one.
(``test_pack_header`` builds the C code of packs with the sanitizers.)
"""

from __future__ import annotations

import ctypes
import gc
import os
import reprlib
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from folders import TESTS
from support import at_once, round_desc

import tvmdml
from tvmdml import TensorDesc, targets
from tvmdml.library import finding
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._contract import Shared
from tvmdml.system import imports
from tvmdml.targets.cpu import threads

NATIVE = TESTS.parent / "tvmdml" / "targets" / "cpu" / "native"
STRICT = ("-std=c11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def _built(folder: Path, sanitizer: str, *arguments: object) -> Path:
    """What gcc makes of these files with a sanitizer; skips the test where it has none that works."""
    out = folder / "built.so"  # so that Python recognises it as an extension, if it is one
    flags = f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"
    trial = folder / "trial.c"
    trial.write_text("int main(void) { return 0; }\n")
    try:
        subprocess.run(["gcc", *flags, str(trial), "-o", str(folder / "trial")], capture_output=True, check=True)
        subprocess.run([str(folder / "trial")], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"gcc has no {sanitizer} sanitizer that works here: {error}")
    done = subprocess.run(
        ["gcc", *STRICT, *flags, *map(str, arguments), "-o", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


def _said(*command: object, **environment: str) -> str:
    """What a process says, which must end well and in good time."""
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


# -- The pool -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_pool_under_stress(sanitizer: str, tmp_path: Path) -> None:
    program = _built(tmp_path, sanitizer, f"-I{NATIVE}", TESTS / "c" / "stress_pool.c", NATIVE / "pool.c")
    assert "15 workers" in _said(program, "threads", 0.4, **OPTIONS)
    assert "3 workers" in _said(program, "fork", 0.4, **OPTIONS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_pool_under_much_stress(sanitizer: str, tmp_path: Path) -> None:
    program = _built(tmp_path, sanitizer, f"-I{NATIVE}", TESTS / "c" / "stress_pool.c", NATIVE / "pool.c")
    for way in ("threads", "fork"):
        _said(program, way, 60, **OPTIONS)


@pytest.mark.full
def test_a_race_is_seen(tmp_path: Path) -> None:
    """A pool that does not wait in the right order is found out."""
    pool, right = (NATIVE / "pool.c").read_text(), "atomic_fetch_sub(&slot->pending, 1)"
    assert right in pool
    wrong = tmp_path / "pool.c"
    wrong.write_text(pool.replace(right, "atomic_fetch_sub_explicit(&slot->pending, 1, memory_order_relaxed)"))
    program = _built(tmp_path, "thread", f"-I{NATIVE}", TESTS / "c" / "stress_pool.c", wrong)
    with pytest.raises(AssertionError, match="data race"):
        _said(program, "threads", 0.4, **OPTIONS)


# -- What carries the pool elsewhere -------------------------------------------------------------------------------


@pytest.mark.full
def test_the_guard_of_a_server(tmp_path: Path) -> None:
    program = _built(tmp_path, "address", f"-I{NATIVE}", TESTS / "c" / "call_guard.c")
    assert _said(program, **OPTIONS) == "all was well\n"


# -- The extension ------------------------------------------------------------------------------------------------

F = np.dtype(np.float32)
SHAPE, STRIDES = (2, 3), (12, 4)
FORMS = ((F, SHAPE, STRIDES, False), (F, SHAPE, STRIDES, True))


class _Hostile:
    """Hashes as it likes, and does something more when it goes."""

    def __init__(self, hashed: Callable[[], int], gone: Callable[[], object] = lambda: None) -> None:
        self._hashed, self._gone = hashed, gone

    def __hash__(self) -> int:
        return self._hashed()

    def __del__(self) -> None:
        self._gone()


def _interrupted() -> int:
    raise KeyboardInterrupt


def _found(sizes: tuple[int, ...], shared: Shared = ()) -> tuple[Any, tuple[int, ...]]:
    """A kernel that rounds so many numbers, with its integers."""
    cpu = targets.resolve("cpu")
    kernel = kernel_for(round_desc(TensorDesc("float32", sizes)), cpu, shared)
    launcher: Any = finding.find(kernel, cpu)
    return launcher, kernel.scalars


def _calls() -> Iterator[Callable[[], object]]:
    """Every entry of the extension, with what is right and with what is wrong. Some raise an error, and some say no."""
    native = threads.joined()
    assert native is not None, threads.state()
    launcher, scalars = _found(SHAPE)
    launch = native.Launch(launcher, scalars, ())
    x, y = np.full(SHAPE, 1.5, np.float32), np.zeros(SHAPE, np.float32)
    arguments: list[tuple[Any, ...]] = [(launcher, scalars, sizes) for sizes in ((), (1, 100), (1 << 40,), (0,) * 32)]
    arguments += [(), (launcher,), ("x", (), ()), (SimpleNamespace(__chandle__=lambda: "x"), (), ()), (launcher, [], ())]
    arguments += [(launcher, of, ()) for of in ((0,) * 257, (1 << 63,), ("1",), (None,))]
    arguments += [(launcher, (), of) for of in ((0,) * 33, (-1,), (1 << 64,), ("1",), ((1 << 63) - 64,) * 2)]
    yield from (lambda of=of: native.Launch(*of) for of in arguments)
    yield lambda: native.Launch(kernel=launcher, scalars=scalars, temporaries=())
    for call in (launch, launch.bind):
        yield lambda call=call: call(x, y)
        yield from (lambda call=call, of=of: call(*of) for of in ((None,), (x, [0.0]), (x,) * 1025, (np.float32(1),)))
        yield lambda call=call: call(x, output=y)
    yield launch.bind(x, y)
    yield lambda: launch.bind(x, y)()
    yield lambda: launch.bind(x, y)(1)
    yield lambda: launch.bind(x, y)(a=1)

    # Forms of arrays, and objects that are not valid forms.
    fit = launch.fit(FORMS)
    yield lambda: launch.fit(FORMS)
    of_array: list[Any] = [None, (), 1, "form", (F,), (F, SHAPE, STRIDES), (F, [2, 3], STRIDES, 0), (None, SHAPE, STRIDES, 0)]
    of_array += [(F, SHAPE, (4,), 0), (F, (0, 3), STRIDES, 0), (F, SHAPE, (-4, 4), 0), (F, (1,) * 65, (4,) * 65, 0)]
    of_array += [(F, ("2",), (4,), 0), (np.dtype(">f4"), SHAPE, STRIDES, 0), (F, (1 << 64,), (4,), 0), (F, (1,) * 64, (4,) * 64, 0)]
    yield from (lambda form=form: launch.fit((FORMS[0], form)) for form in of_array)
    yield from (lambda of=of: launch.fit(of) for of in (None, [], (), FORMS * 40))
    yield lambda: native.Fit(launch, FORMS)
    yield from (lambda of=of: native.Fit(*of) for of in ((), (1, FORMS), (launch,), (launch, FORMS, 1)))
    yield lambda: native.Fit(launch, forms=FORMS)
    given: list[tuple[Any, ...]] = [(x, y), (), (x,), (x, y, y), (x, x), (None, y), (x, None), (x.T, y), ([1.0], y)]
    given += [
        (x, y[:, ::-1]),
        (x.astype(">f4"), y),
        (x.astype("M8[s]"), y),
        (x.reshape(6), y),
        (np.zeros(()), y),
        (np.zeros((1,) * 32, F), y),
    ]
    yield from (lambda of=of: fit(*of) for of in given)
    yield lambda: fit(x, output=y)
    point, of_points = np.array(1.5, np.float32), native.Launch(*_found((1,)), ()).fit(((F, (), (), False), (F, (), (), True)))
    yield lambda: of_points(point, np.array(7, np.float32))

    # Plans.
    plans = native.Plans()
    wanted = ((SHAPE, F),)

    def describe() -> None:
        pass

    plans.add(describe, None, ("a", 1, 2.5, (b"b", None)), (x,), None, launch, wanted)
    plans.add(describe, "cpu", (), (x,), y, launch, wanted)
    yield lambda: plans(describe, None, ("a", 1, 2.5, (b"b", None)), (x,), None)
    yield lambda: plans(describe, "cpu", (), (x,), y)
    yield lambda: plans(describe, "cpu", (), (x,), (y,))
    yield lambda: plans(describe, "cpu", (), (y,), y)
    yield lambda: plans.one(describe, None, None, 1, x, "a", 1, 2.5, (b"b", None))
    yield from (lambda of=of: plans.one(describe, "cpu", of, 1, x) for of in (y, (y,), (y, y), (), 1))
    yield from (lambda of=of: plans.one(describe, "cpu", y, of, x) for of in (0, 2, -1, 1 << 70, True, None, "1"))
    yield from (lambda of=of: plans.one(*of) for of in ((), (describe, None, None), (describe, None, None, 1, x, [])))
    yield lambda: plans.one(describe, None, None, 1, x, _Hostile(_interrupted))
    plans.add(describe, None, (8,), (x, y), None, launch, ())
    yield lambda: plans.one(describe, None, None, 2, x, y, 8)
    parts = ((), (1,) * 4, (1,) * 5, (describe, None, (), [x], None), (describe, None, (), (x,), ()))
    yield from (lambda of=of: plans(*of) for of in parts)
    attributes: tuple[Any, ...] = (([],), (float("nan"),), ((1, [2]),), (_Hostile(lambda: 7),))
    yield from (lambda of=of: plans(describe, None, of, (x,), None) for of in attributes)
    yield lambda: plans(describe, None, (_Hostile(_interrupted),), (x,), None)
    yield lambda: plans(describe, None, (), (x,) * 70, None)
    yield lambda: plans(describe, None, (), (None, 1), None)
    yield lambda: plans.add(describe, None, (1,), (x,), None, launch, wanted)
    results: tuple[Any, ...] = ((), (1,), ((),), ((SHAPE, F, 1),), [])
    yield from (lambda of=of: plans.add(describe, None, (2,), (x,), None, launch, of) for of in results)
    yield from (lambda of=of: plans.add(*of) for of in ((), (1,) * 7, (describe, None, (), (x,), None, None, wanted)))
    yield lambda: plans.add(describe, None, ([],), (x,), None, launch, wanted)
    yield lambda: plans.add(describe, None, (), (x.astype(">f4"),), None, launch, wanted)
    yield lambda: plans.add(describe, None, (), (x[:0],), None, launch, wanted)
    yield lambda: plans.add(describe, None, (), (x[:, ::-1],), None, launch, wanted)
    # In place, and numbers.
    in_place = native.Launch(*_found(SHAPE, (("input_tensor", "output_tensor"),)), ())
    plans.add(describe, None, (5,), (y,), y, in_place, wanted)
    yield lambda: plans(describe, None, (5,), (y,), y)
    yield from (lambda of=of: plans(describe, None, (5,), (of,), y) for of in (x, 1.5, None))
    one, of_one = np.array(1.5, np.float32), native.Launch(*_found((1,)), ())
    plans.add(describe, None, (6,), (2.5,), None, of_one, (((1,), F),), (one,))
    yield from (lambda of=of: plans(describe, None, (6,), (of,), None) for of in (2.5, 3, True, 1 << 2000, x))
    yield from (
        lambda of=of: plans.add(describe, None, (7,), (2.5,), None, of_one, wanted, of) for of in ((), (x,), (None,), [one])
    )
    yield lambda: plans.add(describe, None, (7,), (2.5,), None, of_one, wanted)
    plans.add(describe, None, (4,), (x,), None, launch, (((-1,), F),))  # results that cannot be allocated
    yield lambda: plans(describe, None, (4,), (x,), None)
    yield native.Plans

    # A kernel that fails: the runtime keeps its error, or Python does.
    def failing(*_: object) -> None:
        raise ValueError("as it should be")

    bad = imports.tvm_ffi().convert(failing)
    yield native.Launch(bad, (), ()).bind(x, y)
    yield native.Launch(bad, (), (100, 3)).bind(np.zeros(5000, np.float32))
    bad_step = (native.Launch(bad, (), (100, 3)), ((0, 0),))
    yield native.Sequence((bad_step, bad_step), 1).bind([x])
    yield lambda: native.Sequence((bad_step,), 1).timed([x])

    # Sequences, of good steps and of what are none.
    step = (launch, ((0, 0), (1, 0)))
    run = native.Sequence((step, step), 2)
    yield lambda: native.Sequence((step,) * 3000, 2)
    yield lambda: native.Sequence(steps=(step,), slots=1 << 12)
    yield lambda: native.Sequence(((*step, (24, 24)),), 2)
    of_steps: list[Any] = [(), None, [step], (1,), ((),), ((launch,),), ((launch, ()),), ((launch, [(0, 0)]),), ((None, ()),)]
    of_steps += [((launch, (place,)),) for place in (None, (), (0,), ("0", 0), (0, None), (2, 0), (-1, 0), (0, -1), (1 << 70, 0))]
    of_steps += [(step, (launch, ((0, 1 << 70),))), (step, (launch, ((0, 0),) * 1025)), (step, (launch, 1), step)]
    yield from (lambda of=of: native.Sequence(of, 2) for of in of_steps)
    yield from (lambda of=of: native.Sequence(*of) for of in ((), ((),), ((), -1), ((), 1 << 40), ((), "1"), ((step,), 0)))
    far = native.Sequence(((launch, ((0, 0), (1, 24))),), 2)
    for once in (run, run.timed, lambda of: run.bind(of)()):
        yield lambda once=once: once((x, y))
        yield from (lambda once=once, of=of: once(of) for of in (1, (), (x,), (x, y, y), (x, None), [x, [1.0]], iter((x, y))))
    yield lambda: run()
    yield lambda: run((x, y), (x, y))
    yield lambda: run(arrays=(x, y))
    yield lambda: run.bind((x, y))(1)
    yield lambda: far((x, y))
    yield lambda: far((x, np.zeros((4, 3), np.float32)))
    with_room = native.Launch(_found(SHAPE)[0], (), (100, 3))
    yield native.Sequence(((native.Launch(launcher, scalars, ()), step[1]),), 2).bind((x, y))
    yield lambda: native.Sequence(((with_room, ()),), 0)

    yield lambda: native.inspect(x)
    yield from (lambda of=of: native.set_limit(of) for of in (3, 1 << 70, "1", None))
    yield native.started
    yield from (lambda of=of: native.connect(*of) for of in ((), (1, 2, 3, 4, 5), (1, int, 3, 4, "5")))
    yield from (lambda of=of: native.join(*of) for of in ((), (1, 2), (1, 2, 3, 4, "5")))

    # Libraries of kernels.
    yield from (lambda of=of: native.Library(*of) for of in ((), (1,), ("/nowhere.so",), (__file__,), ("a\0b",), ("a", "b")))
    libc = native.Library("libc.so.6")
    yield lambda: native.Library(path="libc.so.6")
    yield from (lambda of=of: libc.kernel(of) for of in ("main", "m" * 300, "\udc80", 1, b"main"))
    yield lambda: native.Launch(launcher, (), ()).bind(x).kernel
    yield lambda: launcher.address
    yield native.Kernel


def call_everything(times: int = 50) -> None:
    """Every entry, again and again; then from several threads, with plans that go while they are in use."""
    for call in _calls():
        for _ in range(times):
            with suppress(Exception, KeyboardInterrupt):
                call()
    native: Any = threads.connected()
    native.set_limit(4)
    plans, launch, x = native.Plans(), native.Launch(*_found(SHAPE), ()), np.full(SHAPE, 1.5, np.float32)
    # There are few slots: adding entries evicts others, whose destruction adds more entries.
    for i in range(5000):
        again = _Hostile(lambda: 1, lambda i=i: plans.add(len, None, (i,), (x,), None, launch, ((SHAPE, F),)))
        plans.add(again, None, (i,), (x,), None, launch, ((SHAPE, F),))
        del again
        plans(len, None, (i - 1,), (x,), None)

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for length in rng.integers(1, 30_000, 6):  # scratch memory that grows, and is freed with its thread
            values = rng.standard_normal(length).astype(np.float32)
            assert np.array_equal(np.sort(values), _sorted(values))
            for i in range(100):
                plans.add(len, None, (i,), (values,), None, launch, ())
                plans(len, None, (i + number,), (x,), None)

    at_once(work, 5)
    print(f"called everything, with {native.__file__}")  # noqa: T201


def _sorted(values: Any) -> Any:
    return tvmdml.top_k(values, values.size, axis_direction="increasing").values


def stay_flat() -> None:
    """No entry keeps what it is given, or gives away what it has: objects, references and memory stay as many as they were."""
    found = _growing(list(_calls()))
    assert not found, "\n".join(found)
    print("flat")  # noqa: T201


def keep_something() -> None:
    """What keeps an object, a reference, or memory is found."""
    kept: list[object] = []
    keeping: tuple[Callable[[], object], ...] = (
        lambda: kept.append(object()),
        lambda: ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept)),
        lambda: ctypes.memset(libc.malloc(10_000), 1, 10_000),
    )
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    for call in keeping:
        assert len(_growing([call, object])) == 1, call
    print("seen")  # noqa: T201


def _growing(calls: Sequence[Callable[[], object]], times: int = 400) -> list[str]:
    """Which of these leave more or less behind than they found, and of what."""
    found, objects = [], _held(calls)
    _tidy_up()
    gc.freeze()  # a garbage collection sees what is created from here on
    for call in calls:
        try:
            call()
            count = times
        except (Exception, KeyboardInterrupt):
            count = times // 10
        for rounds in (100, count):  # first the objects that are created once
            before = _alive(objects)
            for _ in range(rounds):
                with suppress(Exception, KeyboardInterrupt):
                    call()
        grown = [after - more for after, more in zip(_alive(objects), before, strict=True)]
        enough = [*[count // 2] * (len(objects) + 1), 8 * count + (1 << 20)]
        names = (*map(reprlib.repr, objects), "blocks", "bytes")
        found += [
            f"{call} at {call.__code__.co_firstlineno if hasattr(call, '__code__') else ''}: {more} of {name}"
            for more, most, name in zip(grown, enough, names, strict=True)
            if abs(more) > most
        ]
    return found


def _held(calls: Sequence[Callable[[], object]]) -> list[object]:
    """What calls are made with, and what everybody has."""
    held: list[object] = [None, True, False, F, np.ndarray, SHAPE, STRIDES, FORMS, *calls]
    for call in calls:
        held += [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
        held += getattr(call, "__defaults__", None) or ()
    held += [item for one in held if isinstance(one, (tuple, list)) for item in one]
    return list({id(one): one for one in held}.values())


def _alive(objects: Sequence[object]) -> list[int]:
    """How often each is referred to, and how many blocks and bytes of memory there are."""
    _tidy_up()
    return [*map(sys.getrefcount, objects), sys.getallocatedblocks(), _resident()]


def _tidy_up() -> None:
    """What nobody needs goes: garbage, and the names of attributes that were looked up, which Python keeps by their addresses."""
    gc.collect()
    (getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache)()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- The tests of the extension -----------------------------------------------------------------------------------

# Makes a process and its child processes use the extension that was built for this.
_INSTEAD = """
import importlib.util, os, sys

class Instead:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tvmdml.targets.cpu._native":
            return importlib.util.spec_from_file_location(name, os.environ["TVMDML_SANITIZED"])

sys.meta_path.insert(0, Instead)
"""


def _sanitized(folder: Path, *command: object) -> str:
    """What a Python says that has the extension built with sanitizers, and whose memory is all known to them."""
    sources = [NATIVE / f"{name}.c" for name in ("launch", "library", "module", "plans", "pool", "sequence")]
    include = sysconfig.get_path("include")
    extension = _built(folder, "address", "-shared", "-fPIC", "-fvisibility=hidden", "-isystem", include, *sources)
    (folder / "sitecustomize.py").write_text(_INSTEAD)
    # The sanitizer must be loaded first, and it needs the C++ exception library that others load later.
    names = ("libasan.so", "libstdc++.so.6")
    first = [subprocess.run(["gcc", f"-print-file-name={n}"], capture_output=True, text=True, check=True).stdout for n in names]
    environment = {
        **OPTIONS,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees much only at exit
        "LD_PRELOAD": " ".join(name.strip() for name in first),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS), *sys.path]),
        "TVMDML_SANITIZED": str(extension),
    }
    return _said(sys.executable, *command, **environment)


@pytest.mark.full
@pytest.mark.skipif(threads.native() is None, reason=threads.state())
def test_the_extension_under_sanitizers(tmp_path: Path) -> None:
    assert f"called everything, with {tmp_path}" in _sanitized(tmp_path, "-c", "import test_sanitizers as t; t.call_everything(5)")


@pytest.mark.exhaustive
@pytest.mark.skipif(threads.native() is None, reason=threads.state())
@pytest.mark.parametrize("name", ["native", "threads", "compiled_operator", "hostile", "functions", "sequences"])
def test_what_is_tested_of_the_extension_under_sanitizers(name: str, tmp_path: Path) -> None:
    some = "not cuda and not vulkan and not memory_does_not_grow"  # freed memory is kept for a while, to detect its use
    without = ("-p", "no:cacheprovider", "-k", some, "--basetemp", tmp_path / "tests")
    assert " passed" in _sanitized(tmp_path, "-m", "pytest", "-q", "-s", *without, next(TESTS.rglob(f"test_{name}.py")))


@pytest.mark.full
@pytest.mark.skipif(threads.native() is None, reason=threads.state())
def test_nothing_is_kept_or_given_away() -> None:
    path = os.pathsep.join([str(TESTS), *sys.path])
    code = "import test_sanitizers as t; t.stay_flat(); t.keep_something()"
    assert _said(sys.executable, "-c", code, PYTHONPATH=path) == "flat\nseen\n"
