"""The operators of ``operators/pooling_grad.py``."""

from __future__ import annotations

from collections.abc import Callable

from tvmdml.operators import Operator
from tvmdml.operators.pooling_grad import AveragePoolingGrad, MaxPoolingGrad
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDesc


def _average(x: TensorDesc, form: WindowForm) -> Operator:
    """The image's sizes are those of the tensor."""
    gradient = TensorDesc(x.data_type, _window.sizes(x, form, False))
    numbers = _window.numbers(x, form, False)
    image = TensorDesc(x.data_type, x.sizes)
    return AveragePoolingGrad.of(gradient, output_gradient_tensor=image, include_padding=form.option, **numbers)


def _largest(x: TensorDesc, form: WindowForm) -> Operator:
    return MaxPoolingGrad.of(x, TensorDesc(x.data_type, _window.sizes(x, form)), **_window.numbers(x, form))


MADE: dict[type[Operator], _window.Make] = {AveragePoolingGrad: _average, MaxPoolingGrad: _largest}
_, BROKEN, reference = _window.of("pooling_grad", MADE)
# With as many windows as elements, so that the first tensor may be either.
DESCRIBED: dict[type[Operator], Callable[[TensorDesc], Operator]] = {
    cls: lambda x, make=make: make(x, WindowForm(3, start=1, end=1))  # type: ignore[misc]
    for cls, make in MADE.items()
}
