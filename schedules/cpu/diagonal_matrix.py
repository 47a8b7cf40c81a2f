"""DIAGONAL_MATRIX1 on the CPU: in each row the band is one segment, so a row is three runs of filling or copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.schedules.cpu import per_task, share, split

from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.layout import collapse
from tvmdml.operators.diagonal_matrix import DiagonalMatrix1, bits
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

LEAST_TASK_BYTES = 1 << 22
"""A thread's share has to be at least this large."""


def kernel(desc: DiagonalMatrix1, target: Target, in_place: bool) -> Kernel:
    """Rows of all matrices of the batch. Elements are moved as plain bits, so one kernel serves every type of a size."""
    source, result = desc.input_tensor, desc.output_tensor
    layouts = (result.layout, result.layout if source is None else source.layout)
    batch, steps = collapse(result.sizes[:-2], *(layout[:-2] for layout in layouts))
    height, width = result.sizes[-2:]
    itemsize = result.data_type.itemsize
    tasks = split(result.element_count * itemsize, target.tasks(), LEAST_TASK_BYTES)
    begin, end = desc.diagonal_fill_begin, desc.diagonal_fill_end
    inverted = begin > end  # then the value goes outside of [end, begin)
    dense = width == 1 or all(layout[-1] == 1 for layout in layouts)
    # Zeros all over are one long fill; the band is then stored on top, still in cache.
    zero_first = source is None and not inverted and result.is_packed
    value = bits(desc.element())
    return Kernel(
        "diagonal_matrix",
        "rows",
        (
            ("bytes", itemsize),
            ("input", source is not None),
            ("inverted", inverted),
            ("batch_rank", len(batch)),
            ("dense", dense),
            ("zero_first", zero_first),
            ("parallel", tasks > 1),
        ),
        lambda: _rows(itemsize, source is not None, inverted, len(batch), dense, zero_first, tasks > 1),
        scalars=(
            tasks, height, width, min(begin, end), max(begin, end),
            value - (1 << 64) if value >> 63 else value,  # 64 bits pass as a signed integer
            *layouts[0][-2:], *layouts[1][-2:], *batch, *steps[0], *steps[1],
        ),
    )  # fmt: skip


def _rows(
    itemsize: int, has_input: bool, inverted: bool, batch_rank: int, dense: bool, zero_first: bool, parallel: bool
) -> PrimFunc:
    unsigned = f"uint{8 * itemsize}"
    with T.function() as f:
        source = f.buffer("input", unsigned) if has_input else None
        result = f.buffer("output", unsigned)
        tasks, height, width, low, high, value_bits = (f.scalar(n) for n in ("tasks", "height", "width", "low", "high", "value"))
        row_out, column_out, row_in, column_in = (f.scalar(n) for n in ("row_out", "column_out", "row_in", "column_in"))
        batch = f.scalars("batch", batch_rank)
        steps_out, steps_in = f.scalars("batch_out", batch_rank), f.scalars("batch_in", batch_rank)
        if dense:
            column_out = column_in = T.i64(1)
        value = T.let(T.cast(value_bits, unsigned))

        def fill(into: Any, begin: Any, end: Any, what: Any) -> None:
            with T.loop(end - begin) as i:
                T.store(result, into + (begin + i) * column_out, what)

        def rest(into: Any, start: Any, begin: Any, end: Any) -> None:
            """What stands outside the value: the input's elements, or zeros."""
            if zero_first:
                return
            if source is None:
                fill(into, begin, end, T.const(0, unsigned))
                return
            with T.loop(end - begin) as i:
                T.store(result, into + (begin + i) * column_out, source[start + (begin + i) * column_in])

        def task(number: Any) -> None:
            rows = height
            for size in batch:
                rows = rows * size
            begin, end = share(number, tasks, rows)
            if zero_first:
                fill(T.let(begin * width), T.i64(0), T.let((end - begin) * width), T.const(0, unsigned))
            with T.loop(end - begin) as r:
                *at, y = T.unravel(begin + r, [*batch, height])
                into = T.let(T.dot(at, steps_out) + y * row_out)
                start = T.let(T.dot(at, steps_in) + y * row_in)
                first = T.let(T.max(T.i64(0), T.min(width, y + low)))
                last = T.let(T.max(T.i64(0), T.min(width, y + high)))
                if inverted:
                    fill(into, T.i64(0), first, value)
                    rest(into, start, first, last)
                    fill(into, last, width, value)
                else:
                    rest(into, start, T.i64(0), first)
                    fill(into, first, last, value)
                    rest(into, start, last, width)

        per_task(tasks, parallel, task)
    return f.result()
