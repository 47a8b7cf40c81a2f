"""DIAGONAL_MATRIX1 and DIAGONAL_MATRIX."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._support import FLOATS, INTS_TO_32
from tvmdml.operators.diagonal_matrix import DiagonalMatrix, DiagonalMatrix1
from tvmdml.proof.conformance.cases._common import (
    ALL,
    DISTINCT,
    EXTENSION,
    INT_32_NAMES,
    INT_MAX,
    INT_MIN,
    LENGTHS,
    ODD,
    PAIRS,
    Broken,
    Case,
    change,
    tensor,
)
from tvmdml.tensors import TensorDataType
from tvmdml.tensors import TensorDesc as T

X = T("float32", (2, 3, 4, 5))


def diagonal(x: T, value: Any, begin: int, end: int, has_input: bool = True, layout: str = "packed") -> DiagonalMatrix1:
    """A band filled with a value over the input, or over zeros; the output has the given layout."""
    return DiagonalMatrix1(
        input_tensor=x if has_input else None,
        output_tensor=tensor(x.data_type, x.sizes, layout),
        value_data_type=x.data_type,
        value=value,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )


def diagonal_2_0(x: T, value: float = 1, offset: int = 0) -> DiagonalMatrix:
    """One diagonal filled with a value over zeros: the operator of level 2.0."""
    return DiagonalMatrix(output_tensor=x, offset=offset, value=value)


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    DiagonalMatrix1: lambda x: diagonal(x, 1, 0, 1),
    DiagonalMatrix: diagonal_2_0,
}

DIAGONAL = diagonal(X, 1, 0, 1)
DIAGONAL_2_0 = diagonal_2_0(X)

BROKEN: dict[str, Broken] = {
    "diagonal 1 before its level": Broken(
        lambda: DIAGONAL, "DIAGONAL_MATRIX1 feature_level", "5.0", "5.1 and above", Unsupported, "5.0"
    ),
    "diagonal of a vector": Broken(
        lambda: diagonal(T("int8", (3,)), 1, 0, 1),
        "DIAGONAL_MATRIX1 input_tensor",
        "int8 of rank 1",
        f"{INT_32_NAMES}, float64, uint64, int64; rank 2 to 4, at feature level 6.4",
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "diagonal of rank 5 without an input": Broken(
        lambda: diagonal(T("int8", (3, 1, 1, 1, 1)), 1, 0, 1, has_input=False),
        "DIAGONAL_MATRIX1 output_tensor",
        "int8 of rank 5",
        f"{INT_32_NAMES}, float64, uint64, int64; rank 2 to 4, at feature level 6.4",
        *(Unsupported, "6.4", EXTENSION),
    ),
    "diagonal to another type": Broken(
        change(DIAGONAL, output_tensor=T("int32", X.sizes), value_data_type="int32"),
        *("DIAGONAL_MATRIX1 output_tensor.data_type", "int32", "float32, as in input_tensor"),
    ),
    "diagonal to other sizes": Broken(
        change(DIAGONAL, output_tensor=T("float32", (2, 3, 5, 4))),
        *("DIAGONAL_MATRIX1 output_tensor.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "diagonal to another rank": Broken(
        change(DIAGONAL, output_tensor=T("float32", (6, 4, 5))),
        *("DIAGONAL_MATRIX1 output_tensor.sizes", "(6, 4, 5)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "a value of another type": Broken(
        change(DIAGONAL, value_data_type="float16"),
        *("DIAGONAL_MATRIX1 value_data_type", "float16", "float32, the output's type"),
    ),
    "a value that is text": Broken(change(DIAGONAL, value="7"), "DIAGONAL_MATRIX1 value", "'7'", "a number"),
    "a value that is true": Broken(change(DIAGONAL, value=True), "DIAGONAL_MATRIX1 value", "True", "a number"),
    "a value past a float": Broken(
        change(DIAGONAL, value=2**1024), "DIAGONAL_MATRIX1 value", str(2**1024), "a number in the range of a float"
    ),
    "a value that rounds past a float": Broken(
        change(DIAGONAL, value=2**1024 - 1), "DIAGONAL_MATRIX1 value", str(2**1024 - 1), "a number in the range of a float"
    ),
    "a value with a fraction for integers": Broken(
        lambda: diagonal(T("int8", (2, 2)), 1.5, 0, 1),
        *("DIAGONAL_MATRIX1 value", "1.5", "an integer from -128 to 127, for int8"),
    ),
    "NaN for integers": Broken(
        lambda: diagonal(T("int64", (2, 2)), float("nan"), 0, 1),
        *("DIAGONAL_MATRIX1 value", "nan", f"an integer from {-(2**63)} to {2**63 - 1}, for int64"),
    ),
    "infinity for integers": Broken(
        lambda: diagonal(T("uint64", (2, 2)), float("inf"), 0, 1),
        *("DIAGONAL_MATRIX1 value", "inf", f"an integer from 0 to {2**64 - 1}, for uint64"),
    ),
    "begin past an INT": Broken(
        change(DIAGONAL, diagonal_fill_begin=INT_MAX + 1),
        *("DIAGONAL_MATRIX1 diagonal_fill_begin", "2147483648", "an integer from -2147483648 to 2147483647"),
    ),
    "end below an INT": Broken(
        change(DIAGONAL, diagonal_fill_end=INT_MIN - 1),
        *("DIAGONAL_MATRIX1 diagonal_fill_end", "-2147483649", "an integer from -2147483648 to 2147483647"),
    ),
    "begin that is a fraction": Broken(
        change(DIAGONAL, diagonal_fill_begin=0.0),
        *("DIAGONAL_MATRIX1 diagonal_fill_begin", "0.0", "an integer from -2147483648 to 2147483647"),
    ),
    "diagonal that shares addresses": Broken(
        change(DIAGONAL, output_tensor=T("float32", X.sizes, (0, 20, 5, 1))),
        *("DIAGONAL_MATRIX1 output_tensor", "strides (0, 20, 5, 1) for sizes (2, 3, 4, 5)", DISTINCT),
    ),
    "diagonal before its level": Broken(
        lambda: DIAGONAL_2_0, "DIAGONAL_MATRIX feature_level", "1.0", "2.0 and above", Unsupported, "1.0"
    ),
    "diagonal of integers at 2.0": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", X.sizes)),
        *("DIAGONAL_MATRIX output_tensor", "uint8 of rank 4", "float32, float16; rank 4, at feature level 2.0"),
        *(Unsupported, "2.0", "Feature level 2.1 supports it."),
    ),
    "diagonal of rank 3": Broken(
        change(DIAGONAL_2_0, output_tensor=T("float32", (3, 4, 5))),
        *("DIAGONAL_MATRIX output_tensor", "float32 of rank 3", f"{INT_32_NAMES}; rank 4, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "an offset past an INT": Broken(
        change(DIAGONAL_2_0, offset=2**31),
        *("DIAGONAL_MATRIX offset", "2147483648", "an integer from -2147483648 to 2147483647"),
    ),
    "an offset whose diagonal has no end": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", (1, 1, 1, 2**31)), offset=INT_MAX),
        *("DIAGONAL_MATRIX offset", "2147483647", "below 2147483647 for 2147483648 columns"),
    ),
    "a value past the integers": Broken(
        change(DIAGONAL_2_0, output_tensor=T("uint8", X.sizes), value=256.5),
        *("DIAGONAL_MATRIX value", "256.5", "an integer from 0 to 255, for uint8"),
    ),
    "NaN for the integers": Broken(
        change(DIAGONAL_2_0, output_tensor=T("int16", X.sizes), value=float("nan")),
        *("DIAGONAL_MATRIX value", "nan", "an integer from -32768 to 32767, for int16"),
    ),
}

BANDS = (
    (0, 1), (-1, 2), (2, 3), (3, 3), (INT_MIN, 1), (-2, INT_MAX), (INT_MIN, INT_MAX), (INT_MAX, INT_MIN),
    (1, 0), (2, -3), (-6, -5), (5, 6), (INT_MAX - 1, INT_MAX), (INT_MIN, INT_MIN + 1), (0, INT_MIN), (INT_MAX, 0),
)  # fmt: skip
"""Bounds inside the matrix, at its edge, outside it, and at the limits of INT; begin below, at and above end."""


EDGES = (INT_MIN, INT_MIN + 1, -5, -4, -1, 0, 1, 2, 3, INT_MAX - 1, INT_MAX)
"""Bounds at the edges of a matrix of 5 rows and 3 columns, and at the limits of INT."""

SHAPES = ((2, 23, 150), (3, 9, 192), (2, 2, 517), (2, 90, 1), (2, 70, 3), (2, 40, 8), (2, 31, 17), (7, 16), (5, 63), (3, 64))
"""Rows of several cache lines and a remainder, of whole lines, many in a line; more columns than rows."""

SIZED = tuple(TensorDataType[name] for name in ("UINT8", "FLOAT16", "FLOAT32", "INT64"))
"""One type of each size: elements are moved as bits."""


def _values(data_type: TensorDataType) -> tuple[Any, ...]:
    """Values to fill with: the limits of the type, and special floats."""
    if data_type.is_float:
        return -0.0, float("nan"), float("-inf"), 0.1, float(np.finfo(data_type.numpy).smallest_subnormal)  # type: ignore[type-var]
    limits = np.iinfo(data_type.numpy)  # type: ignore[type-var]
    return tuple(dict.fromkeys((int(limits.min), int(limits.max), 0)))


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every type, band, rank and layout, with and without an input; every kind of value; arrays of many tasks and tiles."""
    for number, data_type in enumerate(ALL):
        value = _values(data_type)[number % 2]
        for begin, end in BANDS:
            yield Case(diagonal(T(data_type, (4, 7, 5)), value, begin, end, has_input=(begin + end) % 3 > 0))
        for rank, sizes in ODD.items():
            if rank > 1:
                yield Case(diagonal(T(data_type, sizes), 1, -1, 1), "bits")
                yield Case(diagonal(T(data_type, sizes), value, 0, 2, has_input=False))
        yield from (Case(diagonal(T(data_type, (9, 17)), one, -3, 4)) for one in _values(data_type))
        for one, other in PAIRS:
            yield Case(diagonal(tensor(data_type, (3, 11, 18), one), 1, -4, 2, layout=other), "bits")
        for sizes in ((1, 1), (1, 131), (131, 1), (70, 64), (64, 71)):
            yield Case(diagonal(T(data_type, sizes), value, INT_MIN, 1), "bits")
            yield Case(diagonal(T(data_type, sizes), value, 3, -2), "bits")
        yield Case(diagonal(T(data_type, (2, 500, 512)), value, -5, 6), "bits")
        yield Case(diagonal(T(data_type, (777, 600)), 1, 0, 1, has_input=False))
        yield Case(diagonal(tensor(data_type, (500, 257), "transposed"), 0, 7, -7), "bits")
    for number, sizes in enumerate((*SHAPES, *((2, 5, width) for width in LENGTHS[:33]))):
        for data_type in SIZED:
            for begin, end in BANDS[number % 4 :: 4]:
                yield Case(diagonal(T(data_type, sizes), 7, begin, end, has_input=(begin + number) % 2 > 0), "bits")
    for begin, end in itertools.product(EDGES, EDGES):
        yield from (Case(diagonal(T("int16", (5, 3)), -321, begin, end, has_input), "bits") for has_input in (False, True))
    yield Case(diagonal(T("float32", (2100, 2048)), 3, INT_MIN, 0), "normal")
    yield Case(diagonal(T("float32", (2048, 2100)), 3, 0, 1, has_input=False))
    for data_type in (*FLOATS, *INTS_TO_32):
        for offset in (0, -2, 4, 7, INT_MIN, INT_MAX):
            yield Case(diagonal_2_0(T(data_type, (2, 1, 5, 8)), 1.75, offset))
        yield Case(diagonal_2_0(T(data_type, (1, 2, 130, 77)), 100.9 if data_type.is_float else 100, -1))
