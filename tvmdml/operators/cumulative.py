"""DML_OPERATOR_CUMULATIVE_SUMMATION and CUMULATIVE_PRODUCT: running sums and products along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.enums import AxisDirection
from tvmdml.operators._contract import Bool, NumpyArray, defaults
from tvmdml.operators._gradients import gradients
from tvmdml.operators._scan import Scan
from tvmdml.operators._support import support


class CumulativeSummation(Scan):
    """The sum of the elements up to each along an axis (``DML_CUMULATIVE_SUMMATION_OPERATOR_DESC``).

    With ``has_exclusive_sum`` an element is not part of its own sum: the first is 0. Integers wrap. A float may differ from the
    exact sum by about as many rounding errors as it has terms; a float16 is computed in float32 and rounded once.
    """

    FUNCTION = "cumulative_summation"
    DEFAULTS = defaults(axis=-1, axis_direction=AxisDirection.INCREASING, has_exclusive_sum=False)
    ONNX = ("CumSum",)
    SUPPORT = support("2.1 Fiu r4 · 4.0 r8 · 5.0 +LW · ext +DIU")
    GRADIENT = gradients(
        input="cumulative_summation("
        "gradient, axis=axis, axis_direction=opposite(axis_direction), has_exclusive_sum=has_exclusive_sum)"
    )
    IDENTITY, FIRST, EXCLUSIVE = -0.0, 0, "has_exclusive_sum"

    has_exclusive_sum: Bool

    def combine(self, a: Any, b: Any) -> Any:
        return a + b

    def accumulated(self, x: NumpyArray, axis: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """A sum depends on the order if that of the magnitudes overflows; infinities and NaN of the input do not count for that."""
        if x.dtype.kind != "f":
            found = np.cumsum(x, axis, x.dtype)
            return found, found, found
        wide = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
        magnitudes = np.cumsum(np.where(np.isfinite(wide), np.abs(wide), 0), axis)
        found = np.cumsum(wide, axis)
        most = np.finfo(np.float64 if x.dtype == np.float64 else np.float32).max
        given = np.cumsum(wide - wide, axis)  # NaN from the first number on that is not finite
        settled = np.isnan(given) & np.isnan(found)
        return found, magnitudes, (magnitudes > most * 0.999) & ~settled


class CumulativeProduct(Scan):
    """The product of the elements up to each along an axis (``DML_CUMULATIVE_PRODUCT_OPERATOR_DESC``).

    With ``has_exclusive_product`` an element is not part of its own product: the first is 1. Integers wrap. A float may differ from
    the exact product by about as many rounding errors as it has factors; a float16 is computed in float32 and rounded once.
    """

    FUNCTION = "cumulative_product"
    DEFAULTS = defaults(axis=-1, axis_direction=AxisDirection.INCREASING, has_exclusive_product=False)
    ONNX = ("CumProd",)
    SUPPORT = support("3.1 Fiu r4 · 4.0 r8 · 5.0 +LW · ext +DIU")
    IDENTITY, FIRST, EXCLUSIVE = 1.0, 1, "has_exclusive_product"

    has_exclusive_product: Bool

    def combine(self, a: Any, b: Any) -> Any:
        return a * b

    def accumulated(self, x: NumpyArray, axis: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """A product depends on the order if a part of it may overflow, or lose digits below the least normal number."""
        if x.dtype.kind != "f":
            found = np.cumprod(x, axis, x.dtype)
            return found, found, found
        wide = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
        found = np.cumprod(wide, axis)
        limits = np.finfo(np.float64 if x.dtype == np.float64 else np.float32)
        # A part's logarithm is the difference of two of these, whose range grows; zeros leave them as they are.
        logarithms = np.cumsum(np.log2(np.where(wide == 0, 1, np.abs(wide))), axis)
        high, low = np.maximum.accumulate(logarithms, axis), np.minimum.accumulate(logarithms, axis)
        spread = np.maximum(high, 0) - np.minimum(low, 0)
        free = ~(spread < min(limits.maxexp, -limits.minexp) - 0.5)
        given = np.maximum.accumulate(np.isnan(wide), axis)
        return np.where(given, np.nan, found), np.abs(found), free & ~given
