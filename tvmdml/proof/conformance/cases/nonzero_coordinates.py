"""NONZERO_COORDINATES."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.nonzero_coordinates import NonzeroCoordinates
from tvmdml.proof.conformance.cases._common import (
    ALL,
    DISTINCT,
    EXTENSION,
    INT_32_NAMES,
    KINDS,
    LENGTHS,
    ODD,
    Broken,
    Case,
    change,
    tensor,
)
from tvmdml.tensors import TensorDataType
from tvmdml.tensors import TensorDesc as T

X = T("float32", (2, 3, 4, 5))


def nonzero(
    x: T, columns: int | None = None, rank: int | None = None, index: TensorDataType | str = "uint32", layout: str = "packed"
) -> NonzeroCoordinates:
    """Rows with ``columns`` coordinates, in a tensor of the given rank and layout."""
    columns, rank = columns or x.rank, rank or max(x.rank, 2)
    return NonzeroCoordinates(
        input_tensor=x,
        output_count_tensor=T("uint32", (1,) * x.rank),
        output_coordinates_tensor=tensor(index, (*(1,) * (rank - 2), x.element_count, columns), layout),
    )


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {NonzeroCoordinates: nonzero}

NONZERO = nonzero(X)

BROKEN: dict[str, Broken] = {
    "nonzero before its level": Broken(
        lambda: NONZERO, "NONZERO_COORDINATES feature_level", "2.1", "3.0 and above", Unsupported, "2.1"
    ),
    "nonzero of rank 3 at 3.0": Broken(
        lambda: nonzero(T("float32", (2, 3, 4)), rank=4),
        *("NONZERO_COORDINATES input_tensor", "float32 of rank 3", f"{INT_32_NAMES}; rank 4 to 5, at feature level 3.0"),
        *(Unsupported, "3.0", "Feature level 4.0 supports it."),
    ),
    "nonzero of int64": Broken(
        lambda: nonzero(T("int64", (2, 3))),
        *("NONZERO_COORDINATES input_tensor", "int64 of rank 2", f"{INT_32_NAMES}; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "nonzero counted in int32": Broken(
        change(NONZERO, output_count_tensor=T("int32", (1,))),
        *("NONZERO_COORDINATES output_count_tensor", "int32 of rank 1", "uint32; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "nonzero with 64-bit coordinates": Broken(
        lambda: nonzero(X, index="uint64"),
        *("NONZERO_COORDINATES output_coordinates_tensor", "uint64 of rank 4", "uint32; rank 2 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "nonzero with flat coordinates": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (480,))),
        *("NONZERO_COORDINATES output_coordinates_tensor", "uint32 of rank 1", "uint32; rank 2 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "two counts": Broken(
        change(NONZERO, output_count_tensor=T("uint32", (1, 2))),
        *("NONZERO_COORDINATES output_count_tensor.sizes", "(1, 2)", "all sizes 1"),
    ),
    "a row too few": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (119, 4))),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(119, 4)", "(1, …, 1, 120, n) with n from 4 to 4: a row for each element of the input"),
    ),
    "a coordinate too few": Broken(
        lambda: nonzero(T("int8", (1, 1, 3, 2)), 1),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 6, 1)", "(1, …, 1, 6, n) with n from 2 to 4: a row for each element of the input"),
    ),
    "a coordinate too many": Broken(
        lambda: nonzero(T("int8", (1, 1, 3, 2)), 5),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 6, 5)", "(1, …, 1, 6, n) with n from 2 to 4: a row for each element of the input"),
    ),
    "no coordinate of one element": Broken(
        lambda: nonzero(T("int8", (1, 1, 1, 1)), 5),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(1, 1, 1, 5)", "(1, …, 1, 1, n) with n from 1 to 4: a row for each element of the input"),
    ),
    "rows in two planes": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (2, 120, 4))),
        "NONZERO_COORDINATES output_coordinates_tensor.sizes",
        *("(2, 120, 4)", "(1, …, 1, 120, n) with n from 4 to 4: a row for each element of the input"),
    ),
    "count of another rank at 3.0": Broken(
        change(NONZERO, output_count_tensor=T("uint32", (1,) * 5)),
        *("NONZERO_COORDINATES output_count_tensor.rank", "5", "4, as in input_tensor"),
        level="3.0",
    ),
    "coordinates that share addresses": Broken(
        change(NONZERO, output_coordinates_tensor=T("uint32", (120, 4), (3, 1))),
        *("NONZERO_COORDINATES output_coordinates_tensor", "strides (3, 1) for sizes (120, 4)", DISTINCT),
    ),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every type, rank and density; every layout; the smallest number of coordinates; arrays of many tasks and tiles."""
    for number, data_type in enumerate(ALL):
        index = "uint64" if number % 4 == 3 else "uint32"
        yield from (Case(nonzero(T(data_type, sizes), index=index)) for sizes in list(ODD.values())[number % 2 :: 2])
        for fill in ("zeros", "all NaN", "special", "bits", "0.1 %", "10 %", "100 %"):
            yield Case(nonzero(T(data_type, (41, 75)), index=index), fill)
        yield from (Case(nonzero(T(data_type, (300, 701)), index=index), fill) for fill in ("0.1 %", "50 %", "mixed"))
        if data_type in KINDS:
            yield from _shapes(data_type, index)
    yield from _shapes(TensorDataType.FLOAT32, "uint64")
    yield from _ranks(TensorDataType.UINT8, "uint32")
    yield from _ranks(TensorDataType.FLOAT32, "uint64")
    yield Case(nonzero(T("uint8", (2300, 1001))), "10 %")


def _shapes(data_type: TensorDataType, index: str) -> Iterator[Case]:
    for number, length in enumerate((*LENGTHS, 4097)):
        yield Case(nonzero(T(data_type, (length,)), index=index), ("50 %", "100 %", "0.1 %", "constant")[number % 4])
        yield Case(nonzero(T(data_type, (length,)), index=index), ("10 %", "50 %", "special", "100 %")[number % 4])
    for sizes in ((331, 3), (29, 100), (17, 1, 3, 5), (3, 7, 11, 5), (5, 150), (130, 5), (2, 1, 2, 2, 3, 1, 2, 9)):
        yield from (Case(nonzero(T(data_type, sizes), index=index), fill) for fill in ("10 %", "100 %"))
    yield from (Case(nonzero(T(data_type, (1,)), index=index), fill) for fill in ("zeros", "constant"))
    yield from (Case(nonzero(T(data_type, (1, 1, 5, 8)), columns, index=index), "50 %") for columns in (2, 3, 4))
    yield Case(nonzero(T(data_type, (9, 10)), rank=6, index=index), "50 %")
    for layout in ("padded", "transposed", "spread", "outer repeated", "inner repeated"):
        yield Case(nonzero(tensor(data_type, (7, 5, 33), layout), index=index), "10 %")
    for layout in ("padded", "transposed", "spread"):
        yield Case(nonzero(T(data_type, (7, 5, 33)), index=index, layout=layout), "50 %")
    yield Case(nonzero(tensor(data_type, (300, 333), "transposed"), index=index), "10 %")
    yield from (Case(nonzero(T(data_type, sizes), index=index), "10 %") for sizes in ((1 << 17,), (33, 71, 101)))


def _ranks(data_type: TensorDataType, index: str) -> Iterator[Case]:
    """Every number of coordinates, with many words of rows; fewer coordinates than dimensions; tensors of other ranks."""
    for columns in range(1, 9):
        shape = (*(2,) * (columns - 1), 10_000 >> columns)
        yield from (Case(nonzero(T(data_type, shape), index=index), fill) for fill in ("10 %", "50 %", "100 %"))
    for effective in (0, 1, 3, 5):
        shape = (*(1,) * (8 - effective), *(3, 2, 2, 3, 2)[:effective])
        yield from (Case(nonzero(T(data_type, shape), n, index=index), "50 %") for n in range(max(effective, 1), 8, 2))
    yield from (Case(nonzero(T(data_type, ODD[rank]), rank=other, index=index), "50 %") for rank, other in ((1, 8), (4, 2), (8, 2)))
