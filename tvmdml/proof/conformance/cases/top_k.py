"""TOP_K1 and TOP_K."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvmdml.enums import AxisDirection
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.top_k import TopK, TopK1
from tvmdml.proof.conformance.cases._common import (
    ALL,
    DISTINCT,
    EXTENSION,
    INT_32_NAMES,
    KINDS,
    LENGTHS,
    NAMES,
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


def best(
    x: T, axis: int, k: int, direction: AxisDirection | str, index: TensorDataType | str = "uint32", layout: str = "packed"
) -> TopK1:
    """The first K along an axis; the outputs have the given layout."""
    sizes = (*x.sizes[:axis], k, *x.sizes[axis + 1 :])
    return TopK1(
        input_tensor=x,
        output_value_tensor=tensor(x.data_type, sizes, layout),
        output_index_tensor=tensor(index, sizes, layout),
        axis=axis,
        k=k,
        axis_direction=direction,  # type: ignore[arg-type]
    )


def best_1_0(x: T, index: TensorDataType | str = "uint32", axis: int = 0, k: int = 1) -> TopK:
    """The same for the operator of level 1.0, which has only one direction."""
    sizes = (*x.sizes[:axis], k, *x.sizes[axis + 1 :])
    return TopK(input_tensor=x, output_value_tensor=T(x.data_type, sizes), output_index_tensor=T(index, sizes), axis=axis, k=k)


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {TopK1: lambda x: best(x, 0, 1, "increasing"), TopK: best_1_0}

TOP = best(X, 1, 2, "increasing")
TOP_1_0 = best_1_0(X)

BROKEN: dict[str, Broken] = {
    "top k1 before its level": Broken(
        lambda: TOP, "TOP_K1 feature_level", "2.0", "2.1 and above", Unsupported, "2.0", "That level introduced the operator."
    ),
    "top k1 of rank 2 at 3.0": Broken(
        lambda: best(T("int8", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "int8 of rank 2", f"{INT_32_NAMES}; rank 4, at feature level 3.0"),
        *(Unsupported, "3.0", "Feature level 3.1 supports it."),
    ),
    "top k1 of int64 at 4.1": Broken(
        lambda: best(T("int64", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "int64 of rank 2", f"{INT_32_NAMES}; rank 1 to 8, at feature level 4.1"),
        *(Unsupported, "4.1", "Feature level 5.0 supports it."),
    ),
    "top k1 with 64-bit indices at 4.1": Broken(
        lambda: best(T("int8", (2, 3)), 0, 1, "increasing", "uint64"),
        *("TOP_K1 output_index_tensor", "uint64 of rank 2", "uint32; rank 1 to 8, at feature level 4.1"),
        *(Unsupported, "4.1", "Feature level 5.0 supports it."),
    ),
    "top k1 with signed indices": Broken(
        lambda: best(T("int8", (2, 3)), 0, 1, "increasing", "int32"),
        *("TOP_K1 output_index_tensor", "int32 of rank 2", "uint32, uint64; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "top k1 of float64": Broken(
        lambda: best(T("float64", (2, 3)), 0, 1, "increasing"),
        *("TOP_K1 input_tensor", "float64 of rank 2", f"{NAMES}; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "axis past the rank": Broken(change(TOP, axis=4), "TOP_K1 axis", "4", "0 to 3", advice="The input has no such dimension."),
    "negative axis": Broken(
        change(TOP, axis=-1),
        *("TOP_K1 axis", "-1", "an integer from 0 to 4294967295"),
        advice="A descriptor counts axes from the first, which is 0; only tvmdml's functions accept negative axes.",
    ),
    "fraction as an axis": Broken(change(TOP, axis=1.0), "TOP_K1 axis", "1.0", "an integer from 0 to 4294967295"),
    "boolean as an axis": Broken(change(TOP, axis=True), "TOP_K1 axis", "True", "an integer from 0 to 4294967295"),
    "axis past 32 bits": Broken(change(TOP, axis=2**32), "TOP_K1 axis", "4294967296", "an integer from 0 to 4294967295"),
    "k of 0": Broken(change(TOP, k=0), "TOP_K1 k", "0", "1 to 3, the input's size along axis 1"),
    "k past the axis": Broken(change(TOP, k=4), "TOP_K1 k", "4", "1 to 3, the input's size along axis 1"),
    "negative k": Broken(change(TOP, k=-1), "TOP_K1 k", "-1", "an integer from 0 to 4294967295"),
    "values of another type": Broken(
        change(TOP, output_value_tensor=T("float16", (2, 2, 4, 5))),
        *("TOP_K1 output_value_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "values of the input's sizes": Broken(
        change(TOP, output_value_tensor=X),
        *("TOP_K1 output_value_tensor.sizes", "(2, 3, 4, 5)", "(2, 2, 4, 5): the input's, except k along the axis"),
    ),
    "indices of other sizes": Broken(
        change(TOP, output_index_tensor=T("uint32", (2, 2, 4, 1))),
        *("TOP_K1 output_index_tensor.sizes", "(2, 2, 4, 1)", "(2, 2, 4, 5): the input's, except k along the axis"),
    ),
    "indices of another rank": Broken(
        change(TOP, output_index_tensor=T("uint32", (4, 4, 5))),
        *("TOP_K1 output_index_tensor.sizes", "(4, 4, 5)", "(2, 2, 4, 5): the input's, except k along the axis"),
    ),
    "values that share addresses": Broken(
        change(TOP, output_value_tensor=T("float32", (2, 2, 4, 5), (40, 0, 5, 1))),
        *("TOP_K1 output_value_tensor", "strides (40, 0, 5, 1) for sizes (2, 2, 4, 5)", DISTINCT),
    ),
    "indices that share addresses": Broken(
        change(TOP, output_index_tensor=T("uint32", (2, 2, 4, 5), (40, 20, 4, 1))),
        *("TOP_K1 output_index_tensor", "strides (40, 20, 4, 1) for sizes (2, 2, 4, 5)", DISTINCT),
    ),
    "sideways": Broken(change(TOP, axis_direction=2), "TOP_K1 axis_direction", "2", "'increasing', 'decreasing'"),
    "top k of integers at 2.0": Broken(
        lambda: best_1_0(T("int32", (2, 3, 4, 5))),
        *("TOP_K input_tensor", "int32 of rank 4", "float32, float16; rank 4, at feature level 2.0"),
        *(Unsupported, "2.0", "Feature level 2.1 supports it."),
    ),
    "top k of rank 3 at 1.0": Broken(
        lambda: best_1_0(T("float32", (2, 3, 4))),
        *("TOP_K input_tensor", "float32 of rank 3", "float32, float16; rank 4, at feature level 1.0"),
        *(Unsupported, "1.0", "Feature level 3.1 supports it."),
    ),
    "top k past the axis": Broken(change(TOP_1_0, k=3), "TOP_K k", "3", "1 to 2, the input's size along axis 0"),
    "top k along no axis": Broken(change(TOP_1_0, axis=7), "TOP_K axis", "7", "0 to 3"),
}

BOTH_WAYS = (TensorDataType.FLOAT32, TensorDataType.INT8)
"""Types that are tested in both directions and with both index types."""


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every type, with alternating directions and index types; some types with all of them."""
    for number, data_type in enumerate(ALL):
        direction, index = tuple(AxisDirection)[number % 2], ("uint32", "uint64")[number // 2 % 2]
        yield from _small(data_type, direction, index)
        if data_type in KINDS:
            yield from _ways(data_type, direction, index)
        if data_type in BOTH_WAYS:
            other = tuple(AxisDirection)[1 - number % 2]
            yield from _small(data_type, other, "uint32")
            yield from _ways(data_type, other, "uint32")
            yield from _lengths(data_type, direction)
        yield Case(best_1_0(T(data_type, (2, 3, 40, 5)), index, 2, 7))
    yield Case(best(T("float32", (1, 70_001)), 1, 300, AxisDirection.DECREASING), "ascending")  # split, and sorted
    yield Case(best(T("float32", (4, 100_003)), 1, 1800, AxisDirection.INCREASING), "bits")
    yield from (Case(best_1_0(T("float16", sizes), "uint32", rank // 2, 1)) for rank, sizes in ODD.items())
    yield from (Case(best_1_0(T("float32", (1, 1, 9, 501)), "uint64", 3, k), "special") for k in (1, 30, 501))
    yield Case(best_1_0(T("float32", (1, 3, 60, 128)), "uint32", 2, 3))


def _small(data_type: TensorDataType, direction: AxisDirection, index: str) -> Iterator[Case]:
    """Every rank, every K, every layout; ties and NaN."""
    for rank, sizes in ODD.items():
        for axis in {rank // 2, rank - 1}:
            yield Case(best(T(data_type, sizes), axis, -(-sizes[axis] // 2), direction, index))
    yield from (Case(best(T(data_type, (5, 9)), 1, k, direction, index)) for k in range(1, 10))
    for fill in ("special", "bits", "zeros", "all NaN", "constant", "ascending", "descending"):
        yield Case(best(T(data_type, (3, 45)), 1, 20, direction, index), fill)
    for one, other in PAIRS:
        yield Case(best(tensor(data_type, (4, 37), one), 1, 11, direction, index, other))
    yield Case(best(T(data_type, (600, 60)), 1, 5, direction, index))  # on several threads
    yield Case(best(T(data_type, (3, 700)), 1, 20, direction, index), "special")  # selected, then sorted by rank


def _ways(data_type: TensorDataType, direction: AxisDirection, index: str) -> Iterator[Case]:
    """Lengths and K for which each of the schedules' algorithms is used."""
    for sizes, axis, k, fill in (
        ((3, 700), 1, 1, "mixed"),
        ((3, 700), 1, 20, "mixed"),
        ((2, 3001), 1, 300, "special"),  # selected, then sorted
        ((2, 3001), 1, 300, "descending"),
        ((2, 1500), 1, 1500, "mixed"),  # fully sorted
        ((1, 9000), 1, 5000, "special"),
        ((1, 70_001), 1, 50, "mixed"),  # a row that is split
        ((1, 70_001), 1, 50, "ascending"),
        ((1, 70_001), 1, 50, "constant"),
        ((130, 200), 0, 3, "mixed"),  # neighbouring rows in vector lanes
        ((130, 33), 0, 40, "mixed"),  # neighbouring rows that are copied together
        ((2, 1024), 1, 1024, "mixed"),  # powers of two: no algorithm has a remainder
        ((2, 4096), 1, 64, "special"),
        ((64, 64), 0, 16, "mixed"),
    ):
        yield Case(best(T(data_type, sizes), axis, k, direction, index), fill)
    # Values that are bad for an algorithm, for each of them.
    for fill in ("zeros", "all NaN", "mostly NaN", "constant", "block", "ascending", "descending", "bits"):
        for sizes, axis, k in (((3, 45), 1, 45), ((3, 700), 1, 20), ((3, 700), 1, 150), ((2, 1500), 1, 1500), ((130, 200), 0, 3)):
            yield Case(best(T(data_type, sizes), axis, k, direction, index), fill)


def _lengths(data_type: TensorDataType, direction: AxisDirection) -> Iterator[Case]:
    """Rows around the lengths of vectors and powers of two."""
    for length in LENGTHS:
        for k in sorted({1, -(-length // 2), length}):
            yield Case(best(T(data_type, (2, length)), 1, k, direction), "block")
