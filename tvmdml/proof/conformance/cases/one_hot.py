"""The operator of ``operators/one_hot.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.one_hot import OneHot
from tvmdml.proof.conformance.cases import _movement
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.tensors import TensorDesc


def _hot(axis: int, length: int, values: str, place: int = -1) -> Callable[[TensorDesc], Operator]:
    """The first tensor's sizes, with 1 along the axis; two values or more, in the dimension ``place``."""

    def made(x: TensorDesc) -> Operator:
        sizes = [1 if i == axis % x.rank else n for i, n in enumerate(x.sizes)]
        result = [length if i == axis % x.rank else n for i, n in enumerate(x.sizes)]
        two = [2 if i == place % x.rank else 1 for i in range(x.rank)]
        given = TensorDesc(values, two)
        return OneHot.of(x.with_sizes(sizes), given, output_tensor=TensorDesc(values, result), axis=axis % x.rank)

    return made


X = TensorDesc("uint32", (2, 4, 4, 1))
GOOD = _hot(-1, 5, "float32")(X)
RULES = {
    "ONE_HOT: more than one index": Broken(
        change(GOOD, indices_tensor=TensorDesc("uint32", (2, 4, 4, 5))),
        *("ONE_HOT indices_tensor.sizes", "(2, 4, 4, 5)", "(2, 4, 4, 1)"),
    ),
    "ONE_HOT: one value": Broken(
        change(GOOD, values_tensor=TensorDesc("float32", (1, 1, 1, 1))),
        *("ONE_HOT values_tensor.sizes", "(1, 1, 1, 1)", "at least two elements"),
    ),
    "ONE_HOT: an axis too many": Broken(change(GOOD, axis=4), "ONE_HOT axis", "4", "0 to 3, the dimensions of the tensor"),
}

DESCRIBED, BROKEN, reference = _movement.of(
    "one_hot",
    {
        OneHot: (
            *(_hot(-1, 5, "float32"), _hot(0, 9, "float16", 0), _hot(-2, 3, "uint8", -2), _hot(-1, 70, "float64")),
            _hot(-1, 1000, "int16"),
            *(_hot(0, 4, kind) for kind in ("int8", "int32", "int64", "uint16", "uint32", "uint64")),
        )
    },
    RULES,
    first=X,
)
