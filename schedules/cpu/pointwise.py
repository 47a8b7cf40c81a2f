"""Pointwise operators on the CPU: limited by memory, so read and write it once, in whole vectors, in parallel if large.

Above the size of the caches, results are written with non-temporal stores: a plain store reads a cache line before it writes it.
There are three ways, over any number of tensors:

- ``lines``: every output is contiguous in a row, and every input is contiguous or repeats one element: vectors of a cache line, or
  two shorter ones for a row that is shorter than a line.
- ``tiles``: inputs are contiguous in another dimension than the outputs: squares are transposed in registers.
- ``elements``: any other strides: loops of single elements, which LLVM vectorises for small strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmdml.kernels import launched
from tvmdml.kernels import tensorir as T
from tvmdml.kernels.formula import Formula, Sink, Source
from tvmdml.kernels.kernel import Kernel, Offers
from tvmdml.kernels.knobs import Knob, Knobs
from tvmdml.kernels.layout import collapse
from tvmdml.operators._contract import Shared
from tvmdml.operators._pointwise import Pointwise
from tvmdml.schedules.cpu import STREAMED, TASKS_PER_THREAD, _default, per_task, share, split, stream_bytes
from tvmdml.schedules.cpu._leaves import Leaves
from tvmdml.schedules.cpu._runs import Runs, aligned_elements, are_lines, lanes_of, lanes_of_function
from tvmdml.schedules.cpu._tiles import SIDE, corner, tiles
from tvmdml.targets import Target
from tvmdml.tensors import TensorDataType

KNOBS = Knobs(
    "pointwise",
    STREAMED,
    # A task reads and writes a quarter of a core's L2 cache (8 bytes per element). So one thread alone does what fits in half of
    # its L2 cache: sharing that with a second thread would save less than it costs to fetch lines from the other core.
    task_elements=Knob(
        1 << 15, (1, *(1 << n for n in range(10, 24))), "least elements of 8 bytes, input and output together, for each task",
        derived=lambda caches: caches.l2 // 4 // 8,
    ),
    tasks_per_thread=TASKS_PER_THREAD,
    # Inputs and results together fill the last-level cache.
    stream_bytes=stream_bytes("least bytes, half of all tensors', to write with non-temporal stores"),
    aligned_elements=aligned_elements(4096),
)  # fmt: skip

_ROWS = 4
"""With fewer rows for each task, tasks also divide rows: otherwise some would have twice as much to do as others."""
_KNOWN = 4
"""Strides up to this are constants in the code, since LLVM vectorises a known stride."""


def kernel(desc: Pointwise, target: Target, shared: Shared, knobs: Any) -> Kernel:
    """The kernel of one operator."""
    if not desc.is_strided():
        return _default.kernel(desc, target, shared)
    processor = getattr(target, "processor", None)
    emulated = desc.steps() > 0 and processor is not None and processor.has("x86") and not processor.has("fma")
    return kernel_of(desc.formula(shared), target, knobs, tiled=not emulated, once=desc.steps() > 0)


def kernel_of(formula: Formula, target: Target, knobs: Any, tiled: bool = True, once: bool = False) -> Kernel:
    """The kernel of a formula: elements in the first output's order, and contiguous dimensions merged into one.

    Not ``tiled`` are functions on processors without fused multiply-adds: LLVM takes minutes for a tile of such code. The code of
    functions should have them ``once``.
    """
    tensors = (*formula.inputs, *reversed(formula.outputs))
    sizes, steps = collapse(formula.outputs[0].sizes, *(tensor.layout for tensor in tensors), reorder=True)
    count = len(formula.inputs)
    sizes, steps = sizes or (1,), tuple(own or (1,) for own in (*steps[:count], *reversed(steps[count:])))
    inputs, outputs = steps[:count], steps[count:]
    lanes = lanes_of(formula, target)
    if once and (len(sizes) == 1 or sizes[-1] >= 2 * lanes):
        lanes = lanes_of_function(formula, target)
    inputs = tuple(own for i, own in enumerate(inputs) if i not in formula.counted)
    turned = _turned(sizes, inputs, outputs) if tiled else None
    if turned is not None:  # the dimension that tiles are cut from comes second to last
        order = [*(i for i in range(len(sizes) - 1) if i != turned), turned, len(sizes) - 1]
        sizes, steps = tuple(sizes[i] for i in order), tuple(tuple(own[i] for i in order) for own in steps)
    contiguous = all(own[-1] == 1 for own in outputs) and all(own[-1] in (0, 1) for own in inputs)
    read = (tensor for i, tensor in enumerate(formula.inputs) if i not in formula.counted)
    moved = sum(min(tensor.span, tensor.element_count) * tensor.data_type.itemsize for tensor in (*read, *formula.outputs))
    tasks = split(_work(formula), target, knobs.task_elements, knobs.tasks_per_thread)
    parts = tasks > 1 and formula.outputs[0].element_count // sizes[-1] < _ROWS * tasks
    way = "tiles" if turned is not None else "lines" if contiguous else "elements"
    writer = _Writer(
        formula,
        Leaves(target),
        way=way,
        lanes=lanes,
        rank=len(sizes),
        last=tuple(own[-1] if 0 <= own[-1] <= _KNOWN else -1 for own in steps),
        parts=parts,
        # Of many rows the length is known. One row is worth no kernel of its own, and a part of a row has any length.
        rows="any" if way != "lines" or parts or len(sizes) == 1 else "long" if sizes[-1] >= lanes else "short",
        # In place, the line is already in cache.
        stream=moved >= 2 * knobs.stream_bytes and contiguous and not formula.shared and are_lines(formula, lanes),
        aligned=knobs.aligned_elements,
        once=once,
    )
    module, *also = formula.modules
    scalars = (tasks, *sizes, *sum(steps, ()), *launched.patterns(formula.words))
    offers = Offers.OWN if way == "elements" else Offers.OWN | Offers.VECTORS
    return Kernel(module, way, writer.parameters, writer.function, scalars, also=tuple(also), offers=offers)


def _work(formula: Formula) -> int:
    """The elements, weighted by 8 bytes each. A float16 takes as long as a float64: it is converted to float32 and back."""
    tensors = (*formula.inputs, *formula.outputs)
    narrow = any(tensor.data_type is TensorDataType.FLOAT16 for tensor in tensors)
    moved = sum(tensor.data_type.itemsize for tensor in tensors if 0 not in tensor.layout or tensor.element_count == 1)
    return formula.outputs[0].element_count * max(16 if narrow else 8, moved) // 8


def _turned(sizes: Sequence[int], inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> int | None:
    """A dimension in which some inputs are contiguous, if the last one is contiguous in the outputs and in no such input."""
    if any(own[-1] != 1 for own in outputs) or sizes[-1] < SIDE:
        return None
    across = [own for own in inputs if own[-1] not in (0, 1)]
    wide = (i for i, size in enumerate(sizes[:-1]) if size >= SIDE)
    return next((i for i in wide if across and all(own[i] == 1 for own in across)), None)


class _Writer(Runs):  # type: ignore[misc] # mypy knows these modules by another name
    """Writes the kernel: rows of the innermost dimension, which tasks may divide."""

    way: str
    rank: int
    parts: bool

    def function(self) -> T.PrimFunc:
        formula = self.formula
        with T.function() as f:
            # An input that shares an output's memory is no parameter: two buffers with the same memory would violate the no-alias
            # promise.
            shared = dict(formula.shared)
            inputs = [(i, t) for i, t in enumerate(formula.inputs) if i not in formula.counted]
            read = {i: f.buffer(f"input{i}", t.data_type.tvm) for i, t in inputs if i not in shared}
            written = [f.buffer(f"output{i}", t.data_type.tvm) for i, t in enumerate(formula.outputs)]
            found: dict[int, Any] = {**dict.fromkeys(formula.counted), **read, **{i: written[at] for i, at in shared.items()}}
            buffers = [*(found[i] for i in range(len(formula.inputs))), *written]
            tasks, sizes = f.scalar("tasks"), f.scalars("size", self.rank)
            places = []
            for i, (buffer, last) in enumerate(zip(buffers, self.last, strict=True)):
                steps = f.scalars(f"step{i}_", self.rank)
                dtype = formula.inputs[i].data_type.tvm if i in shared else ""
                places.append(Source(buffer, (*steps[:-1], steps[-1] if last < 0 else last), dtype=dtype))
            self.sink = Sink(formula, tuple(places[: len(formula.inputs)]), tuple(places[len(formula.inputs) :]))

            def task(number: Any) -> None:
                (self._tiles if self.way == "tiles" else self._rows)(number, tasks, sizes)
                if self.stream:
                    self.leaves.fence()

            words = f.scalars("word", len(formula.words))
            with self.leaves.available(), launched.given(words):
                per_task(tasks, task)
        return f.result()

    # -- Rows

    def _rows(self, number: Any, tasks: Any, sizes: list[Any]) -> None:
        """A task's share of the rows; of all elements, if there are few rows: then its first and its last row may be parts."""
        *outer, length = sizes
        run = self.lines if self.way == "lines" else self.elements
        if self.rank == 1:
            begin, end = share(number, tasks, length)
            run(self.sink, begin, end)
        elif not self.parts:
            begin, end = share(number, tasks, math.prod(outer[1:], start=outer[0]))
            with T.loop(end - begin) as row:
                run(self.sink.within(T.unravel(begin + row, outer)), T.i64(0), length)
        else:
            begin, end = share(number, tasks, math.prod(sizes[1:], start=sizes[0]))
            first = T.hold(T.truncdiv(begin, length))
            with T.loop(T.hold(T.truncdiv(end + length - 1, length)) - first) as i:
                row = T.let(first + i)
                start, stop = T.hold(T.max(begin - row * length, T.i64(0))), T.hold(T.min(end - row * length, length))
                run(self.sink.within(T.unravel(row, outer)), start, stop)

    # -- Tiles

    def _tiles(self, number: Any, tasks: Any, sizes: list[Any]) -> None:
        """A task's share of the rows of tiles."""
        *outer, height, width = sizes
        # In place no element is computed twice: tiles do not overlap, and the edges are done one by one.
        in_place = bool(self.formula.shared)
        groups = [*outer, tiles(height)]
        begin, end = share(number, tasks, math.prod(groups[1:], start=groups[0]))
        with T.loop(end - begin) as i:
            *at, tile = T.unravel(begin + i, groups)
            sink = self.sink.within(at)
            if in_place:
                self._tiles_and_edges(sink, T.let(tile * SIDE), height, width)
            else:
                self.row_of_tiles(sink, corner(tile, height), width)

    def _tiles_and_edges(self, sink: Sink, top: Any, height: Any, width: Any) -> None:
        def whole() -> None:
            self.row_of_tiles(sink, top, width)
            self._edge(sink, top, T.i64(SIDE), T.let(T.truncdiv(width, T.i64(SIDE)) * SIDE), width)

        T.either(top + SIDE <= height, whole, lambda: self._edge(sink, top, height - top, T.i64(0), width))

    def _edge(self, sink: Sink, top: Any, rows: Any, start: Any, stop: Any) -> None:
        with T.loop(rows) as row:
            self.elements(sink.within([T.let(top + row)]), start, stop)
