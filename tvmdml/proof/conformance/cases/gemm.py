"""The operator of ``operators/gemm.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvmdml.enums import MatrixTransform
from tvmdml.errors import Unsupported
from tvmdml.operators import Operator
from tvmdml.operators._fused import OF_CONVOLUTION
from tvmdml.operators.activation import ActivationLeakyRelu, ActivationRelu
from tvmdml.operators.activation_smooth import ActivationGelu, ActivationTanh
from tvmdml.operators.activation_softmax import ActivationSoftmax, ActivationSoftmax1
from tvmdml.operators.element_wise_unary import ElementWiseClip
from tvmdml.operators.gemm import Gemm
from tvmdml.proof.conformance.cases import _matrix
from tvmdml.proof.conformance.cases._common import FLOATING, Broken, Case, change, tensor
from tvmdml.proof.conformance.cases._matrix import MatrixForm
from tvmdml.tensors import TensorDesc

_NUMBERS = ((1.0, 1.0), (1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (-1.25, 0.375), (0.0, 1.0), (1.0, 0.0))
_ACTIVATIONS: tuple[Any, ...] = (
    None,
    None,
    ActivationRelu.fused(),
    None,
    ActivationLeakyRelu.fused(alpha=0.1),
    ActivationTanh.fused(),
    ActivationGelu.fused(),
    ElementWiseClip.fused(min=-1.5, max=2.0, scale_bias=(2.0, 0.25)),
)


def product(kinds: Sequence[Any], form: MatrixForm) -> Gemm:
    """Transposed or not, with something added or not, and an activation or not."""
    way, kind = form.way, kinds[0]
    turned = bool(way & 1), bool(way & 2)
    a, b = form.factors((kind, kind), *turned)
    output = form.output(kind)
    alpha, beta = _NUMBERS[way % 7]
    steps = tensor(kind, output.sizes, ("packed", "padded", "transposed")[way % 3]).layout
    kept = (range(output.rank), (output.rank - 1,), (output.rank - 2,), ())[way // 2 % 4]
    added = TensorDesc(kind, output.sizes, tuple(step if i in kept else 0 for i, step in enumerate(steps)))
    return Gemm(
        a_tensor=a,
        b_tensor=b,
        c_tensor=added if way % 3 else None,
        output_tensor=output,
        trans_a=MatrixTransform(int(turned[0])),
        trans_b=MatrixTransform(int(turned[1])),
        alpha=alpha,
        beta=beta,
        fused_activation=_ACTIVATIONS[way % 8],
    )


def _described(x: TensorDesc) -> Gemm:
    sizes = (*x.sizes[:-2], x.sizes[-1], 6) if x.rank > 1 else (6,)
    result = (*x.sizes[:-1], 6) if x.rank > 1 else (6,)
    return Gemm(
        a_tensor=x,
        b_tensor=TensorDesc(x.data_type, sizes),
        c_tensor=TensorDesc(x.data_type, result),
        output_tensor=TensorDesc(x.data_type, result),
        trans_a=MatrixTransform.NONE,
        trans_b=MatrixTransform.NONE,
        alpha=1.0,
        beta=1.0,
    )


DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {Gemm: _described}

GOOD = _described(TensorDesc("float32", (2, 3, 5, 7)))

_AT_6_0 = f"{', '.join(OF_CONVOLUTION)}, at 6.0"

BROKEN: dict[str, Broken] = _matrix.rules("GEMM", GOOD, "float32", "float16") | {
    "GEMM of other types": Broken(
        change(GOOD, b_tensor=TensorDesc("float16", (2, 3, 7, 6))),
        *("GEMM b_tensor.data_type", "float16", "float32, as in a_tensor"),
    ),
    "GEMM with another shape added": Broken(
        change(GOOD, c_tensor=TensorDesc("float32", (1, 1, 5, 6))),
        *("GEMM c_tensor.sizes", "(1, 1, 5, 6)", "(2, 3, 5, 6), as in output_tensor"),
    ),
    "GEMM of a transposed factor that does not fit": Broken(
        change(GOOD, trans_a=MatrixTransform.TRANSPOSE),
        *("GEMM b_tensor.sizes[-2]", "7", "5, as a_tensor.sizes[-2]: products are summed over both"),
    ),
    "GEMM with softmax along a dimension that is not there": Broken(
        change(GOOD, fused_activation=ActivationSoftmax1.fused(axes=(4,))),
        *("GEMM fused_activation.axes[0]", "4", "0 to 3"),
    ),
    "GEMM with softmax along nothing": Broken(
        change(GOOD, fused_activation=ActivationSoftmax1.fused(axes=())),
        *("GEMM fused_activation.axes", "()", "1 to 4 axes"),
    ),
    "GEMM with softmax twice along a dimension": Broken(
        change(GOOD, fused_activation=ActivationSoftmax1.fused(axes=(3, 3))),
        *("GEMM fused_activation.axes[1]", "3", "an axis that is not there already"),
    ),
    "GEMM with softmax of a batch": Broken(
        change(GOOD, fused_activation=ActivationSoftmax.fused()),
        *("GEMM output_tensor.sizes", "(2, 3, 5, 6)", "sizes of 1 before the last two, for ACTIVATION_SOFTMAX"),
        advice="Fuse ACTIVATION_SOFTMAX1, which has axes.",
    ),
    "GEMM with softmax before its level": Broken(
        change(GOOD, fused_activation=ActivationSoftmax1.fused(axes=(3,))),
        *("GEMM fused_activation", "ACTIVATION_SOFTMAX1", _AT_6_0),
        error=Unsupported,
        level="6.0",
        advice="It can be fused from feature level 6.1.",
    ),
}  # fmt: skip


def reference(cls: type[Operator]) -> Iterator[Case]:
    """All ways; numbers of all kinds; softmax along each axis."""
    yield from _matrix.cases(product, [(kind,) for kind in FLOATING], ("normal", "factors", "special", "mixed", "zeros"))
    for number, kind in enumerate(FLOATING):
        for sizes, axes in (((), (1,)), ((), (0,)), ((2, 3), (3,)), ((2, 3), (1, 2)), ((3,), (0, 1, 2))):
            form = MatrixForm(sizes, 7, 12, 9, 0 if len(sizes) == 1 else 4)
            yield Case(change(product((kind,), form), fused_activation=ActivationSoftmax1.fused(axes=axes))(), "normal")
        alone = change(product((kind,), MatrixForm((1, 1), 40, 30, 70, 3 + number)), fused_activation=ActivationSoftmax.fused())
        yield Case(alone(), "normal")
