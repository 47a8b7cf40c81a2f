"""The fields of the pooling operators, and the three ways to combine a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._contract import Input, NumpyArray, Output, Uints
from tvmdml.operators._window import Window
from tvmdml.operators._window_reference import TapTable
from tvmdml.operators._window_sums import Seen, Summed


class Pooling(Window):
    """The fields of a pooling without dilations."""

    input_tensor: Input
    output_tensor: Output
    strides: Uints
    window_size: Uints
    start_padding: Uints
    end_padding: Uints


class Dilated(Pooling):
    """The fields of a pooling with dilations."""

    dilations: Uints


class Average(Summed):
    """Base class: the sum divided by the number of taps inside, or with ``include_padding`` of those that are counted."""

    def result(self, total: Any, seen: Seen) -> Any:
        return total / seen.number(self.include_padding, T.scalar_type(total))  # type: ignore[attr-defined]

    def counts(self, found: list[TapTable], rank: int) -> NumpyArray:
        """The number of taps of each window, in NumPy."""
        if self.include_padding:  # type: ignore[attr-defined]
            return windows.product(found, lambda one: one.counted, rank)
        return windows.inside(found, rank)

    def finished(
        self, total: NumpyArray, magnitudes: NumpyArray, found: list[TapTable], x: NumpyArray, dtype: Any
    ) -> tuple[NumpyArray, NumpyArray]:
        count = np.maximum(self.counts(found, x.ndim), 1)
        result = total / count
        error = windows.growth(windows.inside(found, x.ndim), dtype) * magnitudes / count + 4 * windows.unit(dtype) * abs(result)
        return result, error


_FEW = 8
"""Powers up to this are products."""


class Norm(Summed):
    """Base class: the root of the sum of powers of magnitudes."""

    if TYPE_CHECKING:
        p: int

    def term(self, x: Any) -> Any:
        size = T.absolute(x)
        if self.p > _FEW:
            return mathematics.power(size, T.like(size, float(self.p)))
        found, left = size, self.p - 1
        while left:
            found, left = T.rounded(found * size), left - 1
        return found

    def result(self, total: Any, seen: Seen) -> Any:
        if self.p == 1:
            return total
        return T.sqrt(total) if self.p == 2 else mathematics.power(total, T.like(total, 1 / self.p))

    def check(self) -> None:
        super().check()
        self.require(self.p >= 1, "p", self.p, "1 or more")

    def terms(self, x: NumpyArray) -> NumpyArray:
        return np.abs(x) ** x.dtype.type(self.p)

    def finished(
        self, total: NumpyArray, magnitudes: NumpyArray, found: list[TapTable], x: NumpyArray, dtype: Any
    ) -> tuple[NumpyArray, NumpyArray]:
        p, unit = self.p, windows.unit(dtype)
        result = total if p == 1 else total ** (x.dtype.type(1) / x.dtype.type(p))
        growth = windows.growth(windows.inside(found, x.ndim), dtype)
        if p == 1:
            return result, growth * result
        size = np.abs(x)
        logs = np.abs(np.log2(np.where((size == 0) | ~np.isfinite(size), 1, size)))
        far = windows.combined(logs, found, np.max, 0)
        own = np.abs(np.log2(np.where((result == 0) | ~np.isfinite(result), 1, result)))
        factor = growth / 2 + 6 * unit if p == 2 else growth / p + 16 * unit * (1 + np.maximum(far, own))
        error = factor * result
        low, high = (-990, 1023) if dtype == np.float64 else (-120, 127)
        # A power that the type cannot have without losing digits: anything.
        least = windows.combined(np.where((size == 0) | ~np.isfinite(size), 0, np.log2(size) * p), found, np.min, 0)
        most = windows.combined(np.where((size == 0) | ~np.isfinite(size), 0, np.log2(size) * p), found, np.max, 0)
        free = ((least < low) | (most > high)) & ~np.isnan(total)
        return result, np.where(free, np.nan, error)
