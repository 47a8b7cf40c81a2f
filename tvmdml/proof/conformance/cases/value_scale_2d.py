"""The operator of ``operators/value_scale_2d.py``: its second dimension is one or three channels."""

from __future__ import annotations

from collections.abc import Iterator

from tvmdml.operators import Operator
from tvmdml.operators.value_scale_2d import ValueScale2d
from tvmdml.proof.conformance.cases._common import DISTINCT, PAIRS, Broken, Case, change, tensor
from tvmdml.tensors import TensorDesc


def _described(x: TensorDesc, *layout: str) -> Operator:
    """One number for a tensor of one channel, and otherwise three."""
    bias = (0.25, -3.5, 1e-3)[: 1 if x.rank > 1 and x.sizes[1] == 1 else 3]
    return ValueScale2d.of(x, scale=-1.7, bias=bias)


def reference(cls: type[Operator]) -> Iterator[Case]:
    """Each type with one and three channels, in all layouts."""
    for data_type in {one: None for row in cls.SUPPORT for one in row.tensors["input_tensor"].types}:
        for sizes in ((2, 3, 5, 7), (1, 1, 3, 70), (3, 3, 16, 64), (1, 3, 300, 301)):
            desc = _described(tensor(data_type, sizes))
            yield from (Case(desc, fill) for fill in ("mixed", "bits", "normal"))
        for one, other in PAIRS:
            yield Case(
                change(
                    desc, input_tensor=tensor(data_type, (2, 3, 5, 7), one), output_tensor=tensor(data_type, (2, 3, 5, 7), other)
                )()
            )


X = TensorDesc("float32", (2, 3, 4, 5))
GOOD = _described(X)
STRIDES = (60, 20, 5, 0)

DESCRIBED = {
    ValueScale2d: lambda x: (
        _described(x)
        if x.rank != 4 or x.sizes[1] in (1, 3)
        else ValueScale2d.of(TensorDesc(x.data_type, (x.sizes[0], 3, *x.sizes[2:])), scale=-1.7, bias=(0.25, -3.5, 1e-3))
    )
}
BROKEN = {
    "VALUE_SCALE_2D: two numbers": Broken(change(GOOD, bias=(1, 2)), "VALUE_SCALE_2D bias", "2 numbers", "3, one for each channel"),
    "VALUE_SCALE_2D: two channels": Broken(
        change(GOOD, input_tensor=TensorDesc("float32", (2, 2, 4, 5)), output_tensor=TensorDesc("float32", (2, 2, 4, 5))),
        *("VALUE_SCALE_2D input_tensor.sizes[1]", "2", "1 or 3 channels"),
    ),
    "VALUE_SCALE_2D: another type": Broken(
        change(GOOD, output_tensor=TensorDesc("float16", X.sizes)),
        *("VALUE_SCALE_2D output_tensor.data_type", "float16", "float32, as in input_tensor"),
    ),
    "VALUE_SCALE_2D: other sizes": Broken(
        change(GOOD, output_tensor=TensorDesc("float32", (2, 3, 4, 4))),
        *("VALUE_SCALE_2D output_tensor.sizes", "(2, 3, 4, 4)", f"{X.sizes}, as in input_tensor"),
    ),
    "VALUE_SCALE_2D: repeated elements of output_tensor": Broken(
        change(GOOD, output_tensor=TensorDesc("float32", X.sizes, STRIDES)),
        *("VALUE_SCALE_2D output_tensor", f"strides {STRIDES} for sizes {X.sizes}", DISTINCT),
        advice="Only inputs may repeat elements.",
    ),
}
