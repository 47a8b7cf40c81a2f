"""DML_OPERATOR_ELEMENT_WISE_ROUND: rounds each element to an integral value."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.enums import RoundingMode
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import NumpyArray, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._pointwise import Unary
from tvmdml.operators._support import support


class ElementWiseRound(Unary):
    """Rounds each element to an integral value (``DML_ELEMENT_WISE_ROUND_OPERATOR_DESC``).

    Infinities and NaN are unchanged, the sign of zero is kept, and the result is exact: 0.49999997 rounds to 0 in every mode.
    The input and output have the same type and sizes; strides may differ. It can run in place.

    Args:
        rounding_mode: ``"halves_to_nearest_even"``, ``"toward_zero"``, or ``"toward_infinity"``: halves away from zero.
    """

    DEFAULTS = defaults(rounding_mode=RoundingMode.HALVES_TO_NEAREST_EVEN)
    ONNX = ("Round",)
    SUPPORT = support("2.1 F r4 · 3.0 r8 · ext D")
    GRADIENT = gradients(input="zeros(gradient)")

    rounding_mode: RoundingMode

    def shape_class(self) -> dict[str, int | str]:
        """Includes the mode, because each mode uses different instructions."""
        return {**super().shape_class(), "rounding_mode": self.rounding_mode.name.lower()}

    def value(self, x: Any) -> Any:
        """Exact in every rounding mode of the processor: all sums and differences here are."""
        if self.rounding_mode is RoundingMode.HALVES_TO_NEAREST_EVEN:
            return T.round_even(x)
        whole = T.trunc(x)
        if self.rounding_mode is RoundingMode.TOWARD_ZERO:
            return whole
        rest, half, one = x - whole, T.like(x, 0.5), T.like(x, 1)
        return T.select(rest >= half, whole + one, T.select(rest <= -half, whole - one, whole))

    def numpy(self, x: NumpyArray) -> NumpyArray:
        """With a comparison of the fraction."""
        if self.rounding_mode is RoundingMode.HALVES_TO_NEAREST_EVEN:
            return np.rint(x)
        whole = np.trunc(x)
        if self.rounding_mode is RoundingMode.TOWARD_ZERO:
            return whole
        with np.errstate(invalid="ignore"):
            away = np.abs(x - whole) >= 0.5  # exact: the fraction of a float is a float
        return np.copysign(np.where(away, whole + np.copysign(x.dtype.type(1), x), whole), x)
