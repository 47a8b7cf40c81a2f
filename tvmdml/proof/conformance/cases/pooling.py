"""The operators of ``operators/pooling.py``."""

from __future__ import annotations

from typing import Any

from tvmdml.operators import Operator
from tvmdml.operators.pooling import (
    AveragePooling,
    AveragePooling1,
    LpPooling,
    LpPooling1,
    MaxPooling,
    MaxPooling1,
    MaxPooling2,
)
from tvmdml.proof.conformance.cases import _window
from tvmdml.proof.conformance.cases._common import Broken, change
from tvmdml.proof.conformance.cases._window import WindowForm
from tvmdml.tensors import TensorDataType, TensorDesc


def _made(cls: type[Operator], **own: tuple[Any, Any]) -> _window.Make:
    """Descriptors with one of two values of each of the operator's own attributes."""
    dilated = any(field.name == "dilations" for field in cls.fields())

    def make(x: TensorDesc, form: WindowForm) -> Operator:
        output = TensorDesc(x.data_type, _window.sizes(x, form, dilated))
        given = {name: values[form.option] for name, values in own.items()}
        return cls.of(x, output_tensor=output, **_window.numbers(x, form, dilated), **given)

    return make


def _with_indices(cls: type[Operator]) -> _window.Make:
    """Descriptors with indices for one of the two values; some of them have 64 bits."""
    plain = _made(cls)

    def make(x: TensorDesc, form: WindowForm) -> Operator:
        desc = plain(x, form)
        if not form.option:
            return desc
        kind = TensorDataType.UINT64 if x.rank == 5 else TensorDataType.UINT32
        return change(desc, output_indices_tensor=TensorDesc(kind, desc.outputs()[0].sizes))()

    return make


_PADDED, _P = (False, True), (2, 3)
MADE: dict[type[Operator], _window.Make] = {
    AveragePooling: _made(AveragePooling, include_padding=_PADDED),
    AveragePooling1: _made(AveragePooling1, include_padding=_PADDED),
    LpPooling: _made(LpPooling, p=(2, 1)),
    LpPooling1: _made(LpPooling1, p=_P),
    MaxPooling: _made(MaxPooling),
    MaxPooling1: _with_indices(MaxPooling1),
    MaxPooling2: _with_indices(MaxPooling2),
}
_FORM = WindowForm(3, 2, start=1, end=1, option=True)
_INDEXED = MADE[MaxPooling2](_window.X, _FORM)
RULES = {
    "LP_POOLING: no power": Broken(change(MADE[LpPooling](_window.X, _FORM), p=0), "LP_POOLING p", "0", "1 or more"),
    "LP_POOLING1: no power": Broken(change(MADE[LpPooling1](_window.X, _FORM), p=0), "LP_POOLING1 p", "0", "1 or more"),
    "MAX_POOLING2: no dilation": Broken(change(_INDEXED, dilations=(1, 0)), "MAX_POOLING2 dilations[1]", "0", "1 or more"),
    "MAX_POOLING2: indices of other sizes": Broken(
        change(_INDEXED, output_indices_tensor=TensorDesc("uint32", (2, 3, 3, 2))),
        *("MAX_POOLING2 output_indices_tensor.sizes", "(2, 3, 3, 2)", "(2, 3, 3, 3), as in output_tensor"),
    ),
}

DESCRIBED, BROKEN, reference = _window.of("pooling", MADE, RULES)
