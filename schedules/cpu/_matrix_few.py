"""Products of a few rows: the second factor is read once, as it lies."""

from __future__ import annotations

import math
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import KC
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.cpu import split
from tvmdml.schedules.cpu._gemm_arithmetic import FloatProducts, RowBytes
from tvmdml.schedules.cpu._gemm_panels import ACROSS, ALONG
from tvmdml.schedules.cpu._gemm_rows import BLOCKS, RowLoops, form_of, together
from tvmdml.schedules.cpu._gemm_rows_bytes import ByteRows, room
from tvmdml.schedules.cpu._matrix_writer import MatrixWriter, PlainContraction
from tvmdml.schedules.cpu._tiles import SIDE
from tvmdml.targets import Target


class FloatRows(MatrixWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Rows of floats."""

    WAY = "rows"

    def __init__(self, desc: Matrix, plain: PlainContraction, target: Target, knobs: Any) -> None:
        super().__init__(desc, plain, target, knobs)
        rows, columns, depth = plain.sizes
        _, _, across, _ = plain.steps(self.contraction.b)
        self.lanes = self.bytes_of_vector // (8 if self.contraction.computed == "float64" else 4)
        itemsize = getattr(desc, self.contraction.b.name).data_type.itemsize
        self.form, self.together = form_of(rows, across, itemsize, depth, self.lanes), together(across * itemsize)
        batch = math.prod(plain.batch)
        wanted = split(batch * rows * columns * depth, target, knobs.task_products)
        parts = 1 if batch >= wanted else min(wanted, max(1, columns // 64))
        tasks = min(wanted, batch * parts)
        of_row = {ACROSS: 2 * (-(-columns // parts) + 128), ALONG: 2 * self.together, BLOCKS: depth + SIDE * (depth // KC)}
        room = rows * of_row[self.form]
        self.temporaries = ((self.contraction.computed, tasks * room),)
        self.scalars = (tasks, batch, parts, columns, depth, room, *self.numbers)

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        choices = (("rows", self.plain.sizes[0]), ("form", self.form), ("lanes", self.lanes))
        return (*self.key(), *choices, ("together", self.together))

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            tensors = f.tensors(self.desc)
            scratch = f.buffer("scratch", self.contraction.computed)
            tasks, batch, parts, columns, depth, room = (
                f.scalar(n) for n in ("tasks", "batch", "parts", "columns", "depth", "room")
            )
            self.declare(f, tensors)
            rows = RowLoops(self.plain.sizes[0], self.lanes, FloatProducts(self.contraction.computed), self.together)
            buffers = [tensors[one.name] for one in self.operands[:2]]

            def start(number: Any) -> tuple[Any, Any]:
                self.begin(number)
                return self.bases[0], self.bases[1]

            sizes = (tasks, batch, parts, columns, depth)
            rows.write(self.form, sizes, buffers, self.steps[:2], scratch, room, start, self.put)
        return f.result()


class FewBytes(MatrixWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Rows of bytes."""

    WAY = "rows"
    arithmetic: RowBytes

    @staticmethod
    def serves(target: Target) -> bool:
        """Whether the processor has the instruction, on vectors of 64 bytes."""
        processor = getattr(target, "processor", None)
        return processor is not None and processor.has("avx512f") and processor.has("avx512vnni")

    def __init__(self, desc: Matrix, plain: PlainContraction, target: Target, knobs: Any) -> None:
        super().__init__(desc, plain, target, knobs)
        rows, columns, depth = plain.sizes
        self.arithmetic = RowBytes((self.is_signed(self.contraction.a), self.is_signed(self.contraction.b)))
        self.form = ACROSS if plain.steps(self.contraction.b)[2] == 1 else ALONG
        batch = math.prod(plain.batch)
        wanted = split(batch * rows * columns * depth, target, knobs.task_products)
        parts = 1 if batch >= wanted else min(wanted, max(1, columns // 64))
        tasks = min(wanted, batch * parts)
        own = room(rows, -(-columns // parts) + 2 * SIDE, depth, self.corrects()[1])
        self.temporaries = (("int32", tasks * own),)
        self.scalars = (tasks, batch, parts, columns, depth, own, *self.numbers)

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        choices = (("rows", self.plain.sizes[0]), ("form", self.form), ("arithmetic", self.arithmetic.key()))
        return (*self.key(), *choices)

    def function(self) -> T.PrimFunc:
        with T.function() as f:
            tensors = f.tensors(self.desc)
            scratch = f.buffer("scratch", "int32")
            names = ("tasks", "batch", "parts", "columns", "depth", "room")
            tasks, batch, parts, columns, self.depth, own = (f.scalar(n) for n in names)
            self.declare(f, tensors)
            rows = ByteRows(self.plain.sizes[0], self.arithmetic, self.corrects(), self.known[0][2] == 1)
            buffers = [tensors[one.name] for one in self.operands[:2]]

            def start(number: Any) -> tuple[Any, Any]:
                self.begin(number)
                return self.bases[0], self.bases[1]

            def put(row: Any, column: Any, total: Any, sums: tuple[Any, Any]) -> None:
                self.put(row, column, self.corrected(row, column, total, sums))

            sizes = (tasks, batch, parts, columns, self.depth)
            rows.write(self.form, sizes, buffers, self.steps[:2], scratch, own, start, put)
        return f.result()
