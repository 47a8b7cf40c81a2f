"""The largest elements of rows: many shapes, inputs that are difficult for a selection, and full sorts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import tvmdml
from tvmdml.proof.bench.cases import LAUNCH, WITHIN_3, Case, Group, K, M, strided
from tvmdml.proof.bench.task import Kind, Task
from tvmdml.proof.bench.work import Operand, Traffic, Work

LARGE = 1 << 24
"""For at least this many elements, the NumPy reference uses a faster algorithm."""
GROUP = Group("top-k")


def top_k(*sizes: int, k: int, axis: int = 1, direction: str = "decreasing", door: str = "bound", **fields: Any) -> Work:
    """TOP_K1."""
    return Work.on("TOP_K1", Operand(sizes, **fields), axis=axis, k=k, axis_direction=direction, door=door)


def sort(size: int, **fields: Any) -> Work:
    """TOP_K1 of all elements, the smallest first."""
    return top_k(1, size, k=size, direction="increasing", **fields)


def _traffic(task: Task) -> Traffic:
    return Traffic(read=task.x.nbytes, written=sum(output.nbytes for output in task.expected))


def _function(task: Task, arrays: list[Any]) -> Callable[[], Any]:
    attributes: dict[str, Any] = dict(task.work.attributes)
    return partial(tvmdml.top_k, arrays[0], attributes.pop("k"), **attributes)


def _reference(task: Task) -> tuple[Any, ...]:
    """The operator's reference, which sorts whole rows; for many elements, one that sorts only those that may be in the result."""
    x, work = task.x, task.work.newest()
    axis, k = work["axis"], work["k"]
    rows = x.reshape(-1, x.shape[axis])
    selects = axis == x.ndim - 1 and work["axis_direction"] == "decreasing" and x.dtype.kind == "f" and 2 * k <= x.shape[axis]
    if x.size < LARGE or not selects or np.isnan(x).any():
        return task.desc.reference(x)
    values = np.empty((len(rows), k), x.dtype)
    indices = np.empty((len(rows), k), np.uint32)
    for row, into, places in zip(rows, values, indices, strict=True):
        least = np.partition(row, len(row) - k)[len(row) - k]
        (found,) = np.nonzero(row >= least)  # including all elements equal to the K-th, in order of position
        places[:] = found[np.argsort(-row[found], kind="stable")[:k]]
        into[:] = row[places]
    shape = task.desc.outputs()[0].sizes
    return values.reshape(shape), indices.reshape(shape)


KIND = Kind(_traffic, _function, _reference)


def _goals() -> Iterator[Case]:
    for sizes, k, goal, quick in (
        ((1, 16), 4, 4.4, True),
        ((1, 32000), 50, 12, True),
        ((1, 128256), 1, 2.2, True),
        ((1, 128256), 8, 12, False),
        ((1, 128256), 50, 12, False),
        ((1, 128256), 256, 9, True),
        ((32, 32000), 50, 14, True),
        ((1024, 1000), 5, 12, True),
        ((4096, 128), 8, 16, True),
        ((8, 1000000), 100, 5, False),
    ):
        yield Case("top-k f32", f"{sizes}, k {k}", top_k(*sizes, k=k), goal, quick, group=GROUP)
    columns = (1000, 4096)
    yield Case("top-k f32, axis 0", f"{columns}, k 5", top_k(*columns, k=5, axis=0), 20, quick=True, group=GROUP)
    one = top_k(*columns, k=1, axis=0)
    ordered = ("topk", "TopK", "argpartition + argsort")
    yield Case("top-k f32, axis 0", f"{columns}, k 1", one, 45, quick=True, rivals=ordered, group=GROUP)
    yield Case("top-k f32, axis 0", f"{columns}, k 1, against argmax", one, rivals=("argmax", "max"))
    for dtype, goal in (("float16", 12), ("uint8", 12), ("int64", 5)):
        work = top_k(32, 32000, k=50, dtype=dtype)
        yield Case("top-k, other types", f"{dtype} (32, 32000), k 50", work, goal, quick=True, group=GROUP)
    for rivals, goal, names in (
        ("unstable np.argsort", 5, ("argsort",)),
        ("stable peers", 25, ("argsort stable", "sort stable", "TopK")),
    ):
        for size in (4096, 65536):
            row = f"full sort f32, against {rivals}"
            yield Case(row, f"{size}", sort(size), goal, size == 65536, rivals=names, group=Group("sort"))


def _adversaries() -> Iterator[Case]:
    """Inputs that may be difficult for a selection."""
    for point, random, quick in (
        ("(32, 32000), k 50", top_k(32, 32000, k=50), True),
        ("(1, 128256), k 256", top_k(1, 128256, k=256), False),
        ("sort of 65536", sort(65536), False),
    ):
        for data in ("ascending", "descending", "constant", "all NaN", "dense block"):
            work = random.with_first(data=data)
            yield Case("top-k, adversarial input", f"{point}, {data}", work, WITHIN_3, quick, baseline=random)


def _layouts() -> Iterator[Case]:
    for point, layout in (("padded rows", "padded"), ("every second", "spread"), ("transposed", "transposed")):
        yield strided(f"top-k (32, 32000), k 50, {point}", top_k(32, 32000, k=50), layout)


# -- On a CUDA device ---------------------------------------------------------------------------------------------

_MOST_ELEMENTS = 256 * M
_BATCHES = (1, 32, 1024, 4096)
_AXES = (128, 4096, 32000, 128256, M)
_KS = (1, 8, 50, 256, 2048)
_QUICK = {
    (1, 32000, 50),
    (1, 128256, 1),
    (1, 128256, 256),
    (32, 32000, 50),
    (32, M, 2048),
    (1024, 4096, 8),
    (4096, 128, 8),
}


def _on_cuda() -> Iterator[Case]:
    yield Case("top-k, small", "f32 (1, 16), k 4", top_k(1, 16, k=4), quick=True, share=LAUNCH)
    yield Case("top-k, small", "f32 (32, 128), k 8", top_k(32, 128, k=8), share=LAUNCH)
    for row, dtype in (("top-k f32", "float32"), ("top-k f16", "float16")):
        for batch in _BATCHES:
            for axis in _AXES:
                for k in (k for k in _KS if k <= axis and batch * axis <= _MOST_ELEMENTS):
                    quick = (batch, axis, k) in _QUICK if dtype == "float32" else (batch, axis, k) == (32, 32000, 50)
                    work = top_k(batch, axis, k=k, dtype=dtype)
                    yield Case(row, f"{(batch, axis)}, k {k}", work, goal=1.5, quick=quick, group=GROUP)
    yield Case("top-k f32, axis 0", "(1000, 4096), k 5", top_k(1000, 4096, k=5, axis=0), quick=True)
    for dtype in ("uint8", "int64"):
        yield Case("top-k, other types", f"{dtype} (32, 32000), k 50", top_k(32, 32000, k=50, dtype=dtype))
    for size, quick in ((64 * K, True), (16 * M, False)):
        yield Case("full sort f32", f"{size}", sort(size), quick=quick)


CASES = (
    *_goals(),
    *_adversaries(),
    *_layouts(),
    Case("one thread", "top-k f32 (32, 32000), k 50", top_k(32, 32000, k=50), threads=1),
)
CASES_ON = {"cuda": (*_on_cuda(), *_adversaries(), *_layouts())}
