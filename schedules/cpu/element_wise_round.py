"""ELEMENT_WISE_ROUND on the CPU: bound by memory, so: walk it once, contiguously, vectorised, and in parallel when large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmdml.schedules.cpu import per_task, share, split

from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.layout import collapse
from tvmdml.operators.element_wise_round import ElementWiseRound, rounding
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

LEAST_TASK_BYTES = 1 << 21
"""A thread's share has to be at least this large: what is smaller lies in a core's own cache, and is done sooner than handed over."""


def kernel(desc: ElementWiseRound, target: Target, in_place: bool) -> Kernel:
    """Elements in the output's order; what is contiguous counts as one dimension."""
    source, result = desc.input_tensor, desc.output_tensor
    sizes, (steps_in, steps_out) = collapse(result.sizes, source.layout, result.layout, reorder=True)
    sizes, steps_in, steps_out = sizes or (1,), steps_in or (1,), steps_out or (1,)
    tasks = split(result.element_count * result.data_type.itemsize, target.tasks(), LEAST_TASK_BYTES)
    dense = steps_in[-1] == steps_out[-1] == 1  # a constant step of 1 is what LLVM can vectorise
    return Kernel(
        "element_wise_round",
        "rows",
        (
            ("mode", desc.rounding_mode.name),
            ("type", source.data_type.tvm),
            ("rank", len(sizes)),
            ("dense", dense),
            ("in_place", in_place),
            ("parallel", tasks > 1),
        ),
        lambda: _rows(desc, len(sizes), dense, in_place, tasks > 1),
        scalars=(tasks, *sizes, *steps_in, *steps_out),
    )


def _rows(desc: ElementWiseRound, rank: int, dense: bool, in_place: bool, parallel: bool) -> PrimFunc:
    """Rows of the innermost dimension; a single row is cut into pieces of itself."""
    data_type = desc.input_tensor.data_type
    with T.function() as f:
        # In place there is one buffer: two that are the same would break the promise that none overlap.
        source = None if in_place else f.buffer("input", data_type.tvm)
        result = f.buffer("output", data_type.tvm)
        source = result if source is None else source
        tasks = f.scalar("tasks")
        sizes, steps_in, steps_out = f.scalars("size", rank), f.scalars("in", rank), f.scalars("out", rank)
        step_in, step_out = (T.i64(1), T.i64(1)) if dense else (steps_in[-1], steps_out[-1])

        def run(offset_in: object, offset_out: object, begin: object, end: object) -> None:
            with T.loop(end - begin) as i:
                value = source[offset_in + (begin + i) * step_in]
                T.store(result, offset_out + (begin + i) * step_out, rounding(desc.rounding_mode, value, data_type))

        def task(number: object) -> None:
            if rank == 1:
                run(T.i64(0), T.i64(0), *share(number, tasks, sizes[0]))
                return
            rows = sizes[0]
            for size in sizes[1:-1]:
                rows = rows * size
            begin, end = share(number, tasks, rows)
            with T.loop(end - begin) as r:
                at = T.unravel(begin + r, sizes[:-1])
                run(T.let(T.dot(at, steps_in[:-1])), T.let(T.dot(at, steps_out[:-1])), T.i64(0), sizes[-1])

        per_task(tasks, parallel, task)
    return f.result()
