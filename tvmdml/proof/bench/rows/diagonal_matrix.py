"""Diagonals, triangles and bands: part of the output is copied, part is a number, part is zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import tvmdml
from tvmdml.proof.bench.cases import LAUNCH, MOVES, Case, Group, K, strided
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Traffic, Work

NO_BOUND = (-(2**31), 2**31 - 1)
SIDE = 8 * K
"""The side of a matrix of 64M elements."""
GROUP = Group("diagonal")


def diagonal(*sizes: int, value: int = 1, begin: int = 0, end: int = 1, data: str = "", door: str = "bound", **fields: Any) -> Work:
    """DIAGONAL_MATRIX1; the identity by default."""
    tensor = Operand(sizes, data=data, **fields)
    attributes: dict[str, Any] = {"value": value, "diagonal_fill_begin": begin, "diagonal_fill_end": end}
    if data:
        return Work.on("DIAGONAL_MATRIX1", tensor, door=door, **attributes)
    return Work.on("DIAGONAL_MATRIX1", door=door, **attributes, output_tensor=tensor)


def triangle(*sizes: int, **fields: Any) -> Work:
    """The elements above the diagonal of an input, and zeros."""
    return diagonal(*sizes, value=0, begin=NO_BOUND[0], end=1, **{"data": "normal", **fields})


def band(*sizes: int, **fields: Any) -> Work:
    """An input with eleven diagonals overwritten."""
    return diagonal(*sizes, value=7, begin=-5, end=6, **{"data": "normal", **fields})


def _traffic(task: Task) -> Traffic:
    """Outside the band is copied, or zero; inside is the value."""
    work = task.work.newest()
    *batch, height, width = work.sizes
    rows = np.arange(height)
    begin, end = (np.clip(rows + work[bound], 0, width) for bound in ("diagonal_fill_begin", "diagonal_fill_end"))
    inside = int((end - begin).sum())
    size = int(np.prod(batch, dtype=np.int64)) * task.expected[0].itemsize
    rest, filled = size * (height * width - inside), size * inside
    parts = {"copied" if work.data else "zeroed": rest}
    into = "zeroed" if work["value"] == 0 else "written"
    parts[into] = parts.get(into, 0) + filled
    return Traffic(**parts)


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    work = task.work.newest()
    form: dict[str, Any] = {} if work.data else {"sizes": work.sizes, "dtype": work.dtype}
    given = {name: work[name] for name in ("value", "diagonal_fill_begin", "diagonal_fill_end")}
    return partial(tvmdml.diagonal_matrix, arrays[0], **form, **given)


KIND = Kind(_traffic, _function)


def _goals() -> Iterator[Case]:
    yield Case("diagonal, no input", "64 MB", diagonal(4 * K, 4 * K), 2.0, quick=True, group=GROUP)
    yield Case("diagonal, no input", "4 MB", diagonal(K, K), 1.6, quick=True, group=GROUP)
    for row, make, goals in (("triangle over input f32", triangle, (2.8, 2.2)), ("band over input f32", band, (2.5, 1.4))):
        for point, size, goal in (("256 KB, in L2", 256, goals[0]), ("64 MB", 4 * K, goals[1])):
            yield Case(row, point, make(size, size), goal, quick=True, group=GROUP)
    for dtype, goal in (("float16", 6), ("uint8", 45)):
        yield Case("triangle over input, narrow", dtype, triangle(K, K, dtype=dtype), goal, quick=True, group=GROUP)
    yield Case("diagonal 16 x 16", "no input", diagonal(16, 16), 4, quick=True, group=GROUP)


def _layouts() -> Iterator[Case]:
    yield strided("diagonal, no input, padded rows", diagonal(K, K), "padded")
    yield strided("triangle over input, padded rows", triangle(K, K), "padded")
    yield strided("triangle over input, transposed", triangle(K, K), "transposed")


def _on_cuda() -> Iterator[Case]:
    yield Case("diagonal, small", "16 x 16, no input", diagonal(16, 16), quick=True, share=LAUNCH)
    yield Case("diagonal, small", "256 x 256, triangle over input", triangle(256, 256), share=LAUNCH)
    for row, make, quick in (
        ("diagonal, no input, 64M", diagonal, ("float32", "uint8")),
        ("triangle over input, 64M", triangle, ("float32",)),
        ("band over input, 64M", band, ("float32",)),
    ):
        for dtype in ("float32", "float16", "uint8"):
            yield Case(row, dtype, make(SIDE, SIDE, dtype=dtype), quick=dtype in quick, share=MOVES)


CASES = (
    *_goals(),
    *_layouts(),
    Case("one thread", "triangle over input f32, 64 MB", triangle(4 * K, 4 * K), threads=1),
)
CASES_ON = {"cuda": (*_on_cuda(), *_layouts())}
