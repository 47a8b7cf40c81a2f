"""Images whose rows are contiguous, and vectors of their rows: what kernels of resampling and of its gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.layout import collapse
from tvmdml.operators._resampling import Grid, Resampling, grid_of
from tvmdml.operators._resampling_reference import Rule
from tvmdml.schedules.cpu import share

LANES = 16
_ONE = Rule(True, "", 1.0, 0.0, 0.0, False)


class Images(NamedTuple):
    """Images beside each other: the last two dimensions are resampled, and the others copied."""

    grids: tuple[Grid, Grid]
    """The places of the rows, and those along a row."""
    outer: tuple[int, ...]
    """The sizes of the other dimensions."""
    scalars: tuple[int, ...]
    """The integers of the launch: both grids, the other dimensions, and their steps and a row's in both tensors."""

    @classmethod
    def of(cls, desc: Resampling) -> Images | None:
        """``None`` if others are resampled, too, if rows are not contiguous, or if the result is antialiased."""
        elements, places = desc.ends()
        rules, sizes, steps = desc.rules(), (elements.sizes, places.sizes), [elements.layout, places.layout]
        if elements.rank == 1:
            rules, sizes, steps = (_ONE, *rules), ((1, *sizes[0]), (1, *sizes[1])), [(0, *own) for own in steps]
        y, x = (grid_of(*one) for one in zip(rules[-2:], sizes[0][-2:], sizes[1][-2:], strict=True))
        copied = all(grid is None for grid in desc.grids()[:-2])
        if not copied or y.fall or x.fall or not all(own[-1] == 1 for own in steps):
            return None
        outer, outer_steps = collapse(sizes[1][:-2], *(own[:-2] for own in steps))
        outer, outer_steps = outer or (1,), tuple(own or (0,) for own in outer_steps)
        numbers = (*y[:9], *x[:9], *outer, *(step for own in outer_steps for step in own), *(own[-2] for own in steps))
        return cls((y, x), outer, numbers)


class RowWriter:
    """Writes a kernel that goes over the rows of images; its first integer is the number of tasks."""

    rank: int
    parallel: bool

    def declare(self, f: T.Function, *more: str) -> list[Any]:
        """Declare the integers of the launch: the tasks, more of these names, and those of the images; returns the former."""
        self.tasks, *found = (f.scalar(name) for name in ("tasks", *more))
        self.y, self.x = (Grid(*f.scalars(name, 9)) for name in ("y", "x"))
        self.outer = f.scalars("outer", self.rank)
        self.steps = [f.scalars(name, self.rank) for name in ("step", "other_step")]
        self.row_steps = [f.scalar(name) for name in ("row", "other_row")]
        return found

    def rows(self, task: Any, height: Any, body: Callable[..., None]) -> None:
        """``body(image, row, first, other)`` for a task's rows: the image's number, a row of it, and where both tensors have it."""
        begin, end = share(task, self.tasks, math.prod(self.outer[1:], start=self.outer[0]) * height)
        with T.loop(T.let(end - begin)) as k:
            image = T.hold(T.truncdiv(begin + k, height))
            at = T.unravel(image, self.outer)
            body(image, T.let(begin + k - image * height), *(T.let(T.dot(at, own)) for own in self.steps))


_GATHER = """
declare <16 x float> @llvm.x86.avx512.mask.gather.dps.512(<16 x float>, ptr, <16 x i32>, <16 x i1>, i32)
define <16 x float> @tvmdml_gather(ptr %row, <16 x i32> %places) alwaysinline {
  %found = call <16 x float> @llvm.x86.avx512.mask.gather.dps.512(
    <16 x float> zeroinitializer, ptr %row, <16 x i32> %places, <16 x i1> splat (i1 true), i32 4)
  ret <16 x float> %found
}
"""


def gathered(buffer: Any, row: Any, places: Any, lanes: int) -> Any:
    """Elements of a row; by one instruction where there is one."""
    if lanes > 1 and str(buffer.dtype) == "float32" and T.has_instructions("avx512f"):
        return T.call_imported(f"float32x{lanes}", "tvmdml_gather", _GATHER, T.address_of(buffer[row]), places)
    return buffer[splat(row, lanes) + T.cast(places, "int64")]


def splat(value: Any, lanes: int) -> Any:
    """A value, or a vector of it."""
    return T.splat(value, lanes) if lanes > 1 else value


def run(start: Any, lanes: int) -> Any:
    """A place, or so many from there on."""
    return T.run(start, lanes) if lanes > 1 else start


def vectors(count: Any, body: Callable[[Any, int], None]) -> None:
    """Vectors of a row, and what is left of it."""
    whole = T.let(T.truncdiv(count, T.i64(LANES)))
    with T.loop(whole) as i:
        body(T.let(i * LANES), LANES)
    done = T.let(whole * LANES)
    with T.loop(T.let(count - done)) as i:
        body(T.let(done + i), 1)
