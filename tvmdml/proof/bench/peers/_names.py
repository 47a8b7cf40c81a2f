"""What other libraries call the pointwise operators, for those that they call otherwise than the function here."""

from __future__ import annotations

import functools

import numpy as np

from tvmdml import operators
from tvmdml.operators import Operator

_NUMPY = {
    "acos": "arccos",
    "acosh": "arccosh",
    "activation_identity": "positive",
    "activation_tanh": "tanh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan_yx": "arctan2",
    "atanh": "arctanh",
    "bit_and": "bitwise_and",
    "bit_count": "bitwise_count",
    "bit_not": "invert",
    "bit_or": "bitwise_or",
    "bit_shift_left": "left_shift",
    "bit_shift_right": "right_shift",
    "bit_xor": "bitwise_xor",
    "equals": "equal",
    "greater_than": "greater",
    "greater_than_or_equal": "greater_equal",
    "identity": "positive",
    "is_infinity": "isinf",
    "is_nan": "isnan",
    "less_than": "less",
    "less_than_or_equal": "less_equal",
    "max": "maximum",
    "min": "minimum",
    "modulus_floor": "remainder",
    "modulus_truncate": "fmod",
    "negate": "negative",
    "pow": "power",
    "recip": "reciprocal",
}
_TORCH = {
    "activation_sigmoid": "sigmoid",
    "bit_not": "bitwise_not",
    "bit_shift_left": "bitwise_left_shift",
    "bit_shift_right": "bitwise_right_shift",
    "equals": "eq",
    "erf": "erf",
    "pow": "pow",
}
"""Where the name is not NumPy's either."""


def _versions(operator: str) -> list[type[Operator]]:
    """The operator's class, and its other versions: ADD and ADD1."""
    cls = operators.by_name(operator)
    stem = cls.NAME.rstrip("0123456789")
    alike = [one for one in operators.classes_in(operators.module_of(cls)) if one.NAME.rstrip("0123456789") == stem]
    return [cls, *alike]


@functools.cache
def function(operator: str) -> str:
    """The name of the function here, which one of the versions has."""
    return next((one.FUNCTION for one in _versions(operator) if one.FUNCTION), operator.rstrip("0123456789").lower())


def in_numpy(operator: str) -> str:
    """The name of NumPy's ufunc; empty if it has none."""
    name = _NUMPY.get(function(operator), function(operator))
    return name if isinstance(getattr(np, name, None), np.ufunc) else ""


def in_torch(operator: str) -> str:
    """The name of PyTorch's function, which is mostly NumPy's; empty if neither has one."""
    return _TORCH.get(function(operator)) or in_numpy(operator)


def in_onnx(operator: str) -> str:
    """ONNX's operator; empty if there is none. Those of other domains, which have a dot in their names, do not count."""
    return next((name for one in _versions(operator) for name in one.ONNX if "." not in name), "")
