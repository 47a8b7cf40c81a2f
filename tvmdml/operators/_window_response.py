"""The regions of a local response normalization, and what is computed of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.enums import FeatureLevel
from tvmdml.kernels import mathematics
from tvmdml.kernels import tensorir_values as T
from tvmdml.operators import _window_reference as windows
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._window import Window, WindowAxis
from tvmdml.tensors import TensorDesc


class Response(Window):
    """Base class: regions of ``local_size`` channels, or of as many rows and columns, around each element."""

    FLAT = False
    WHOLE = "input_tensor"

    if TYPE_CHECKING:
        cross_channel: bool
        local_size: int
        alpha: float
        beta: float
        bias: float

    def windows(self) -> list[WindowAxis]:
        before = (self.local_size - 1) // 2
        return self._around(before, self.local_size - 1 - before)

    def mirrored(self) -> list[WindowAxis]:
        """The elements whose regions have an element."""
        before = (self.local_size - 1) // 2
        return self._around(self.local_size - 1 - before, before)

    def _around(self, before: int, behind: int) -> list[WindowAxis]:
        dimensions = (1,) if self.cross_channel else (2, 3)
        return [WindowAxis(i, 1, self.local_size, 1, before, behind) for i in dimensions]

    def infer(self) -> Mapping[str, TensorDesc]:
        """As large as the input."""
        return {self.POOLED: self.whole().with_sizes(self.whole().sizes)}

    def check_attributes(self, level: FeatureLevel) -> None:
        """Numbers, and a region with elements."""
        self.require(self.local_size >= 1, "local_size", self.local_size, "1 or more")
        for name in ("alpha", "beta", "bias"):
            self.require(math.isfinite(getattr(self, name)), name, getattr(self, name), "a finite number")

    def require_alike(self, *names: str) -> None:
        """Tensors have the input's type and sizes."""
        for name in names:
            self.require_same("data_type", name, "input_tensor")
            self.require_same("sizes", name, "input_tensor")

    def term(self, x: Any) -> Any:
        """What is summed: squares."""
        return T.rounded(x * x)

    def base(self, total: Any) -> Any:
        """``bias + alpha / local_size * total``."""
        return T.hold(T.rounded(total * T.like(total, self.alpha / self.local_size)) + T.like(total, self.bias))

    def power(self, base: Any) -> Any:
        """The base to the power of ``beta``."""
        if self.beta == 0.75:
            root = T.hold(T.sqrt(base))
            return root * T.sqrt(root)
        return base if self.beta == 1 else mathematics.power(base, T.like(base, self.beta))

    # -- In NumPy

    def bases(self, x: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """The base of each element, how many elements its region has, and whether a bound holds."""
        found = windows.tables(self)
        total = windows.combined(x * x, found, np.sum, 0)
        base = self.bias + self.alpha / self.local_size * total
        count = np.broadcast_to(windows.inside(found, x.ndim), x.shape)
        limit = 2.0**1000 if x.dtype == np.longdouble else 2.0**120
        sizes = np.where(x == 0, 1, np.abs(x))
        small = windows.combined(np.where(sizes * sizes < 1 / limit, 1.0, 0.0), found, np.max, 0) > 0
        # A square that is lost does not matter beside a bias that is not small, too.
        held = (self.bias > 0) & (self.alpha >= 0) & (total < limit) & (~small | (self.bias > 1e-20))
        held = held & ((abs(self.beta) + 1) * np.abs(np.log2(np.where(base > 0, base, 1))) < math.log2(limit))
        return base, count, held | np.isnan(base)
