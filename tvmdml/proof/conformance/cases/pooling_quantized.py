"""The operator of ``operators/pooling_quantized.py``."""

from __future__ import annotations

from tvmdml.operators import Operator
from tvmdml.operators.pooling_quantized import QuantizedLinearAveragePooling
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDataType, TensorDesc


def _made(x: TensorDesc, form: WindowForm) -> Operator:
    """With one number for all and no zero point for the output, or with numbers for each channel and another type."""
    each = (1, x.sizes[min(1, x.rank - 1)], *[1] * (x.rank - 2)) if form.option else (1,) * (1 + form.window % 3)
    scale, zero = TensorDesc("float32", each), TensorDesc(x.data_type, each)
    kind = TensorDataType.INT8 if form.option and form.window != 2 else x.data_type
    output = TensorDesc(kind, _window.sizes(x, form))
    given = (
        x,
        scale,
        zero,
        scale,
        TensorDesc(kind, (1,) * (1 + (form.window + form.stride + x.rank) % 5)) if form.option else None,
    )
    return QuantizedLinearAveragePooling.of(*given, output_tensor=output, include_padding=form.option, **_window.numbers(x, form))


X = TensorDesc("uint8", _window.X.sizes)
GOOD = _made(X, WindowForm(3, 2, start=1, end=1, option=True))
_NAME = "QUANTIZED_LINEAR_AVERAGE_POOLING"
RULES = {
    f"{_NAME}: a zero point of another type": Broken(
        change(GOOD, input_zero_point_tensor=TensorDesc("int8", (1,))),
        *(f"{_NAME} input_zero_point_tensor.data_type", "int8", "uint8, as in input_tensor"),
    ),
    f"{_NAME}: scales for other channels": Broken(
        change(GOOD, input_scale_tensor=TensorDesc("float32", (1, 2, 1, 1))),
        *(f"{_NAME} input_scale_tensor.sizes", "(1, 2, 1, 1)", "one element, or (1, 3, 1, 1): one for each channel"),
    ),
}

DESCRIBED, BROKEN, reference = _window.of("pooling_quantized", {QuantizedLinearAveragePooling: _made}, RULES, X)
