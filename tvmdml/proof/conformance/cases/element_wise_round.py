"""ELEMENT_WISE_ROUND."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvmdml.enums import RoundingMode
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators.element_wise_round import ElementWiseRound
from tvmdml.proof.conformance.cases._common import (
    DISTINCT,
    EXTENSION,
    FLOATING,
    LENGTHS,
    ODD,
    PAIRS,
    TENSOR,
    Broken,
    Case,
    change,
    in_place,
    tensor,
)
from tvmdml.tensors import TensorDesc as T

X = T("float32", (2, 3, 4, 5))


def rounded(x: T, mode: RoundingMode | str = "toward_zero", layout: str = "packed") -> ElementWiseRound:
    """The rounded input; the output has the given layout."""
    return ElementWiseRound(input_tensor=x, output_tensor=tensor(x.data_type, x.sizes, layout), rounding_mode=mode)  # type: ignore[arg-type]


DESCRIBED: dict[type[Operator], Callable[[T], Operator]] = {ElementWiseRound: rounded}

ROUND = rounded(X)

BROKEN: dict[str, Broken] = {
    "round before its level": Broken(
        lambda: ROUND,
        *("ELEMENT_WISE_ROUND feature_level", "2.0", "2.1 and above", Unsupported, "2.0"),
        advice="That level introduced the operator.",
    ),
    "round of rank 3 at 2.1": Broken(
        lambda: rounded(T("float32", (2, 3, 4))),
        *("ELEMENT_WISE_ROUND input_tensor", "float32 of rank 3", "float32, float16; rank 4, at feature level 2.1"),
        *(Unsupported, "2.1", "Feature level 3.0 supports it."),
    ),
    "round of float64": Broken(
        lambda: rounded(T("float64", (2, 3))),
        *("ELEMENT_WISE_ROUND input_tensor", "float64 of rank 2", "float32, float16; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", EXTENSION),
    ),
    "round of integers": Broken(
        lambda: rounded(T("int32", (2, 3))),
        *("ELEMENT_WISE_ROUND input_tensor", "int32 of rank 2", "float32, float16; rank 1 to 8, at feature level 6.4"),
        *(Unsupported, "6.4", "Convert or reshape the tensor."),
    ),
    "round to another type": Broken(
        change(ROUND, output_tensor=T("float16", X.sizes)),
        *("ELEMENT_WISE_ROUND output_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "round to other sizes": Broken(
        change(ROUND, output_tensor=T("float32", (2, 3, 5, 4))),
        *("ELEMENT_WISE_ROUND output_tensor.sizes", "(2, 3, 5, 4)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "round to another rank": Broken(
        change(ROUND, output_tensor=T("float32", (6, 4, 5))),
        *("ELEMENT_WISE_ROUND output_tensor.sizes", "(6, 4, 5)", "(2, 3, 4, 5), as in input_tensor"),
    ),
    "round to repeated elements": Broken(
        change(ROUND, output_tensor=T("float32", X.sizes, (60, 20, 5, 0))),
        *("ELEMENT_WISE_ROUND output_tensor", "strides (60, 20, 5, 0) for sizes (2, 3, 4, 5)", DISTINCT),
        advice="Only inputs may repeat elements.",
    ),
    "round up": Broken(
        change(ROUND, rounding_mode="up"),
        *("ELEMENT_WISE_ROUND rounding_mode", "'up'", "'halves_to_nearest_even', 'toward_zero', 'toward_infinity'"),
    ),
    "round nothing": Broken(change(ROUND, input_tensor=None), "ELEMENT_WISE_ROUND input_tensor", "None", TENSOR),
    "round to nothing": Broken(
        change(ROUND, output_tensor=None), "ELEMENT_WISE_ROUND output_tensor", "None", "output tensor: a TensorDesc"
    ),
    "round a tuple": Broken(
        change(ROUND, input_tensor=("float32", (2,))),
        *("ELEMENT_WISE_ROUND input_tensor", "('float32', (2,))", TENSOR),
    ),
}


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Every type and mode; every rank and layout; arrays that are split into tasks, tiled, and written around the caches."""
    for data_type in FLOATING:
        for mode in RoundingMode:
            yield from (Case(rounded(T(data_type, sizes), mode)) for sizes in ODD.values())
            yield from (Case(rounded(T(data_type, (4099,)), mode), fill) for fill in ("halves", "bits", "special", "zeros"))
            yield from (case for sizes in ((1,), (1000,), (3, 1, 77)) for case in in_place(rounded(T(data_type, sizes), mode)))
            yield from (Case(rounded(T(data_type, (size,)), mode), "halves") for size in (4096, 300_007))  # whole lines, and not
            yield Case(rounded(T(data_type, (1 << 16,)), mode), "patterns")
            yield from (Case(rounded(T(data_type, (size,)), mode), "halves") for size in LENGTHS)
            yield from (case for size in LENGTHS[2::2] for case in in_place(rounded(T(data_type, (size,)), mode)))
        for height, width in ((16, 16), (17, 16), (16, 31), (50, 33), (15, 40), (40, 15), (1, 50)):
            yield Case(rounded(tensor(data_type, (3, height, width), "transposed")), "halves")
            yield Case(rounded(T(data_type, (height, width)), layout="transposed"), "halves")
        for one, other in PAIRS:
            yield Case(rounded(tensor(data_type, (5, 3, 19), one), RoundingMode.HALVES_TO_NEAREST_EVEN, other), "halves")
        for mode in (RoundingMode.HALVES_TO_NEAREST_EVEN, RoundingMode.TOWARD_INFINITY):
            yield from (Case(rounded(tensor(data_type, sizes, "transposed"), mode), "halves") for sizes in ((67, 45), (64, 32)))
            yield Case(rounded(tensor(data_type, (700, 301), "transposed"), mode), "halves")
            yield Case(rounded(tensor(data_type, (300, 401), "padded"), mode, "padded"), "halves")
            yield from in_place(rounded(T(data_type, (700, 301)), mode), "halves")
        yield Case(rounded(T(data_type, (2 << 20, 3))), "normal")
