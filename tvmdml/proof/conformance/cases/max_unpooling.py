"""The operator of ``operators/max_unpooling.py``."""

from __future__ import annotations

from tvmdml.operators import Operator
from tvmdml.operators.max_unpooling import MaxUnpooling
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDataType, TensorDesc


def _made(x: TensorDesc, form: WindowForm) -> Operator:
    """The output is larger in its spatial dimensions, or smaller."""
    kind = TensorDataType.UINT64 if form.option else TensorDataType.UINT32
    sizes = (*x.sizes[:2], *(n * form.window % 50 + 1 for n in x.sizes[2:]))
    return MaxUnpooling.of(x, TensorDesc(kind, x.sizes), output_tensor=TensorDesc(x.data_type, sizes))


GOOD = _made(_window.X, WindowForm(3))
RULES = {
    "MAX_UNPOOLING: too few indices": Broken(
        change(GOOD, indices_tensor=TensorDesc("uint32", (2, 3, 5, 5))),
        *("MAX_UNPOOLING indices_tensor.sizes", "(2, 3, 5, 5)", "(2, 3, 5, 6), as in input_tensor"),
    ),
}

DESCRIBED, BROKEN, reference = _window.of("max_unpooling", {MaxUnpooling: _made}, RULES)
