"""No kernel reads or writes outside its arrays: every algorithm of each CPU schedule, on arrays between guard pages.

An access outside ends the process, so the cases run in a separate process, which records each case before it starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from fenced import DOORS, Fenced, Place, Work, run
from support import (
    ALL,
    FLOATING,
    INT_MAX,
    INT_MIN,
    Array,
    Placed,
    assert_outputs_agree,
    diagonal_desc,
    mixture,
    nonzero_desc,
    reference,
    round_desc,
    seeded,
    sparse,
    top_k_desc,
)

import tvmdml
from tvmdml import AxisDirection, Operator, RoundingMode, TensorDataType, TensorDesc, compiler, errors, functions, knobs, targets

LEVELS = ("cpu", "cpu:x86-64", "cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1025)
Knobs = dict[str, Any]
Choice = TypeVar("Choice")


class Way(NamedTuple):
    """How kernels are made to be what they are."""

    level: str
    threads: int
    knobs: Knobs


class Case(NamedTuple):
    """An operation and its input, which lies as the operation says."""

    desc: Operator
    values: Array | None
    in_place: bool = False


Cases = Iterator[tuple[Way, Iterator[Case]]]


def _some(choices: Sequence[Choice], whole: bool, number: int) -> Sequence[Choice]:
    """All of them, or each in its turn."""
    return choices if whole else (choices[number % len(choices)],)


def _few(choices: Sequence[Choice], whole: bool, number: int) -> Sequence[Choice]:
    """Every sixth or each in its turn: others for each way, of which there are many."""
    return choices[number % 6 :: 6] if whole else _some(choices, whole, number)


def _ways(of: dict[str, tuple[int, Knobs]], whole: bool, elsewhere: str) -> Iterator[tuple[int, Way]]:
    """Numbered; on the other levels only the one ``elsewhere``, unless the whole grid is wanted."""
    return enumerate(
        Way(level, threads, values)
        for level, (name, (threads, values)) in product(LEVELS, of.items())
        if whole or level == LEVELS[0] or name == elsewhere
    )


def _forms(of: Sequence[Choice], whole: bool, number: int, every: int) -> Iterator[tuple[int, Choice]]:
    """Numbered: all of them, or one of so many, another one for each way."""
    return ((i, form) for i, form in enumerate(of) if whole or (i + number) % every == 0)


# -- ELEMENT_WISE_ROUND -------------------------------------------------------------------------------------------

STREAMED: Knobs = {"stream_bytes": 1, "aligned_elements": 1}
ROUND = {
    "lines": (1, {}),
    "aligned": (1, {"aligned_elements": 1}),
    "streamed": (1, STREAMED),
    "tasks": (3, {"task_elements": 1}),
    "tasks, streamed": (3, {"task_elements": 1, **STREAMED}),
}
# Sizes, and the layouts of input and output to test; the output may be the input.
ROWS = ((1, 1), (3, 7), (2, 16), (5, 17), (3, 33), (2, 65), (4, 129))
ROUND_FORMS: tuple[tuple[Sequence[tuple[int, ...]], str, str | None], ...] = (
    (tuple((n,) for n in LENGTHS), "packed", "packed"),
    (tuple((n,) for n in LENGTHS), "packed", None),
    (tuple((n,) for n in LENGTHS[:16]), "spread", "packed"),
    (tuple((n,) for n in LENGTHS[:16]), "packed", "spread"),
    (tuple((n,) for n in LENGTHS[:16]), "spread", None),
    (ROWS, "padded", "padded"),
    (ROWS, "broadcast outer", "padded"),
    (ROWS, "broadcast inner", "packed"),
    (((16, 16), (17, 31), (40, 15), (15, 40), (50, 33), (1, 50)), "transposed", "packed"),
    (((16, 16), (2, 17, 31), (3, 5, 18, 20)), "packed", "transposed"),
)


def _round(whole: bool) -> Cases:
    for number, way in _ways(ROUND, whole, "tasks, streamed"):
        kinds = tuple(product(FLOATING, RoundingMode))
        yield (
            way,
            (
                Case(round_desc(x.desc, mode, result or source), x.array, result is None)
                for i, (sizes, source, result) in _forms(ROUND_FORMS, whole, number, 9)
                for data_type, mode in _some(kinds, whole, number + i)
                for x in (_placed(data_type, size, source) for size in sizes)
            ),
        )


def _placed(data_type: TensorDataType, sizes: tuple[int, ...], layout: str = "packed") -> Placed:
    return Placed.holding(mixture(seeded(data_type, sizes), data_type, sizes), layout)


# -- DIAGONAL_MATRIX1 ---------------------------------------------------------------------------------------------

ROWWISE: Knobs = {"on_top_bytes": 0}
TASKS: Knobs = {"task_bytes": 1, "fill_bytes": 1, "tasks_per_thread": 1}
DIAGONAL = {
    "on top": (1, {}),
    "on top, all of it": (1, {"on_top_bytes": 2048}),
    "on top, in blocks": (1, {"block_bytes": 1024}),
    "rows": (1, ROWWISE),
    "streamed": (1, {"stream_bytes": 1}),
    "streamed rows": (1, {"stream_bytes": 1, **ROWWISE}),
    "tasks": (3, TASKS),
    "tasks, streamed": (3, {"stream_bytes": 1, **TASKS}),
    "tasks, streamed rows": (3, {"stream_bytes": 1, **TASKS, **ROWWISE}),
}
BANDS = ((0, 1), (-2, 3), (7, 8), (-60, 70), (INT_MIN, 1), (1, INT_MAX), (1, 0), (50, -40), (INT_MAX, INT_MIN), (1000, 2000))
MATRICES = ((1, 1), (5, 1), (1, 5), (3, 7), (2, 16), (7, 33), (5, 63), (3, 64), (2, 9, 65), (3, 40, 130), (2, 2, 517))
# Elements are moved as bits, so one type of each size is enough.
SIZED = (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.INT64)
# With an input of some layout or without input, and the layout of the output.
DIAGONAL_FORMS = (
    ("", "packed"),
    ("packed", "packed"),
    ("padded", "padded"),
    ("", "padded"),
    ("spread", "packed"),
    ("packed", "spread"),
    ("transposed", "packed"),
    ("transposed", "transposed"),
    ("broadcast inner", "packed"),
)


def _diagonal(whole: bool) -> Cases:
    for number, way in _ways(DIAGONAL, whole, "tasks, streamed rows"):
        yield (
            way,
            (
                Case(diagonal_desc(x.desc, 7, *band, has_input=bool(source), layout=result), x.array if source else None)
                for i, (source, result) in _forms(DIAGONAL_FORMS, whole, number, 9)
                for data_type in _some(SIZED, whole and way.level == LEVELS[0], number + i)
                for j, sizes in _forms(MATRICES, whole, number, 5)
                for x in (_placed(data_type, sizes, source or "packed"),)
                for band in _some(BANDS, whole, j + i)
            ),
        )


# -- NONZERO_COORDINATES ------------------------------------------------------------------------------------------

NONZERO = {
    "serial": (1, {}),
    "tasks": (3, {"task_elements": 1}),
    **{f"{bits} are few": (2 * (bits % 2) + 1, {"task_elements": 1, "few_bits": bits}) for bits in (1, 2, 3, 5, 8, 11, 12)},
}
NONZERO_FORMS = (
    (tuple((n,) for n in LENGTHS), "packed", "packed"),
    (((29, 100), (64, 64), (331, 3), (17, 1, 3, 5), (3, 7, 11, 5), (2, 1, 2, 2, 3, 1, 2, 9)), "packed", "packed"),
    (((5, 150), (130, 5), (3, 63)), "padded", "packed"),
    (((5, 150), (130, 5), (2, 3, 70)), "transposed", "packed"),
    (((131,), (9, 50)), "spread", "padded"),
    (((9, 50), (5, 129)), "broadcast inner", "transposed"),
)
# As bits, signed and unsigned integers are equal.
NONZERO_TYPES = tuple(t for t in ALL if not t.tvm.startswith("uint"))


def _nonzero(whole: bool) -> Cases:
    for number, way in _ways(NONZERO, whole, "tasks"):
        kinds = tuple(product(NONZERO_TYPES, ("uint32", "uint64")))
        yield (
            way,
            (
                Case(nonzero_desc(x.desc, index=index, layout=result), x.array)
                for i, (sizes, source, result) in _forms(NONZERO_FORMS, whole, number, 6)
                for data_type, index in _few(kinds, whole and way.level == LEVELS[0], 3 * number + i)
                for j, size in enumerate(sizes)
                for density in _some((0, 1, 0.5, 0.1, 0.01), whole, i + j + number)
                for x in (Placed.holding(sparse(seeded(size, density), data_type, size, density), source),)
            ),
        )


# -- TOP_K1 -------------------------------------------------------------------------------------------------------

PARTS: Knobs = {"algorithm": "select", "task_elements": 1, "part_elements": 1}
TOP_K: dict[str, tuple[int, Knobs]] = {
    "rank": (1, {"algorithm": "rank"}),
    "sort": (1, {"algorithm": "sort"}),
    **{f"sort, {bits} bits": (3, {"algorithm": "sort", "digit_bits": bits, "task_elements": 1}) for bits in (6, 8)},
    "select": (1, {"algorithm": "select"}),
    **{f"select, chunks of {n}": (1, {"algorithm": "select", "chunk_vectors": n}) for n in (1, 2, 4, 8)},
    "select, little room": (1, {"algorithm": "select", "room_per_k": 2, "bests_per_k": 1}),
    "select, much room": (3, {"algorithm": "select", "room_per_k": 8, "bests_per_k": 16, "task_elements": 1}),
    "select, then sort": (3, {"algorithm": "select", "rank_k": 1, "task_elements": 1}),
    "parts": (5, PARTS),
    "parts, then sort": (4, {**PARTS, "rank_k": 1}),
    "columns": (1, {"algorithm": "columns", "columns_k": 64}),
    **{f"columns, {n} lines": (3, {"algorithm": "columns", "column_lines": n, "task_elements": 1}) for n in (1, 4, 32)},
    "by itself": (1, {}),
}
# Sizes, axis, numbers K, and layouts; the shapes whose axis is not the last test adjacent rows.
TOP_K_FORMS = (
    *(((n,), 0, (1, 5, 70), "packed", "packed") for n in (300, 1301, 2601)),
    ((3, 1301), 1, (3, 150, 1301), "padded", "padded"),
    ((2, 130), 1, (1, 9), "spread", "packed"),
    *(((n, width), 0, (1, min(n, 7)), "packed", "packed") for n, width in ((3, 16), (17, 33), (40, 65), (90, 130))),
    ((64, 50), 0, (16,), "padded", "padded"),
    ((2, 31, 37), 1, (1, 31), "transposed", "packed"),
    ((70, 19), 1, (3,), "transposed", "transposed"),
    ((9, 33), 1, (2,), "broadcast outer", "packed"),
    *(((2, n), 1, sorted({1, (n + 1) // 2, n}), "packed", "packed") for n in (*LENGTHS[2::3], *LENGTHS[1::3], *LENGTHS[::3])),
)


def _top_k(whole: bool) -> Cases:
    for number, way in _ways(TOP_K, whole, "parts, then sort"):
        kinds = tuple(product(ALL if way.level == LEVELS[0] else SIZED, AxisDirection))
        yield (
            way,
            (
                Case(top_k_desc(x.desc, axis, k, direction, index, result), x.array)
                for data_type, direction in _few(kinds, whole, 5 * number)
                for i, (sizes, axis, ks, source, result) in _forms(TOP_K_FORMS, whole, -number, 32)
                for x in (_placed(data_type, sizes, source),)
                for index in _some(("uint32",) * 9 + ("uint64",), whole=False, number=i)
                for k in _some([k for k in ks if k <= sizes[axis]], whole, i)
            ),
        )


# -- The process that runs them -----------------------------------------------------------------------------------

GRIDS: dict[str, tuple[str, Callable[[bool], Cases]]] = {
    "ELEMENT_WISE_ROUND": ("element_wise_round", _round),
    "DIAGONAL_MATRIX1": ("diagonal_matrix", _diagonal),
    "NONZERO_COORDINATES": ("nonzero_coordinates", _nonzero),
    "TOP_K1": ("top_k", _top_k),
}


ENDS = tuple(product((Place(at_end=True), Place(at_end=False)), repeat=2))


def _places(whole: bool, itemsize: int, number: int) -> Iterator[tuple[Place, Place]]:
    """Of an input and an output: at the fences, and so far from them that case by case every start in a cache line has its turn."""
    yield from ENDS if whole else (ENDS[0], ENDS[3])
    line = 64 // itemsize
    yield Place(True, 1 + number % (line - 1)), Place(True, 3 * number % line)
    yield Place(False, 1 + number % (line - 1)), Place(False, 3 * number % line)


def walk(operator: str, whole: bool, note: str) -> None:
    """Run an operator's cases; ``note`` is the file that says which one it is at."""
    started, kernels, launches, absent = time.process_time(), len(compiler._memory), 0, set()
    doors = cycle([door for door in DOORS if door != "kernel"])
    module, grid = GRIDS[operator]
    file = os.open(note, os.O_CREAT | os.O_WRONLY)
    for way, cases in grid(whole):
        try:
            target = targets.resolve(way.level)
        except errors.TvmdmlError as error:
            absent.add(f"{way.level}: {error}")
            continue
        os.environ["TVMDML_NUM_THREADS"] = str(way.threads)
        functions.forget_plans()
        with knobs.using(**{module: way.knobs}):
            for number, (desc, values, in_place) in enumerate(cases):
                work = Work(desc, target, in_place)
                expected = reference(desc, values)
                itemsize = next(t for _, t in desc.tensors() if t is not None).data_type.itemsize
                places = list(_places(whole, itemsize, number))
                for door, (source, result) in (*product(("kernel",), places), (next(doors), places[number % len(places)])):
                    what = f"{desc!r}{' in place' * in_place}: {way}, input {source}, output {result}, by {door}"
                    os.pwrite(file, what.encode().ljust(2000), 0)
                    assert_outputs_agree(desc, run(work, values, door, source, result), expected)
                    launches += 1
    took = time.process_time() - started
    kernels = len(compiler._memory) - kernels
    print(*sorted(absent), f"{operator}: {kernels} kernels, {launches} launches, {took:.0f} s", sep="\n")  # noqa: T201


def _walked(code: str, folder: Path) -> tuple[int, str, str]:
    """How a process that does this ends, what it says, and what it was at last; its ``note`` is a file for that."""
    note, here = folder / "note", Path(__file__)
    note.touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path])}
    begin = "import faulthandler, tvm_ffi\nfaulthandler.enable()  # after the runtime, which has a handler of its own"
    code = f"{begin}\nimport {here.stem} as grid\nnote = {str(note)!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, note.read_text().strip()


def _assert_stay_inside(operators: Sequence[str], whole: bool, folder: Path) -> None:
    status, said, at = _walked(f"for operator in {operators}: grid.walk(operator, {whole}, note)", folder)
    assert status == 0, f"{at}\n{said}"
    assert said.count(" kernels, ") == len(operators)
    print(said)  # noqa: T201


# -- The tests ----------------------------------------------------------------------------------------------------


def test_kernels_stay_inside_of_their_arrays(tmp_path: Path) -> None:
    _assert_stay_inside(tuple(GRIDS), False, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("operator", GRIDS)
def test_every_kernel_stays_inside_of_its_arrays(operator: str, tmp_path: Path) -> None:
    _assert_stay_inside((operator,), True, tmp_path)


def trespass(note: str) -> None:
    """Have a kernel touch what it must not, each time in another process, and say how that one ends.

    It takes arrays that were checked before, and these are too short, or read-only.
    """
    desc = round_desc(TensorDesc("float32", (33,)))
    work = Work(desc, targets.resolve("cpu"), in_place=False)
    kernel = work.target.kernel(desc.canonical())
    launch = work.target.launch(compiler.find(kernel, work.target), kernel.scalars, kernel.temporaries)
    values = np.arange(33, dtype=np.float32)
    run(work, values, "compiled", *ENDS[0])
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
        np.testing.assert_array_equal(tvmdml.round(x, rounding_mode="toward_zero"), expected)
        tvmdml.round(x, rounding_mode="toward_zero", out=out(fenced.array))
        np.testing.assert_array_equal(out(fenced.array), expected)
        touched = np.zeros(4096, np.uint8)
        out(touched)[...] = np.full(1, -1, "i4").view("f4")[0]
        assert (fenced.array[touched == 0] == 7).all()


def test_functions_stay_inside_of_the_views_that_they_are_given(tmp_path: Path) -> None:
    status, said, at = _walked("grid.walk_views(note)", tmp_path)
    assert status == 0, f"{at}\n{said}"
