"""What kernels for products of matrices on the CPU share: where elements are, and what becomes of a sum."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.contraction import Contraction, Operand
from tvmdml.kernels.formula import Source
from tvmdml.kernels.kernel import Owned
from tvmdml.operators._matrix import Matrix
from tvmdml.schedules.cpu._ahead import ask, read_ahead, write_ahead
from tvmdml.schedules.cpu._gemm_arithmetic import ByteProducts, ProductArithmetic
from tvmdml.targets import Target


class PlainContraction(NamedTuple):
    """A contraction with one dimension of rows, columns and places."""

    contraction: Contraction
    turned: bool = False
    """Whether the factors have changed places."""
    image: tuple[int, ...] = ()
    """Where the image is of which the first factor is made (``_gemm_image.py``)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and places."""
        (rows,), (columns,), (depth,) = self.contraction.groups[1:]
        return rows, columns, depth

    @property
    def batch(self) -> tuple[int, ...]:
        return self.contraction.batch

    def steps(self, operand: Operand) -> tuple[tuple[int, ...], int, int, int]:
        """An operand's steps: of the batch, of rows, of columns, and of places."""
        count, steps = len(self.batch), operand.place.steps
        return steps[:count], steps[count], steps[count + 1], steps[count + 2] if len(steps) > count + 2 else 0

    def few(self, most: int) -> bool:
        """Whether it has few rows, over columns or places that are contiguous."""
        rows, columns, depth = self.sizes
        _, _, across, along = self.steps(self.contraction.b)
        result = self.steps(self.contraction.result)[2]
        return rows <= most and columns >= 16 and result == 1 and (across == 1 or (along == 1 and depth >= 16))


def plain(contraction: Contraction) -> PlainContraction | None:
    """The contraction as one of matrices, with the better of both factors as rows; ``None`` if it is more than that."""
    if any(len(group) != 1 for group in contraction.groups[1:]) or any(one.rules for one in contraction.operands()):
        return None
    found = PlainContraction(contraction)
    turned = PlainContraction(contraction.exchanged(), True)
    return max((found, turned), key=_preference)


def _preference(one: PlainContraction) -> tuple[bool, bool, int]:
    """Enough columns for a vector, contiguous columns of the result, and many columns."""
    _, columns, _ = one.sizes
    return columns >= 16, one.steps(one.contraction.result)[2] == 1, columns


def _known(step: int) -> int:
    """A stride that the code depends on; -1 for any other."""
    return step if step in (0, 1) else -1


def has_tiles_of_pairs(target: Target) -> bool:
    """Whether the processor has matrix tiles that multiply bfloat16."""
    processor = getattr(target, "processor", None)
    return processor is not None and all(map(processor.has, ("avx512f", "amx-bf16", "amx-tile")))


class MatrixWriter:
    """What both ways share: a kernel's parameters, where elements are, and what becomes of a sum."""

    WAY: str
    arithmetic: ProductArithmetic
    depth: Any
    """The places of a sum, in the kernel."""
    temporaries: tuple[tuple[str, int], ...]
    scalars: tuple[int, ...]

    def __init__(self, desc: Matrix, plain: PlainContraction, target: Target, knobs: Any) -> None:
        self.desc, self.plain, self.contraction = desc, plain, plain.contraction
        processor = getattr(target, "processor", None)
        has = processor.has if processor is not None else lambda feature: False
        self.x86 = has("x86")
        self.bytes_of_vector = 64 if has("avx512f") else 32 if has("avx2") else 16
        self.vnni = has("avx512vnni")
        self.tiles = self.vnni and has("amx-int8") and has("amx-tile")
        self.tiles_of_pairs = has_tiles_of_pairs(target)
        self.operands = self.contraction.operands()
        self.packed: dict[int, tuple[int, ...]] = {}
        """The factors that are packed already, by their number: the steps of the batch."""

    def _places(self) -> list[tuple[int, tuple[tuple[int, ...], int, int, int]]]:
        """Of each operand the first element's place, and the steps."""
        return [
            (0, (self.packed[i], 0, 0, 0)) if i in self.packed else (one.place.base, self.plain.steps(one))
            for i, one in enumerate(self.operands)
        ]

    @property
    def known(self) -> tuple[tuple[int, ...], ...]:
        """The strides that the code depends on."""
        return tuple(tuple(map(_known, steps[1:])) for _, steps in self._places())

    def key(self) -> tuple[tuple[str, Any], ...]:
        """What all kernels depend on."""
        steps = " ".join(",".join(map(str, one)) for one in self.known)
        return (*self.desc.formula_key(), ("ranks", len(self.plain.batch)), ("steps", steps), ("turned", self.plain.turned))

    def parameters(self) -> tuple[tuple[str, Any], ...]:
        raise NotImplementedError

    def function(self) -> T.PrimFunc:
        raise NotImplementedError

    def owned(self) -> tuple[Owned, ...]:
        """The factors that are packed already."""
        return ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The launch's integers that say where elements are."""
        places = self._places()
        batch = (n for base, steps in places for n in (base, *steps[0]))
        return (*self.plain.batch, *batch, *(n for _, steps in places for n in steps[1:]))

    def declare(self, f: Any, tensors: dict[str, Any]) -> None:
        """Parameters for these integers."""
        rank, count = len(self.plain.batch), len(self.operands)
        self.tensors = tensors
        self.batch_sizes = f.scalars("batch", rank)
        places = [f.scalars(f"place{i}_", rank + 1) for i in range(count)]
        steps = [f.scalars(f"step{i}_", 3) for i in range(count)]
        self.places = places
        self.steps = [
            tuple(given if known < 0 else known for given, known in zip(one, own, strict=True))
            for one, own in zip(steps, self.known, strict=True)
        ]

    def begin(self, number: Any) -> None:
        """The offsets of all operands in a batch."""
        at = T.unravel(number, self.batch_sizes)
        self.bases = [T.hold(base + T.dot(at, steps)) for base, *steps in self.places]
        zeros = sum(one is not None for one in (self.contraction.a_zero, self.contraction.b_zero))
        self.sources = [
            Source(self.tensors[one.name], (steps[0], steps[1]), base)
            for one, steps, base in list(zip(self.operands, self.steps, self.bases, strict=True))[2 + zeros :]
        ]

    def put(self, row: Any, column: Any, total: Any) -> None:
        """Finish sums, and store them: those of a row, from a column on."""
        result, *addends = self.sources
        lanes = T.lanes(total)
        values = [T.hold(one.get([row, column], lanes)) for one in addends]
        found = T.hold(self.desc.element(total, values))
        if lanes == 1 or (isinstance(result.steps[1], int) and result.steps[1] == 1):
            T.store(result.buffer, result.place([row, column], lanes), found)
            return
        for lane in range(lanes):  # TVM may lose vectors that are stored with a stride
            T.store(result.buffer, result.place([row, column + lane]), T.Shuffle([found], [lane]))

    def ask(self, row: Any, column: Any, count: int) -> None:
        """Ask for the memory that ``put`` reads and writes in a row, for so many columns, as far as these are neighbours."""
        result, *addends = self.sources
        for one, how in ((result, write_ahead), *((addend, read_ahead) for addend in addends)):
            of_row, of_column = one.steps
            if (isinstance(of_column, int) and of_column == 1) and not (isinstance(of_row, int) and of_row == 0):
                ask(how, one.buffer, one.place([row, column]), count)

    def is_signed(self, operand: Operand) -> bool:
        """Whether an operand has signed integers."""
        return str(getattr(self.desc, operand.name).data_type.tvm).startswith("int")

    def zeros(self) -> tuple[int | None, int | None]:
        """Which operands the zero points are."""
        first = 2 if self.contraction.a_zero is not None else None
        second = (2 if first is None else 3) if self.contraction.b_zero is not None else None
        return first, second

    # -- Zero points of bytes, which are taken out of finished sums

    def corrects(self) -> tuple[bool, bool]:
        """Whether sums of rows and of columns are needed: where the other side has zero points, or is shifted."""
        if not isinstance(self.arithmetic, ByteProducts):
            return False, False
        some = [zero is not None or flip for zero, flip in zip(self.zeros(), self.arithmetic.flips, strict=True)]
        return some[1], some[0]

    def corrected(self, row: Any, column: Any, total: Any, sums: tuple[Any, Any]) -> Any:
        """Sums of products without the zero points.

        Args:
            row: their row.
            column: the first one's column.
            total: the sums of products of bytes as they are multiplied.
            sums: the sum of the row's bytes in each lane, and those of the columns', which ``corrects`` says to be needed.
        """
        of_row, of_columns = sums
        if of_row is None and of_columns is None:
            return total
        zeros = [self._zero_points(side, (row, column)[side], T.lanes(total)) for side in (0, 1)]
        if of_columns is not None:
            total = total - zeros[0] * of_columns
        if of_row is not None:
            total = total - zeros[1] * of_row
        if of_row is not None and of_columns is not None:
            total = total + zeros[0] * zeros[1] * T.splat(T.cast(self.depth, "int32"), T.lanes(total))
        return T.hold(total)

    def _zero_points(self, side: int, line: Any, lanes: int) -> Any:
        """The zero points of a row or of columns as they are packed, in every lane."""
        assert isinstance(self.arithmetic, ByteProducts)
        shift, zero = self.arithmetic.shift(side), self.zeros()[side]
        found = T.splat(T.const(shift, "int32"), lanes)
        if zero is None:
            return found
        step = self.steps[zero][side]
        source = Source(self.tensors[self.operands[zero].name], (step,), self.bases[zero])
        if side == 1:
            return T.cast(source.get([line], lanes), "int32") + found
        return T.splat(T.cast(source.get([line]), "int32"), lanes) + found
