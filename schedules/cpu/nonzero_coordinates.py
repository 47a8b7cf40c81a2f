"""NONZERO_COORDINATES on the CPU: elements are looked at 64 at a time, and most blocks need no further look.

In parallel it takes two passes: each task counts its own part of the input, and once all counts are known each writes its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.schedules.cpu import per_task, share, split

from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

BLOCK = 64
"""Elements counted together: long enough to vectorise, short enough that an empty block is likely."""
LEAST_TASK_ELEMENTS = 1 << 20
"""A task has to have at least this many elements."""


def kernel(desc: NonzeroCoordinates, target: Target, in_place: bool) -> Kernel:
    """Dimensions keep their meaning; only leading ones of size 1 are dropped, whose coordinates are all zero."""
    source, result = desc.input_tensor, desc.output_coordinates_tensor
    rank = max(source.effective_rank, 1)
    sizes, steps = source.sizes[-rank:], source.layout[-rank:]
    tasks = split(source.element_count, target.tasks(), LEAST_TASK_ELEMENTS)
    dense = steps[-1] == 1 or sizes[-1] == 1
    parameters = (
        ("bytes", source.data_type.itemsize),
        ("float", source.data_type.is_float),
        ("rank", rank),
        ("columns", result.sizes[-1]),
        ("index_bytes", result.data_type.itemsize),
        ("dense", dense),
        ("parallel", tasks > 1),
        ("block", BLOCK),
    )
    return Kernel(
        "nonzero_coordinates",
        "blocks",
        parameters,
        lambda: _Writer(desc, rank, dense, tasks > 1).function(),
        scalars=(tasks, source.element_count, *result.layout[-2:], *sizes, *steps),
        temporaries=(("int64", tasks + 1),),
    )


class _Writer:
    """Writes the kernel; each method writes one piece."""

    def __init__(self, desc: NonzeroCoordinates, rank: int, dense: bool, parallel: bool) -> None:
        self.rank, self.dense, self.parallel = rank, dense, parallel
        self.bits = 8 * desc.input_tensor.data_type.itemsize
        self.is_float = desc.input_tensor.data_type.is_float
        self.columns = desc.output_coordinates_tensor.sizes[-1]
        self.index_type = desc.output_coordinates_tensor.data_type.tvm

    def function(self) -> PrimFunc:
        with T.function() as f:
            self.source = f.buffer("input", f"uint{self.bits}")
            self.count = f.buffer("count", "uint32")
            self.rows = f.buffer("coordinates", self.index_type)
            self.starts = f.buffer("starts", "int64")  # for each task the number of rows before its own; then the total
            self.tasks, self.elements, self.row_step, self.column_step = (
                f.scalar(n) for n in ("tasks", "elements", "row", "column")
            )
            self.sizes, self.steps = f.scalars("size", self.rank), f.scalars("step", self.rank)
            if self.dense:
                self.steps[-1] = T.i64(1)
            if self.parallel:
                per_task(self.tasks, True, self._count_task)
                self._sum_counts()
                per_task(self.tasks, True, self._write_task)
                T.store(self.count, 0, T.cast(self.starts[self.tasks], "uint32"))
            else:
                rows = T.Variable("int64", T.i64(0))
                self._over_runs(T.i64(0), self.elements, lambda at, length: self._write_run(at, length, rows, None))
                T.store(self.count, 0, T.cast(rows.value, "uint32"))
        return f.result()

    def _is_nonzero(self, offset: Any) -> Any:
        """Whether an element is not zero, by its bits: a float's sign does not count, and NaN has bits."""
        word = self.source[offset]
        if self.is_float:
            word = word & T.const((1 << (self.bits - 1)) - 1, f"uint{self.bits}")
        return word != T.const(0, f"uint{self.bits}")

    def _over_runs(self, begin: Any, end: Any, body: Any) -> None:
        """``body(coordinates, length)`` for each stretch of elements, from begin to end, that lies in one innermost row."""
        width = self.sizes[-1]
        position = T.Variable("int64", begin)
        with T.loop_while(position.value < end):
            at = T.unravel(position.value, self.sizes) if self.rank > 1 else [T.let(position.value)]
            length = T.let(T.min(width - at[-1], end - position.value))
            body(at, length)
            position.set(position.value + length)

    def _blocks(self, length: Any, body: Any) -> None:
        """``body(first, size)`` for each block of a stretch."""
        with T.loop(T.truncdiv(length + (BLOCK - 1), T.i64(BLOCK))) as b:
            first = T.let(b * BLOCK)
            body(first, T.let(T.min(T.i64(BLOCK), length - first)))

    def _count_in(self, offset: Any, first: Any, size: Any) -> Any:
        found = T.Variable("int32", T.const(0, "int32"))
        with T.loop(size) as i:
            found.set(found.value + T.cast(self._is_nonzero(offset + (first + i) * self.steps[-1]), "int32"))
        return T.let(T.cast(found.value, "int64"))

    def _count_task(self, task: Any) -> None:
        total = T.Variable("int64", T.i64(0))

        def run(at: list[Any], length: Any) -> None:
            offset = T.let(T.dot(at, self.steps))
            self._blocks(length, lambda first, size: total.set(total.value + self._count_in(offset, first, size)))

        begin, end = share(task, self.tasks, self.elements)
        self._over_runs(begin, end, run)
        T.store(self.starts, task + 1, total.value)

    def _sum_counts(self) -> None:
        T.store(self.starts, 0, T.i64(0))
        with T.loop(self.tasks) as task:
            T.store(self.starts, task + 1, self.starts[task] + self.starts[task + 1])

    def _write_task(self, task: Any) -> None:
        rows = T.Variable("int64", self.starts[task])
        stop = T.let(self.starts[task + 1])
        begin, end = share(task, self.tasks, self.elements)
        self._over_runs(begin, end, lambda at, length: self._write_run(at, length, rows, stop))

    def _write_run(self, at: list[Any], length: Any, rows: T.Variable, stop: Any) -> None:
        """Write the rows of a stretch of one innermost row.

        Writing each element's row and moving on only past those that count needs no branch, but writes one row too many. That row
        is never past the tensor's end, but in parallel the last one of a task is another's first: there it is asked for each.
        """
        offset = T.let(T.dot(at, self.steps))
        leading = [T.let(T.cast(c, self.index_type)) for c in at[:-1]]
        leading = [T.const(0, self.index_type)] * (self.columns - self.rank) + leading

        def store_row(i: Any) -> None:
            for column, coordinate in enumerate([*leading, T.cast(at[-1] + i, self.index_type)]):
                T.store(self.rows, rows.value * self.row_step + column * self.column_step, coordinate)

        def freely(first: Any, size: Any) -> None:
            with T.loop(size) as i:
                store_row(first + i)
                rows.set(rows.value + T.cast(self._is_nonzero(offset + (first + i) * self.steps[-1]), "int64"))

        def carefully(first: Any, size: Any) -> None:
            with T.loop(size) as i, T.when(self._is_nonzero(offset + (first + i) * self.steps[-1])):
                store_row(first + i)
                rows.set(rows.value + 1)

        def block(first: Any, size: Any) -> None:
            found = self._count_in(offset, first, size)
            with T.when(found > 0):
                if stop is None:
                    freely(first, size)
                else:
                    T.either(rows.value + found < stop, lambda: freely(first, size), lambda: carefully(first, size))

        self._blocks(length, block)
