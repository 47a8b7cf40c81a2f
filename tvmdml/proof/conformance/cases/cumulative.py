"""The operators of ``operators/cumulative.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tvmdml.enums import AxisDirection
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._scan import BLOCK, TILE, Scan
from tvmdml.operators.cumulative import CumulativeProduct, CumulativeSummation
from tvmdml.proof.conformance.cases._common import (
    ALL,
    DISTINCT,
    EXTENSION,
    KINDS,
    LENGTHS,
    ODD,
    PAIRS,
    Broken,
    Case,
    change,
    in_place,
    tensor,
)
from tvmdml.tensors import TensorDesc as T


def scan(cls: type[Scan], x: T, axis: int = 0, way: int = 0, layout: str = "packed") -> Scan:
    """One of the four ways: from which end, and inclusive or exclusive."""
    direction, exclusive = tuple(AxisDirection)[way % 2], way // 2 % 2 > 0
    output = tensor(x.data_type, x.sizes, layout)
    return cls(input_tensor=x, output_tensor=output, axis=axis, axis_direction=direction, **{cls.EXCLUSIVE: exclusive})


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {
    cls: partial(scan, cls) for cls in (CumulativeSummation, CumulativeProduct)
}

X = T("float32", (2, 3, 4, 5))


def _broken(cls: type[Scan]) -> dict[str, Broken]:
    good, name, level = scan(cls, X, 1), cls.NAME, str(cls.feature_level())
    before = {"2.1": "2.0", "3.1": "3.0"}[level]
    return {
        f"{name} before its level": Broken(
            lambda: good, f"{name} feature_level", before, f"{level} and above", Unsupported, before
        ),
        f"{name} of rank 3 at 3.1": Broken(
            lambda: scan(cls, T("float32", (2, 3, 4))),
            *(f"{name} input_tensor", "float32 of rank 3", "float32, float16, uint32, int32; rank 4, at feature level 3.1"),
            *(Unsupported, "3.1", "Feature level 4.0 supports it."),
        ),
        f"{name} of int8": Broken(
            lambda: scan(cls, T("int8", (2, 3))),
            f"{name} input_tensor",
            "int8 of rank 2",
            "float32, float16, uint32, int32, uint64, int64; rank 1 to 8, at feature level 6.4",
            *(Unsupported, "6.4", EXTENSION),
        ),
        f"{name} along no axis": Broken(
            change(good, axis=4), f"{name} axis", "4", "0 to 3", advice="The input has no such dimension."
        ),
        f"{name} sideways": Broken(change(good, axis_direction=2), f"{name} axis_direction", "2", "'increasing', 'decreasing'"),
        f"{name} to another type": Broken(
            change(good, output_tensor=T("int32", X.sizes)),
            *(f"{name} output_tensor.data_type", "int32", "float32, as in input_tensor"),
        ),
        f"{name} to other sizes": Broken(
            change(good, output_tensor=T("float32", (2, 3, 5, 4))),
            *(f"{name} output_tensor.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
        ),
        f"{name} to repeated elements": Broken(
            change(good, output_tensor=T("float32", X.sizes, (60, 20, 5, 0))),
            *(f"{name} output_tensor", "strides (60, 20, 5, 0) for sizes (2, 3, 4, 5)", DISTINCT),
        ),
    }


BROKEN: dict[str, Broken] = _broken(CumulativeSummation) | _broken(CumulativeProduct)


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every type, rank, layout and way; lengths around groups, blocks and tiles; rows in parts, and neighbouring rows."""
    assert issubclass(cls, Scan)
    plain = "factors" if cls is CumulativeProduct else "normal"
    for number, data_type in enumerate(ALL):
        for rank, sizes in ODD.items():
            yield Case(scan(cls, T(data_type, sizes), (rank + number) % rank, rank + number), plain)
        for way in range(4):
            for fill in (plain, "mixed", "special", "zeros", "bits"):
                yield Case(scan(cls, T(data_type, (3, 45)), 1, way + number), fill)
            yield from in_place(scan(cls, T(data_type, (5, 300)), 1, way), plain)
            yield from in_place(scan(cls, T(data_type, (67, 39)), 0, way), plain)
        for place, (one, other) in enumerate(PAIRS):
            for axis in (0, 1):
                yield Case(scan(cls, tensor(data_type, (37, 41), one), axis, place + axis, other), plain)
        if data_type in KINDS:
            yield from _shapes(cls, data_type.tvm, number, plain)
    for number, length in enumerate((*LENGTHS, TILE - 1, TILE, TILE + 1)):
        yield Case(scan(cls, T("float32", (2, length)), 1, number), plain)
        yield Case(scan(cls, T("float32", (length, 35)), 0, number), plain)


def _shapes(cls: type[Scan], data_type: str, number: int, plain: str) -> Iterator[Case]:
    for way in range(4):
        for sizes, axis in (
            ((1, 5 * TILE + 77), 1),  # a row in parts
            ((3, TILE + BLOCK + 17), 1),
            ((40, 2 * BLOCK), 1),
            ((2, TILE + BLOCK + 5, 20), 1),  # neighbouring rows
            ((2, 3 * BLOCK + 33, 130), 1),
            ((700, 2), 0),  # few neighbours
            ((9000, 8), 1),  # short rows
        ):
            yield Case(scan(cls, T(data_type, sizes), axis, way), plain)
    for layout in ("padded", "spread"):
        yield from in_place(_laid(cls, data_type, (5, 2 * TILE + 9), 1, layout, number), plain)
        yield from in_place(_laid(cls, data_type, (BLOCK + 3, 77), 0, layout, number), plain)
    yield from in_place(scan(cls, T(data_type, (1, 40 * TILE + 1)), 1, number), plain)
    yield Case(scan(cls, T(data_type, (1, 20 * TILE + 3)), 1, number), "mixed")


def _laid(cls: type[Scan], data_type: str, sizes: tuple[int, ...], axis: int, layout: str, way: int) -> Scan:
    return scan(cls, tensor(data_type, sizes, layout), axis, way, layout)
