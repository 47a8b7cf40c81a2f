"""ELEMENT_WISE_ROUND on the CPU: bound by memory, so: walk it once, contiguously, vectorised, and in parallel when large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmdml.schedules.cpu import _leaves as leaves
from tvmdml.schedules.cpu import per_task, share, split

from tvmdml import tensorir as T
from tvmdml.kernel import Kernel
from tvmdml.layout import collapse
from tvmdml.operators.element_wise_round import ElementWiseRound, rounding
from tvmdml.targets import Target

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

LEAST_TASK_BYTES = 1 << 22
"""A thread's share has to be at least this large: less lies in a core's own cache, and is done sooner than handed over."""

LEAST_ALIGNED = 4096
"""Elements from which on a run is worth aligning."""


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

        def piece(offset_in: Any, offset_out: Any, length: Any) -> None:
            with T.loop(length) as i:
                value = source[offset_in + i * step_in]
                T.store(result, offset_out + i * step_out, rounding(desc.rounding_mode, value, data_type))

        def run(offset_in: Any, offset_out: Any, length: Any) -> None:
            if not dense:
                piece(offset_in, offset_out, length)
                return
            # Up to a cache line's beginning first: stores that straddle two lines cost a long run an eighth of its speed.
            past = T.truncdiv(leaves.misalignment(result, offset_out), T.i64(data_type.itemsize))
            head = T.let(T.Select((past > 0) & (length >= LEAST_ALIGNED), T.i64(64 // data_type.itemsize) - past, T.i64(0)))
            piece(offset_in, offset_out, head)
            piece(T.let(offset_in + head), T.let(offset_out + head), length - head)

        def task(number: Any) -> None:
            if rank == 1:
                begin, end = share(number, tasks, sizes[0])
                run(T.let(begin * step_in), T.let(begin * step_out), T.let(end - begin))
                return
            rows = sizes[0]
            for size in sizes[1:-1]:
                rows = rows * size
            begin, end = share(number, tasks, rows)
            with T.loop(end - begin) as r:
                at = T.unravel(begin + r, sizes[:-1])
                run(T.let(T.dot(at, steps_in[:-1])), T.let(T.dot(at, steps_out[:-1])), sizes[-1])

        with leaves.available():
            per_task(tasks, parallel, task)
    return f.result()
