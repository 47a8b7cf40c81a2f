"""Products with a matrix of few bits in blocks on the CPU: rows over the matrix as it lies (``_gemm_bits.py``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.schedules.cpu import split
from tvmdml.schedules.cpu._gemm_bit_integers import IntegerRows
from tvmdml.schedules.cpu._gemm_bits import BitRows, Bits
from tvmdml.schedules.cpu._gemm_bits_across import COLUMNS as ACROSS
from tvmdml.schedules.cpu._gemm_bits_across import AcrossRows
from tvmdml.schedules.cpu._matrix_writer import MatrixWriter, PlainContraction
from tvmdml.targets import Target

_SUMS = {16: 16, 8: 8, 4: 8}
"""Vectors of sums that have room in registers, by the lanes of a vector."""


def serves(desc: BlockwiseGemm) -> bool:
    """Whether rows have blocks one after the other, of whole words, and of a power of two of them; or columns, in any blocks."""
    count, tensors = 32 // desc.bits, (desc.b_tensor, desc.scale_tensor, desc.zero_point_tensor)
    words = desc.block_size // count
    whole = desc.block_size % count == 0 and words & (words - 1) == 0
    if not all(tensor is None or tensor.sizes[1] == 1 or tensor.layout[1] == 1 for tensor in tensors):
        return False
    return desc.is_across or (whole and desc.b_tensor.sizes[1] // 4 * count >= desc.a_tensor.sizes[-1])


def of_bits(desc: Matrix) -> BlockwiseGemm | None:
    """The operator whose second factor has few bits, if it is one."""
    head = desc.head()
    return head if isinstance(head, BlockwiseGemm) else None


def stored(own: BlockwiseGemm, lanes: int) -> Bits:
    """How the elements are stored, for vectors of so many words."""
    kind = "" if own.zero_point_tensor is None else "floats" if own.zeros_are_floats else "bits"
    return Bits(own.bits, own.is_signed, own.block_size if own.is_across else own.block_size * own.bits // 32, kind, lanes)


def row_steps(own: BlockwiseGemm) -> tuple[int, int]:
    """From one column's scales to the next one's, and from its zero points."""
    return own.steps_of("scale_tensor")[0], 0 if own.zero_point_tensor is None else own.steps_of("zero_point_tensor")[0]


class FewBits(MatrixWriter):  # type: ignore[misc] # mypy knows these modules by another name
    """Rows of floats."""

    WAY = "bits"
    TOGETHER: Mapping[int, tuple[int, ...]] = MappingProxyType({16: (4, 2, 2, 4), 8: (2, 1, 1, 1), 4: (2, 1, 1, 1)})
    """Columns that are computed together, by the lanes of a vector, for 1 to 4 rows: all has room in registers."""

    def __init__(self, desc: Matrix, plain: PlainContraction, target: Target, knobs: Any) -> None:
        super().__init__(desc, plain, target, knobs)
        own = of_bits(desc)
        assert own is not None
        self.own = own
        rows, columns, depth = plain.sizes
        lanes = self.bytes_of_vector // 4
        self.bits = stored(own, lanes)
        self.together_rows = next((n for n in (1, 2, 3) if rows == n), 4)
        self.together = 1 if columns < 16 else self.TOGETHER[lanes][self.together_rows - 1]
        batch = math.prod(plain.batch)
        wanted = split(batch * rows * columns * depth, target, knobs.task_products)
        parts = 1 if batch >= wanted else min(wanted, max(1, columns // (ACROSS if own.is_across else 16)))
        tasks = min(wanted, batch * parts)
        most = (-(-(columns // ACROSS) // parts) + 1) * ACROSS if own.is_across else columns  # columns of a part
        rooms = self._rows().rooms(rows, min(columns, most), depth)
        self.temporaries = tuple((kind, tasks * room) for kind, room in rooms)
        self.scalars = (
            tasks,
            batch,
            parts,
            rows,
            columns,
            depth,
            own.b_tensor.sizes[1],
            *row_steps(own),
            *(n for _, n in rooms),
            *self.numbers,
        )

    def _rows(self) -> BitRows | AcrossRows:
        """What writes the loops."""
        if self.own.is_across:
            return AcrossRows(self.bits, self.together_rows, _SUMS[self.bits.lanes])
        return BitRows(self.bits, self.together_rows, self.together)

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        tile = f"{self.together_rows} {'across' if self.own.is_across else self.together}"
        return (*self.key(), ("bits", str(self.bits)), ("tile", tile))

    def function(self) -> T.PrimFunc:
        names = ("tasks", "batch", "parts", "rows", "columns", "depth", "row_bytes", "scale_row", "zero_row")
        with T.function() as f:
            tensors = f.tensors(self.desc)
            scratch = [f.buffer(f"scratch{i}", kind) for i, (kind, _) in enumerate(self.temporaries)]
            *sizes, scale_row, zero_row = (f.scalar(name) for name in names)
            rooms = f.scalars("room", len(scratch))
            self.declare(f, tensors)
            buffers = [tensors.get(name) for name in ("a_tensor", "b_tensor", "scale_tensor", "zero_point_tensor")]
            (a_row, _, a_place), b_steps = self.steps[:2]
            steps = (a_row, a_place, b_steps[2 if self.own.is_across else 1], scale_row, zero_row)
            self._rows().write(self, sizes, buffers, steps, (scratch, rooms))
        return f.result()


class RoundedBits(FewBits):
    """Rows of floats that may be rounded."""

    WAY = "bit_integers"
    TOGETHER = MappingProxyType({16: (4, 4, 4, 4)})

    @staticmethod
    def serves(desc: Matrix, target: Target) -> bool:
        """Whether it may, and the processor multiplies bytes in vectors of 64."""
        own, processor = of_bits(desc), getattr(target, "processor", None)
        has = processor is not None and processor.has("avx512f") and processor.has("avx512vnni")
        return bool(own is not None and own.may_round and not own.is_across and has)

    def _rows(self) -> BitRows:
        return IntegerRows(self.bits, self.together_rows, self.together)
