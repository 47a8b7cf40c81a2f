"""The cases of products of matrices: sizes around those of tiles and blocks, layouts of both factors, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tvmdml.operators import Operator
from tvmdml.proof.conformance.cases._common import DISTINCT, Broken, Case, Sizes, change, tensor
from tvmdml.tensors import TensorDataType, TensorDesc


class MatrixForm(NamedTuple):
    """Sizes, layouts, and which of several ways."""

    batch: Sizes
    m: int
    k: int
    n: int
    way: int = 0
    layouts: tuple[str, str, str] = ("packed", "packed", "packed")
    """Of the factors, as they lie, and of the output."""

    def factors(self, kinds: Sequence[Any], a_turned: bool = False, b_turned: bool = False) -> tuple[TensorDesc, TensorDesc]:
        """Both factors."""
        a = (*self.batch, *((self.k, self.m) if a_turned else (self.m, self.k)))
        b = (*self.batch, *((self.n, self.k) if b_turned else (self.k, self.n)))
        return tensor(kinds[0], a, self.layouts[0]), tensor(kinds[1], b, self.layouts[1])

    def output(self, kind: Any) -> TensorDesc:
        """The result."""
        return tensor(kind, (*self.batch, self.m, self.n), self.layouts[2])

    def small(self, kind: Any, rank: int, each: bool, column: bool = False) -> TensorDesc:
        """A scale or a zero point: for each row or column, or for all."""
        size = (self.n if column else self.m) if each else 1
        sizes = (size,) if rank == 1 else (*(1,) * (rank - 2), *((1, size) if column else (size, 1)))
        return tensor(kind, sizes, "spread" if self.way % 5 == 4 else "packed")


Make = Callable[[Sequence[TensorDataType], MatrixForm], Operator]

SIZES = (
    (1, 1, 1), (2, 3, 1), (1, 5, 7), (3, 1, 5), (7, 9, 3), (16, 16, 16), (17, 31, 33), (32, 64, 48), (65, 70, 67),
    (64, 64, 64), (12, 257, 32), (13, 256, 33), (1, 300, 70), (70, 300, 1), (5, 513, 6), (31, 1025, 3), (128, 20, 96),
)  # fmt: skip
"""Rows, products of a sum, and columns: around the sizes of tiles, and around blocks of products."""
LAYOUTS = (
    ("padded", "packed", "packed"),
    ("packed", "padded", "padded"),
    ("transposed", "packed", "packed"),
    ("packed", "transposed", "spread"),
    ("transposed", "transposed", "transposed"),
    ("outer repeated", "packed", "packed"),
    ("packed", "outer repeated", "padded"),
    ("inner repeated", "packed", "packed"),
    ("packed", "inner repeated", "packed"),
    ("spread", "spread", "packed"),
)
LARGE = ((101, 120, 128), (128, 65, 100))
"""Results of more than 10,000 elements."""


def cases(
    make: Make, types: Sequence[Sequence[TensorDataType]], fills: Sequence[str], ranks: Sequence[int] = range(2, 9)
) -> Iterator[Case]:
    """Every size in some way, every rank and layout."""
    yield from dict.fromkeys(_cases(make, types, fills, ranks))


def _cases(make: Make, types: Sequence[Sequence[TensorDataType]], fills: Sequence[str], ranks: Sequence[int]) -> Iterator[Case]:
    for number, kinds in enumerate(types):
        for way, sizes in enumerate(SIZES):
            yield Case(make(kinds, MatrixForm((2,) * (way % 3), *sizes, way + number)), fills[(way + number) % 2])
        for rank in range(2, 9):
            batch = (2, 1, 3, 1, 1, 2)[: rank - 2]
            yield Case(make(kinds, MatrixForm(batch, 5, 6, 7, rank + number)), fills[0])
        for way, fill in enumerate(fills):
            yield Case(make(kinds, MatrixForm((3,), 9, 11, 10, way + number)), fill)
            yield Case(make(kinds, MatrixForm((), 20, 290, 18, way + number + 5)), fill)
        for way, layouts in enumerate(LAYOUTS):
            yield Case(make(kinds, MatrixForm((3, 2) if way % 2 else (), 19, 21, 22, way + number, layouts)), fills[0])
    for way, sizes in enumerate(LARGE):
        yield Case(make(types[0], MatrixForm((), *sizes, way)), fills[0])


def rules(name: str, good: Any, result: str, other: str) -> dict[str, Broken]:
    """The rules of sizes, for a descriptor of matrices (2, 3, 5, 7) and (2, 3, 7, 6).

    Args:
        name: the operator.
        good: the descriptor.
        result: the output's type.
        other: another type, which the output cannot have.
    """
    kind = good.a_tensor.data_type
    return {
        f"{name} of factors that do not fit": Broken(
            change(good, b_tensor=TensorDesc(good.b_tensor.data_type, (2, 3, 8, 6))),
            *(f"{name} b_tensor.sizes[-2]", "8", "7, as a_tensor.sizes[-1]: products are summed over both"),
        ),
        f"{name} of other batches": Broken(
            change(good, a_tensor=TensorDesc(kind, (2, 1, 5, 7))),
            *(f"{name} b_tensor.sizes", "(2, 3, 7, 6)", "(2, 1) before the last two"),
        ),
        f"{name} of other ranks": Broken(
            change(good, b_tensor=TensorDesc(good.b_tensor.data_type, (3, 7, 6))),
            *(f"{name} b_tensor.rank", "3", "4, as in a_tensor"),
        ),
        f"{name} with turned results": Broken(
            change(good, output_tensor=TensorDesc(result, (2, 3, 6, 5))),
            *(f"{name} output_tensor.sizes", "(2, 3, 6, 5)", "(2, 3, 5, 6): rows of the first factor, columns of the second"),
        ),
        f"{name} to repeated elements": Broken(
            change(good, output_tensor=TensorDesc(result, (2, 3, 5, 6), (0, 0, 0, 0))),
            *(f"{name} output_tensor", "strides (0, 0, 0, 0) for sizes (2, 3, 5, 6)", DISTINCT),
        ),
        f"{name} without a factor": Broken(
            change(good, b_tensor=None), f"{name} b_tensor", "None", "input tensor: a TensorDesc"
        ),
    }  # fmt: skip
