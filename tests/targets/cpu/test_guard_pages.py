"""No CPU kernel reads or writes outside its arrays: drawn kernels of every operator, on arrays between guard pages.

An access outside ends the process, so the kernels run in a separate process, which records each case before it starts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
from drawn import DEFAULT, OWN, Drawn, budget, forced, levels, more, of, runs_here, spread
from fenced import DOORS, Fenced, Place, Work, run
from support import Array, assert_outputs_agree, assert_same_bits, mixture, reference, round_desc, seeded

import tvmdml
from tvmdml import Operator, TensorDataType, TensorDesc, operators, targets
from tvmdml.enums import NEWEST_FEATURE_LEVEL
from tvmdml.library import finding, knobs
from tvmdml.library.scheduling import kernel_for
from tvmdml.operators._movement_scatter_fused import FusedScatter, FusedScatterNd
from tvmdml.proof.conformance import SEED
from tvmdml.proof.conformance.cases import Case, _window, convolution, pooling, pooling_grad

KERNELS = {OWN: 5, DEFAULT: 2}
"""Kernels of an operator that a run draws; operators of the same schedule share them."""
OF_A_FAMILY, ITS_KERNELS = 12, 4
"""One in so many of a family's operators is drawn, and so many of its kernels: where they read and write is their schedule's."""
MOST = 8
"""Cases of one kernel that are run."""
TOGETHER = 10
"""Operators that share a process."""


# -- The process that runs them -----------------------------------------------------------------------------------

ENDS = tuple(product((Place(at_end=True), Place(at_end=False)), repeat=2))


def _places(itemsize: int, number: int) -> Iterator[tuple[Place, Place]]:
    """Of inputs and outputs: at the fences, and so far from them that case by case every start in a cache line has its turn."""
    yield from (ENDS[number % 2], ENDS[3 - number % 2])
    line = 64 // itemsize
    yield Place(True, 1 + number % (line - 1)), Place(True, 3 * number % line)
    yield Place(False, 1 + number % (line - 1)), Place(False, 3 * number % line)


def walk(names: Sequence[str], seed: int, times: int, note: str) -> None:
    """Run drawn kernels of operators; ``note`` is the file that says which one it is at."""
    doors = cycle([door for door in DOORS if door != "kernel"])
    file = os.open(note, os.O_CREAT | os.O_WRONLY)
    cpu = targets.resolve("cpu")
    for name, schedule in product(names, KERNELS):
        started, launches = time.process_time(), 0
        alike = [other for other in NAMES if not operators.by_name(other).FAMILY and _knobs(other) == _knobs(name)]
        share = -(-KERNELS[schedule] // max(1, len(alike)))
        rng, count = of(seed, "fences", name, schedule), times * budget(name, share, ITS_KERNELS)
        kernels = more(spread(forced(name, cpu, rng, 20 * count, schedule), count, rng), rng)
        for number, drawn in enumerate(one for served in kernels for one in served[:MOST]):
            with drawn.in_force(emulates=True):
                launches += _run(drawn, number, next(doors), file)
        took = time.process_time() - started
        print(f"{name}, {schedule}: {len(kernels)} kernels, {launches} launches, {took:.0f} s")  # noqa: T201


def _knobs(name: str) -> str:
    return operators.tuned_as(operators.by_name(name))


def _run(drawn: Drawn, number: int, door: str, file: int) -> int:
    """Run a case in all places, and in one of them by another door; returns how often it ran."""
    desc = drawn.case.desc
    if door == "function" and any(tensor is not None and tensor.data_type.is_nibble for _, tensor in desc.tensors()):
        door = "compiled"  # functions take whole bytes
    work = Work(desc, drawn.target, drawn.case.shared)
    values = drawn.inputs(SEED)
    expected = reference(desc, *values)
    places = list(_places(next(t for _, t in desc.tensors() if t is not None).data_type.itemsize, number))
    ways = [*(("kernel", *place) for place in places), (door, *places[number % len(places)])]
    for door, source, result in ways:
        os.pwrite(file, f"{drawn}, input {source}, output {result}, by {door}".encode().ljust(3000), 0)
        assert_outputs_agree(desc, run(work, values, door, source, result), expected)
    return len(ways)


def _walked(code: str, folder: Path) -> tuple[int, str, str]:
    """How a process that does this ends, what it says, and what it was at last; its ``note`` is a file for that."""
    note, here = folder / "note", Path(__file__)
    note.touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path])}
    begin = "import faulthandler, tvm_ffi\nfaulthandler.enable()  # after the runtime, which has a handler of its own"
    code = f"{begin}\nimport {here.stem} as grid\nnote = {str(note)!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, note.read_text().strip()


# -- The tests ----------------------------------------------------------------------------------------------------


NAMES = tuple(operators.all_operators())


def _drawn(seed: int, every: bool) -> list[list[str]]:
    """Operators, some for each process: those of no family, and some of each."""
    by_family: dict[str, list[str]] = {}
    for name, cls in operators.all_operators().items():
        by_family.setdefault(cls.FAMILY, []).append(name)
    own, rng = by_family.pop("", []), of(seed, "fences")
    names = own + [
        name for some in by_family.values() for name in rng.sample(some, len(some) if every else -(-len(some) // OF_A_FAMILY))
    ]
    parts = -(-len(names) // TOGETHER)
    return [names[first::parts] for first in range(parts)]


@pytest.mark.full
@pytest.mark.parametrize("part", range(-(-len(operators.all_operators()) // TOGETHER)))
def test_kernels_stay_inside_of_their_arrays(part: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed, every = pytestconfig.getoption("--case-seed"), pytestconfig.getoption("--every-case")
    for names in _drawn(seed, every)[part : part + 1]:
        status, said, at = _walked(f"grid.walk({names}, {seed}, {20 if every else 1}, note)", tmp_path)
        assert status == 0, f"{at}\n{said}"
        assert said.count(" kernels, ") == len(names) * len(KERNELS)
        print(said)  # noqa: T201


def trespass(note: str) -> None:
    """Have a kernel touch what it must not, each time in another process, and say how that one ends.

    It takes arrays that were checked before, and these are too short, or read-only.
    """
    desc = round_desc(TensorDesc("float32", (33,)))
    work = Work(desc, targets.resolve("cpu"))
    kernel = kernel_for(desc.canonical(), work.target)
    launch = work.target.launch(finding.find(kernel, work.target), kernel.scalars, kernel.temporaries)
    values = np.arange(33, dtype=np.float32)
    run(work, [values], "compiled", *ENDS[0])
    whole, short = TensorDesc("float32", (33,)), TensorDesc("float32", (32,))
    before = Fenced("before", short, Place(at_end=False)).array
    ways: dict[str, Callable[[], object]] = {
        "reads before the beginning": lambda: print(np.lib.stride_tricks.as_strided(before, (2,), (-4,))),  # noqa: T201
        "reads past the end": lambda: launch(Fenced("input", short, Place(at_end=True), values[:32], is_input=True).array, values),
        "writes past the end": lambda: launch(values, Fenced("output", short, Place(at_end=True)).array),
        "writes to an input": lambda: launch(values, Fenced("input", whole, Place(True), values, is_input=True).array),
    }
    for how, trespass in ways.items():
        child = os.fork()
        if child == 0:
            Path(note).write_text(how)
            trespass()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(how, status, Path(note).read_text() == how)  # noqa: T201


@pytest.mark.full
def test_a_trespass_is_seen(tmp_path: Path) -> None:
    status, said, _ = _walked("grid.trespass(note)", tmp_path)
    assert status == 0, said
    for how in ("reads before the beginning", "reads past the end", "writes past the end", "writes to an input"):
        assert f"{how} {-signal.SIGSEGV} True" in said
    assert said.count("in trespass") == 4  # at the same place each time


def test_a_write_into_a_gap_is_seen() -> None:
    padded = TensorDesc("float32", (2, 3), (5, 1))
    fenced = Fenced("output", padded, Place(at_end=True, slack=1))
    fenced.array[...] = 1
    fenced.assert_nothing_else_was_written()
    np.lib.stride_tricks.as_strided(fenced.array, (4,), (4,))[3] = 1
    with pytest.raises(AssertionError, match=r"at offsets \[12 13"):
        fenced.assert_nothing_else_was_written()


# -- Windows that reach far over an edge of the image: a kernel serves many sizes, with the same numbers of windows.

AT_EDGES = (_window.WindowForm(2, end=3, beside=(0, 40)), _window.WindowForm(3, 2, start=2, beside=(50, 9), more=True))
"""Forms of which more windows reach over an edge than a vector has."""
WINDOWS = {**pooling.MADE, **pooling_grad.MADE, operators.by_name("CONVOLUTION"): None}


def _form(rng: random.Random) -> _window.WindowForm:
    """Windows of any size, that may lie in the padding or leave gaps."""
    window, stride, dilation = rng.choice((1, 2, 3, 3, 5, 7, 99)), rng.choice((1, 1, 2, 3, 5)), rng.choice((1, 1, 2, 3))
    start, end = (rng.choice((0, 1, rng.randrange(9))) for _ in range(2))
    beside = tuple(rng.choice((0, rng.randrange(70))) for _ in range(2))
    return _window.WindowForm(window, stride, dilation, start, end, rng.random() < 0.5, rng.random() < 0.5, (beside[0], beside[1]))


def _of_form(cls: type[Operator], x: TensorDesc, form: _window.WindowForm) -> Operator:
    if make := WINDOWS[cls]:
        return make(x, form)
    own = convolution.ConvolutionForm(form.window, form.stride, form.dilation, form.start, form.end, filters=5, turned=form.more)
    return convolution.convolution(x, own._replace(groups=x.sizes[1] if form.option else 1, beside=form.beside))


def walk_windows(seed: int, times: int, note: str) -> None:
    """Operators with windows, and convolutions, of several sizes."""
    file, rng, doors = os.open(note, os.O_CREAT | os.O_WRONLY), of(seed, "windows"), cycle(DOORS)
    usual = [operators.by_name(name) for name in ("MAX_POOLING", "MAX_POOLING2", "AVERAGE_POOLING")]
    for cls in WINDOWS if times > 1 else (*usual, rng.choice(list(WINDOWS))):
        for form in (*AT_EDGES, *(_form(rng) for _ in range(times))):
            target = rng.choice(levels())
            dtype, outer = rng.choice(("float32", "float32", "float16")), rng.choice(((1, 2, 3), (2, 3, 5), (1, 1, 2, 3)))
            for number in range(3 if times == 1 else 20):
                desc = _of_form(cls, TensorDesc(dtype, (*outer, rng.randrange(17, 80))), form)
                desc.validate(NEWEST_FEATURE_LEVEL, extensions=True)
                if runs_here(target):
                    drawn = Drawn(Case(desc, "normal"), target)
                    with drawn.in_force(emulates=True):
                        _run(drawn, number, next(doors), file)


@pytest.mark.full
def test_windows_far_over_an_edge_stay_inside_of_their_arrays(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed, every = pytestconfig.getoption("--case-seed"), pytestconfig.getoption("--every-case")
    status, said, at = _walked(f"grid.walk_windows({seed}, {30 if every else 1}, note)", tmp_path)
    assert status == 0, f"{at}\n{said}"


INDEX_TYPES = ("int32", "int64", "uint32", "uint64")
UPDATED = (((1500,), 0, 1100), ((70, 90), 0, 60), ((90, 70), 1, 64), ((3, 40, 33), 1, 50))
"""Sizes, the axis, and how many updates along it."""


def _hostile(rng: np.random.Generator, dtype: str, sizes: tuple[int, ...], size: int) -> Array:
    """Indices of a dimension. Most vectors of them are in range; the others have some of any bits, and some just outside."""
    limits = np.iinfo(dtype)
    outside = (size, -size - 1, size + 1, limits.min, limits.max, 1 << 31, 1 << 32, -(1 << 32) - 1)
    found = rng.integers(-size if limits.min else 0, size, sizes).astype(dtype)
    bad = np.array([one for one in outside if limits.min <= one <= limits.max and not -size <= one < size], dtype)
    where = rng.random(sizes)
    found[where < 0.02] = rng.choice(bad, int((where < 0.02).sum()))
    bits = np.frombuffer(rng.bytes(found.nbytes), dtype).reshape(sizes)
    return np.where(where > 0.99, bits, found)


def walk_updates(seed: int, note: str) -> None:
    """Updates with hostile indices, by all ways; mostly with everything asked for ahead."""
    rng, cpu = seeded(seed, "updates"), targets.resolve("cpu")
    asking = {"ahead_bytes": 1, "block_bytes": 1}
    for kind, (sizes, axis, length) in product(INDEX_TYPES, UPDATED):
        own = asking if rng.random() < 0.7 else {}
        dtype = str(rng.choice(["uint8", "float16", "float32", "int64"]))
        given = tuple(length if i == axis else n for i, n in enumerate(sizes))
        x, rows = TensorDesc(dtype, sizes), (40, *sizes[1:])
        elements = tvmdml.Scatter.of(x, TensorDesc(kind, given), TensorDesc(dtype, given), axis=axis)
        slices = tvmdml.ScatterNd.of_call(
            x, TensorDesc(kind, (40, 1)), TensorDesc(dtype, rows), input_dimension_count=None, indices_dimension_count=None
        )
        function = str(rng.choice(["sum", "multiply", "max", "min"]))
        pairs = ((FusedScatter, elements), (FusedScatterNd, slices))
        combined = [
            cls(**{field.name: getattr(one, field.name) for field in one.fields()}, function=function) for cls, one in pairs
        ]
        shapes = ((given, sizes[axis]), ((40, 1), sizes[0]))
        for desc, (shape, size) in zip((elements, slices, *combined), shapes * 2, strict=True):
            tensors = [tensor for _, tensor in desc.tensors() if tensor is not None]
            values = [mixture(rng, one.data_type, one.sizes) for one in tensors[:3]]
            values[1] = _hostile(rng, kind, shape, size).reshape(tensors[1].sizes)
            expected = reference(desc, *values)
            for at_end in (True, False):
                Path(note).write_text(f"{desc}, {own}, at the end: {at_end}")
                with knobs.using(movement=own):
                    found = run(Work(desc, cpu), values, "kernel", Place(at_end), Place(at_end))
                assert_outputs_agree(desc, found, expected)


@pytest.mark.full
def test_hostile_updates_stay_inside_of_their_arrays(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    status, said, at = _walked(f"grid.walk_updates({pytestconfig.getoption('--case-seed')}, note)", tmp_path)
    assert status == 0, f"{at}\n{said}"


# Arrays that no kernel can process are copied: reversed, unaligned, or with strides that are not whole elements.
VIEWS: dict[str, Callable[[Array], Array]] = {
    "backwards": lambda memory: memory[: 33 * 4].view(np.float32)[::-1],
    "backwards, at the end": lambda memory: memory[-33 * 4 :].view(np.float32)[::-1],
    "not aligned, at the end": lambda memory: memory[-33 * 4 - 1 : -1].view(np.float32),
    "not aligned": lambda memory: memory[1 : 33 * 4 + 1].view(np.float32),
    "steps of a byte more": lambda memory: np.ndarray((33,), np.float32, memory, memory.size - 33 * 5 + 1, (5,)),
    "every third, backwards": lambda memory: memory[-97 * 4 :].view(np.float32)[::-3],
    "another byte order": lambda memory: memory[-33 * 4 :].view(">f4"),
}


def walk_views(note: str) -> None:
    """Functions on views of memory between fences."""
    whole = TensorDesc("uint8", (4096,))
    values = mixture(seeded("views"), TensorDataType.FLOAT32, (33,))
    for (name, view), (other, out) in product(VIEWS.items(), VIEWS.items()):
        Path(note).write_text(f"{name}, to {other}")
        given = np.zeros(4096, np.uint8)
        view(given)[...] = values
        x = view(Fenced("input", whole, Place(at_end=True), given, is_input=True).array)
        fenced = Fenced("output", whole, Place(at_end=True))
        fenced.array[...] = 7
        (expected,) = reference(round_desc(TensorDesc("float32", (33,))), values)
        assert_same_bits(tvmdml.round(x, rounding_mode="toward_zero"), expected, any_nan=True)
        tvmdml.round(x, rounding_mode="toward_zero", out=out(fenced.array))
        result = out(fenced.array)
        assert_same_bits(result.astype(result.dtype.newbyteorder("=")), expected, any_nan=True)
        touched = np.zeros(4096, np.uint8)
        out(touched)[...] = np.full(1, -1, "i4").view("f4")[0]
        assert (fenced.array[touched == 0] == 7).all()


@pytest.mark.full
def test_functions_stay_inside_of_the_views_that_they_are_given(tmp_path: Path) -> None:
    status, said, at = _walked("grid.walk_views(note)", tmp_path)
    assert status == 0, f"{at}\n{said}"
