"""DML_OPERATOR_ELEMENT_WISE_POW and ELEMENT_WISE_CONSTANT_POW: powers of integers, which are exact, and of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.launched import Words, with_fields
from tvmdml.operators._contract import Float, Input, NumpyArray, OptionalScaleBias, Output
from tvmdml.operators._gradients import gradients
from tvmdml.operators._pointwise import Pointwise, precise
from tvmdml.operators._pointwise_forms import Scaled
from tvmdml.operators._support import support

_TYPES = "1.0 F r4 · 3.0 +IU r8 · ext +LWD"


class ElementWisePow(Pointwise):
    """Each element to the power of an element, which may have another type (``DML_ELEMENT_WISE_POW_OPERATOR_DESC``).

    Powers of floats are as in C, with the exponent in float32, or in float64 for float64. Integral powers of integers wrap. Of a
    negative exponent it is the true value cut toward zero: 0 unless the input is 1 or -1. 0 to the power of 0 is 1, and 0 to a
    negative one is 0. Other powers of integers are computed in float32, and then cut toward zero.
    """

    FUNCTION = ""
    ONNX = ("Pow",)
    SUPPORT = support(_TYPES, exponent_tensor=_TYPES)
    SHARES = (("input_tensor", "output_tensor"),)
    STEPS = 4
    GRADIENT = gradients(
        input="multiply(multiply(gradient, exponent), pow(input, subtract(exponent, 1)))",
        exponent="where(equals(input, 0), multiply(gradient, 0), multiply(multiply(gradient, result), log(input)))",
    )

    input_tensor: Input
    exponent_tensor: Input
    output_tensor: Output
    scale_bias: OptionalScaleBias = None

    def check_level(self, level: FeatureLevel) -> None:
        if level < FeatureLevel.LEVEL_3_0:
            self.require_same("data_type", "exponent_tensor", "input_tensor")

    def steps(self) -> int:
        return self.STEPS if any(tensor.data_type.is_float for tensor in self.inputs()) else 0

    def value(self, x: Any, exponent: Any) -> Any:
        if T.is_float(x):
            power = T.hold(T.to(exponent, T.scalar_type(x)))
            found = T.hold(mathematics.power(x, power))
            for number, short in _SHORT.items():  # as the exponent is a field of CONSTANT_POW, whose results are the same
                found = T.hold(T.select(T.expression(power == T.like(power, number)), short(x), found))
            return found
        return _of_integer(x, exponent) if T.is_float(exponent) else T.power(x, exponent)

    def numpy(self, x: NumpyArray, exponent: NumpyArray) -> NumpyArray:
        return _power(x, exponent)

    def error(self, x: NumpyArray, exponent: NumpyArray) -> Any:
        return _error(x, exponent)


class ElementWiseConstantPow(Scaled):
    """Each element to the power of ``exponent`` (``DML_ELEMENT_WISE_CONSTANT_POW_OPERATOR_DESC``): the result is that of POW."""

    FUNCTION = ""
    SUPPORT = support(_TYPES)
    STEPS = 4

    exponent: Float

    def steps(self) -> int:
        return self.STEPS if self.input_tensor.data_type.is_float or not float(self.exponent).is_integer() else 0

    def _launched(self, words: Words) -> Pointwise:
        """Products and roots have kernels of their own."""
        launched = super()._launched(words)
        return with_fields(launched, exponent=self.exponent) if self.exponent in _SHORT else launched

    def value(self, x: Any) -> Any:
        if T.is_float(x):
            short = _SHORT.get(self.exponent) if isinstance(self.exponent, float) else None
            return short(x) if short is not None else mathematics.power(x, T.like(x, self.exponent))
        if float(self.exponent).is_integer():
            return T.power(x, int(self.exponent))
        return _rounded_power(x, T.like(T.to(x, "float32"), self.exponent))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        # An array: of one number, NumPy takes the root instead, which is NaN of -inf.
        return _power(x, np.full(x.shape, self.exponent, x.dtype if x.dtype.kind == "f" else np.float32))

    def error(self, x: NumpyArray) -> Any:
        return _error(x, np.array(self.exponent, np.float32))


def _root(x: Any) -> Any:
    """As a power, the root of -0 is 0, and that of -inf is inf."""
    return T.sqrt(T.select(T.expression(x == T.like(x, -np.inf)), np.inf, T.let(x + T.like(x, 0.0))))


def _reciprocal(x: Any) -> Any:
    return T.like(x, 1) / x


_SHORT: dict[float, Callable[[Any], Any]] = {
    -1.0: _reciprocal,
    0.5: _root,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: T.rounded(x * x) * x,
}


def _of_integer(x: Any, exponent: Any) -> Any:
    """An integer to the power of a float: exact if that is integral."""
    width = max(T.bits_of(x), 32)
    period = 2.0 ** (width - 2)  # beyond it, powers of an odd number repeat, and those of an even one are 0
    size = T.hold(T.absolute(exponent))
    finite = size < T.like(size, np.inf)
    some = T.hold(T.select(finite, size, 0))
    turns = T.trunc(some * T.like(size, 1 / period))
    short = T.hold(
        T.select(some < T.like(size, period), some, (some - T.rounded(turns * T.like(size, period))) + T.like(size, period))
    )
    count = T.to(short, f"int{width}")
    count = T.hold(T.select(exponent < T.like(size, 0), T.negative(count), count))
    whole = finite & T.expression(T.trunc(some) == some)
    return T.select(whole, T.power(x, count), _rounded_power(x, T.to(exponent, "float32")))


def _rounded_power(x: Any, exponent: Any) -> Any:
    """A power in float32, cut to the integer's type."""
    return T.to(T.hold(mathematics.power(T.hold(T.to(x, "float32")), exponent)), T.scalar_type(x))


def _power(x: NumpyArray, exponent: NumpyArray) -> Any:
    if x.dtype.kind == "f":
        base, power = precise(x), precise(exponent.astype(x.dtype))
        # A C library may say inf for -inf to the power of -2**63.
        return np.where(np.isinf(base) & (power < -(2.0**62)), base.dtype.type(0), np.power(base, power))
    if exponent.dtype.kind != "f":
        return _exact_power(x, exponent)
    finite = np.where(np.isfinite(exponent), exponent, 0)
    whole = np.isfinite(exponent) & (np.trunc(finite) == finite)
    period = 2.0**62  # beyond it, powers of an odd number repeat, and those of an even one are 0
    size = np.abs(np.where(whole, finite, 0))
    count = np.where(size < period, size, np.fmod(size, period) + period).astype(np.int64)
    exact = _exact_power(x, np.where(finite < 0, -count, count)).astype(np.longdouble)
    with np.errstate(all="ignore"):
        cut = np.power(x.astype(np.float32).astype(np.longdouble), exponent.astype(np.float32).astype(np.longdouble))
    return np.where(whole, exact, cut)


def _error(x: NumpyArray, exponent: NumpyArray) -> Any:
    """Of integers to other than integral powers: that of a float32 before it is cut."""
    if x.dtype.kind == "f" or exponent.dtype.kind != "f":
        return 0.0
    found = _power(x, exponent)
    whole = np.isfinite(exponent) & (np.trunc(exponent) == exponent)
    return np.where(whole | ~np.isfinite(found), 0.0, np.abs(found) * 2.0**-20)


def _exact_power(x: NumpyArray, exponent: NumpyArray) -> NumpyArray:
    below, whole = exponent < 0, x.astype(np.uint64)
    found = np.power(whole, np.where(below, exponent & 1, exponent).astype(np.uint64))
    unit = (x == 1) | (x == np.array(-1).astype(x.dtype)) & (x.dtype.kind == "i")
    return np.where(below & ~unit, 0, found).astype(x.dtype)
