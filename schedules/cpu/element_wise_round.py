"""ELEMENT_WISE_ROUND on the CPU: limited by memory, so read and write it once, contiguously, vectorised, in parallel if large.

Above the size of the caches, the result is written with non-temporal stores: a plain store reads a cache line before it writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml import tensorir as T
from tvmdml.enums import RoundingMode
from tvmdml.kernel import Kernel
from tvmdml.knobs import Constraint, Knob, Knobs
from tvmdml.layout import collapse
from tvmdml.operators.element_wise_round import ElementWiseRound, rounding
from tvmdml.schedules.cpu import per_task, share, split, unit_step
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles, transposed
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

KNOBS = Knobs(
    "element_wise_round",
    Constraint("stream_bytes is 1 MiB or more: small results stay in a cache", lambda knobs, _: knobs.stream_bytes >= 1 << 20),
    # A task reads and writes a quarter of a core's L2 cache (8 bytes per float32). So one thread alone does what fits in half of
    # its L2 cache: sharing that with a second thread would save less than it costs to fetch lines from the other core.
    task_elements=Knob(
        1 << 15, (1, *(1 << n for n in range(10, 24))), "least float32 elements for each task",
        derived=lambda caches: caches.l2 // 4 // 8,
    ),
    tasks_per_thread=Knob(4, (1, 2, 4, 8), "most tasks per thread"),
    # Input and result together fill the last-level cache.
    stream_bytes=Knob(
        1 << 24, (1, *(1 << n for n in range(20, 40))), "least bytes of a result that is written with non-temporal stores",
        derived=lambda caches: max(caches.l3 // 2, 1 << 20),
    ),
    aligned_elements=Knob(4096, (1, *(1 << n for n in range(6, 20))), "shortest row whose stores are aligned to cache lines"),
)  # fmt: skip


def _even(x: Any) -> Any:
    return T.call_llvm_pure_intrin(T.type_of(x), "llvm.roundeven", x)


def _toward_zero(x: Any) -> Any:
    return T.trunc(x)  # in a function: naming it in the table below would load the compiler, and that for every cached kernel


def _away_from_zero(x: Any) -> Any:
    whole, dtype = T.trunc(x), f"float{x.ty.dtype.bits}"
    rest, half, one = x - whole, T.const(0.5, dtype), T.const(1, dtype)
    return T.Select(rest >= half, whole + one, T.Select(rest <= -half, whole - one, whole))


ROUNDING = {
    RoundingMode.HALVES_TO_NEAREST_EVEN: _even,
    RoundingMode.TOWARD_ZERO: _toward_zero,
    RoundingMode.TOWARD_INFINITY: _away_from_zero,
}
"""These do not depend on the processor's rounding mode, unlike TVM's own functions: all sums and differences here are exact."""


def kernel(desc: ElementWiseRound, target: Target, in_place: bool) -> Kernel:
    """Elements in the output's order; contiguous dimensions are merged into one."""
    knobs = KNOBS.now(target, desc, in_place)
    source, result = desc.input_tensor, desc.output_tensor
    sizes, (steps_in, steps_out) = collapse(result.sizes, source.layout, result.layout, reorder=True)
    sizes, steps_in, steps_out = sizes or (1,), steps_in or (1,), steps_out or (1,)
    size = result.element_count * result.data_type.itemsize
    # A float64 has twice as many bytes. A float16 takes as long as a float32: it is converted to float32 and back.
    work = result.element_count * (1 if result.data_type.itemsize == 4 else 2)
    tasks = split(work, target, knobs.task_elements, knobs.tasks_per_thread)
    if (tiled := _tiled_first(sizes, steps_in, steps_out)) is not None:
        sizes, steps_in, steps_out = ((*v[:tiled], *v[tiled + 1 : -1], v[tiled], v[-1]) for v in (sizes, steps_in, steps_out))
    writer = _Writer(
        desc,
        Leaves(target),
        rank=len(sizes),
        steps=(unit_step(steps_in[-1]), unit_step(steps_out[-1])),
        tiled=tiled is not None,
        in_place=in_place,
        parallel=tasks > 1,
        # In place, the line is already in cache.
        stream=size >= knobs.stream_bytes and not in_place and steps_in[-1] == steps_out[-1] == 1,
        aligned=knobs.aligned_elements,
    )
    return Kernel("element_wise_round", "rows", writer.parameters, writer.function, scalars=(tasks, *sizes, *steps_in, *steps_out))


def _tiled_first(sizes: tuple[int, ...], steps_in: tuple[int, ...], steps_out: tuple[int, ...]) -> int | None:
    """A dimension that is contiguous in the input, if the last dimension is contiguous only in the output."""
    if steps_out[-1] != 1 or steps_in[-1] == 1 or sizes[-1] < SIDE:
        return None
    return next((i for i, size in enumerate(sizes[:-1]) if steps_in[i] == 1 and size >= SIDE), None)


class _Writer:
    """Writes the kernel: rows of the innermost dimension; a single row is divided into pieces."""

    rank: int
    steps: tuple[int, int]
    tiled: bool
    in_place: bool
    parallel: bool
    stream: bool
    aligned: int

    def __init__(self, desc: ElementWiseRound, leaves: Leaves, **choices: Any) -> None:
        self.mode, self.data_type, self.leaves = desc.rounding_mode, desc.input_tensor.data_type, leaves
        self.__dict__.update(choices)
        self.parameters = (("mode", self.mode.name), ("type", self.data_type.tvm), *choices.items())

    def function(self) -> PrimFunc:
        with T.function() as f:
            # In place there is one buffer: two buffers with the same memory would break the promise that none overlap.
            source = None if self.in_place else f.buffer("input", self.data_type.tvm)
            self.result = f.buffer("output", self.data_type.tvm)
            self.source = self.result if source is None else source
            tasks = f.scalar("tasks")
            sizes, steps_in, steps_out = f.scalars("size", self.rank), f.scalars("in", self.rank), f.scalars("out", self.rank)
            self.step_in, self.step_out = (
                T.i64(step) if step else steps[-1] for step, steps in zip(self.steps, (steps_in, steps_out), strict=True)
            )

            def task(number: Any) -> None:
                if self.tiled:
                    outer = [*sizes[:-2], tiles(sizes[-2])]
                    groups = outer[0]
                    for size in outer[1:]:
                        groups = groups * size
                    begin, end = share(number, tasks, groups)
                    with T.loop(end - begin) as g:
                        *at, tile = T.unravel(begin + g, outer)
                        first = corner(tile, sizes[-2])
                        start_in, start_out = (T.let(T.dot([*at, first], s[:-1])) for s in (steps_in, steps_out))
                        self._tiles(start_in, start_out, steps_in[-1], steps_out[-2], sizes[-1])
                elif self.rank == 1:
                    begin, end = share(number, tasks, sizes[0])
                    self._run(T.let(begin * self.step_in), T.let(begin * self.step_out), T.let(end - begin))
                else:
                    rows = sizes[0]
                    for size in sizes[1:-1]:
                        rows = rows * size
                    begin, end = share(number, tasks, rows)
                    with T.loop(end - begin) as r:
                        at = T.unravel(begin + r, sizes[:-1])
                        self._run(T.let(T.dot(at, steps_in[:-1])), T.let(T.dot(at, steps_out[:-1])), sizes[-1])
                if self.stream:
                    self.leaves.fence()

            with self.leaves.available():
                per_task(tasks, self.parallel, task)
        return f.result()

    def _rounded(self, value: Any) -> Any:
        round_wide = ROUNDING[self.mode]
        if self.data_type is TensorDataType.FLOAT16 and T.lanes(value) > 1:
            return rounding(self.mode, value, self.data_type, {self.mode: lambda x: round_wide(self.leaves.wide(x))})
        return rounding(self.mode, value, self.data_type, ROUNDING)

    def _run(self, start_in: Any, start_out: Any, length: Any) -> None:
        """Round a row of elements with constant strides."""
        if self.steps != (1, 1):
            self._one_by_one(start_in, start_out, length)
            return
        line = 64 // self.data_type.itemsize

        def whole_lines() -> None:
            # Up to the beginning of a cache line first: stores that straddle two lines make a long row an eighth slower.
            past = T.truncdiv(self.leaves.misalignment(self.result, start_out), T.i64(self.data_type.itemsize))
            head = T.let(T.Select((past > 0) & (length >= max(self.aligned, 2 * line)), T.i64(line) - past, T.i64(0)))
            with T.when(head > 0):
                self._line(start_in, start_out, line, stream=False)
            if self.stream:
                T.either(length >= max(self.aligned, 2 * line), lambda: lines(head, True), lambda: lines(head, False))
            else:
                lines(head, False)
            # What is left is less than a line, so the last line overlaps elements that are done: rounding twice changes nothing.
            self._line(start_in + length - line, start_out + length - line, line, stream=False)

        def lines(head: Any, stream: bool) -> None:
            with T.loop(T.let(T.truncdiv(length - head, T.i64(line)))) as i:
                at = T.let(head + i * line)
                self._line(start_in + at, start_out + at, line, stream)

        T.either(length >= line, whole_lines, lambda: self._one_by_one(start_in, start_out, length))

    def _line(self, at_in: Any, at_out: Any, line: int, stream: bool) -> None:
        value = self._rounded(self.source[T.run(at_in, line)])
        if stream:
            self.leaves.stream(self.result, at_out, value)
        else:
            T.store(self.result, T.run(at_out, line), value)

    def _tiles(self, start_in: Any, start_out: Any, step_in: Any, step_out: Any, width: Any) -> None:
        """A row of tiles: columns of the result, which are rows of the input, are read and rounded, and then rows are written."""
        with T.loop(T.let(tiles(width))) as tile:
            left = corner(tile, width)
            columns = [T.hold(self._rounded(self.source[T.run(start_in + (left + c) * step_in, SIDE)])) for c in range(SIDE)]
            for r, row in enumerate(transposed(columns)):
                T.store(self.result, T.run(start_out + r * step_out + left, SIDE), row)

    def _one_by_one(self, start_in: Any, start_out: Any, length: Any) -> None:
        with T.loop(length) as i:
            value = self.source[start_in + i * self.step_in]
            T.store(self.result, start_out + i * self.step_out, self._rounded(value))
