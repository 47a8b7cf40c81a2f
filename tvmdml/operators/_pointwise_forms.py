"""Forms of pointwise operators that several of them have: a scale and a bias, one of Python's operators, limits, a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula
from tvmdml.operators._contract import Field, Input, NumpyArray, Operator, OptionalScaleBias, Output, Role, Shared, defaults
from tvmdml.operators._pointwise import Binary, Pointwise, Unary
from tvmdml.operators._roles import coerce
from tvmdml.operators._scalars import require_number
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDataType


class Scaled(Unary):
    """Base class of operators with one input that may be scaled first. Most are functions of floats since the first level."""

    SUPPORT = support("1.0 F r4 · 3.0 r8 · ext +D")

    scale_bias: OptionalScaleBias = None


class Activation(Unary):
    """Base class of activations; most have been there since the first level."""

    SUPPORT = support("1.0 F r4 · 2.0 r45 · 3.0 r8 · ext +D")


class Infix(Binary):
    """Base class of operators whose expression is one of Python's operators, in TensorIR as in NumPy."""

    INFIX: ClassVar[Callable[[Any, Any], Any]]

    def value(self, a: Any, b: Any) -> Any:
        return T.expression(type(self).INFIX(a, b))

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return type(self).INFIX(a, b)


class Comparison(Infix):
    """Base class of comparisons. The result is 1 or 0, in a type of its own."""

    SUPPORT = support("1.0 F r4 · 2.1 +IU · 3.0 r8 · 4.1 +LW · ext +D", output_tensor="1.0 u r4 · 2.0 B · 3.0 r8")
    SHARES = ()
    TAKES_BOOL = True
    DTYPES = defaults(output_dtype="output_tensor")


class Logical(Infix):
    """Base class of operators on truth values. The result is 1 or 0."""

    SUPPORT = support("1.0 u r4 · 2.0 B · 3.0 r8")
    TAKES_BOOL = True

    def value(self, a: Any, b: Any) -> Any:
        return type(self).INFIX(T.to(a, "bool"), T.to(b, "bool"))

    def numpy(self, a: NumpyArray, b: NumpyArray) -> NumpyArray:
        return type(self).INFIX(a != 0, b != 0)


class Bitwise(Infix):
    """Base class of operators on the bits of elements, whatever their type."""

    SUPPORT = support("3.0 U r8 · 4.1 all")
    BITS = True
    TAKES_BOOL = True


class Limited(Scaled):
    """Base class of operators that keep elements between two limits, ``min`` and ``max``."""

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require_numbers("min", "max")

    def value(self, x: Any) -> Any:
        low, high = (T.like(x, self.number(limit)) for limit in _limits(self))
        x = T.select(x > high, high, x)
        return T.select(x < low, low, x)

    def numpy(self, x: NumpyArray) -> NumpyArray:
        low, high = (self.array(limit, x.dtype) for limit in _limits(self))
        x = np.where(x > high, high, x)
        return np.where(x < low, low, x)


def check_union(desc: Pointwise, *names: str) -> None:
    """The numbers in ``DML_SCALAR_UNION`` fields have the type that ``min_max_data_type`` states, and that is the tensors' type.

    Raises:
        InvalidArgument: they have not.
    """
    data_type, stated = desc.inputs()[0].data_type, desc.min_max_data_type  # type: ignore[attr-defined] # a field of the subclasses
    desc.require(stated is data_type, "min_max_data_type", stated.tvm, f"{data_type.tvm}, the tensors' type")
    for name in names:
        require_number(desc, name, data_type)


def exact_limits(cls: type[Operator], data_type: TensorDataType, given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call of ``cls``, for an operator whose limits are in a union: cut and saturated as those of ``cls``."""
    found = dict(given)
    for name in ("min", "max"):
        limit = coerce(cls.where(name), Field(name, Role.SCALAR, False, False, float), given[name])
        found[name] = limit if data_type.is_float or limit != limit else T.saturated(limit, data_type.tvm)
    return found


class BitwiseGradient(Pointwise):
    """Base class of operators that give the gradient, bit by bit, for some elements of the input, and +0 for the others."""

    BITS = True

    input_tensor: Input
    input_gradient_tensor: Input
    output_gradient_tensor: Output

    def formula(self, shared: Shared = ()) -> Formula:
        """The tensors count as bits, and so have the same types for all types of a width; but the input is compared in its own."""
        found = super().formula(shared)
        return found._replace(key=(*found.key, ("compared", self.input_tensor.data_type.tvm)))

    def passes(self, x: Any) -> Any:
        """Whether the gradient is given for an element of the input."""
        raise NotImplementedError(self.NAME)

    def passes_numpy(self, x: NumpyArray) -> NumpyArray:
        """The same in NumPy, for an array."""
        raise NotImplementedError(self.NAME)

    def value(self, x: Any, gradient: Any) -> Any:
        return T.select(self.passes(T.wide(T.reinterpret(x, self.input_tensor.data_type.tvm))), gradient, 0)

    def numpy(self, x: NumpyArray, gradient: NumpyArray) -> NumpyArray:
        return np.where(self.passes_numpy(x.view(self.input_tensor.data_type.numpy)), gradient, gradient.dtype.type(0))


class LimitedGradient(BitwiseGradient):
    """Base class of the gradients of operators with two limits, ``min`` and ``max``: 0 on a limit, too."""

    SHARES = (("input_tensor", "output_gradient_tensor"),)

    def check_attributes(self, level: FeatureLevel) -> None:
        self.require_numbers("min", "max")

    def passes(self, x: Any) -> Any:
        low, high = (T.like(x, self.number(limit)) for limit in _limits(self))
        return T.or_nan((x > low) & (x < high), x)

    def passes_numpy(self, x: NumpyArray) -> Any:
        low, high = (self.array(limit, x.dtype) for limit in _limits(self))
        return ~((x <= low) | (x >= high))


def _limits(desc: Any) -> tuple[float, float]:
    """The fields of ``Limited`` and ``LimitedGradient``, which subclasses have: they come last in DirectML's order."""
    return desc.min, desc.max
