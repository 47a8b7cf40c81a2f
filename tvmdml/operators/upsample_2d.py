"""DML_OPERATOR_UPSAMPLE_2D: an image enlarged by whole factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmdml.enums import InterpolationMode
from tvmdml.kernels import tensorir as T
from tvmdml.operators._accuracy import within_sum
from tvmdml.operators._contract import Input, NumpyArray, Output, Shared, Size
from tvmdml.operators._movement import Coordinate, Movement, SourceCoordinates
from tvmdml.operators._resampling import Resampled
from tvmdml.operators._resampling_enlarged import Enlarged
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc


class Upsample2d(Movement):
    """An image enlarged by whole factors (``DML_UPSAMPLE_2D_OPERATOR_DESC``). The last two dimensions are its height and width.

    Args:
        input_tensor: float16, float32, float64; four or five dimensions.
        scale_size: the factors of the width and of the height; at least 1.
        interpolation_mode: ``"nearest_neighbor"`` repeats elements; ``"linear"`` weighs neighbours, and repeats those at the edges.
    """

    FUNCTION = "upsample_2d"
    SUPPORT = support("1.0 F r45 · ext +D")
    TAKES_BOOL = False

    input_tensor: Input
    output_tensor: Output
    scale_size: Size
    interpolation_mode: InterpolationMode

    def modules(self) -> tuple[str, ...]:
        """With weights, kernels follow from those of a resampling, too."""
        return super().modules() if self.is_moved() else (*super().modules(), "resample")

    def infer(self) -> Mapping[str, TensorDesc]:
        """The last two sizes are multiplied."""
        return {"output_tensor": self.input_tensor.with_sizes(self._sizes())}

    def check(self) -> None:
        """The last two sizes are multiplied."""
        self.require_same("data_type", "output_tensor", "input_tensor")
        for name, factor in self.scale_size._asdict().items():
            self.require(factor >= 1, f"scale_size.{name}", factor, "1 or more")
        self.require_sizes("output_tensor", self._sizes())

    def _sizes(self) -> tuple[int, ...]:
        *outer, height, width = (1, *self.input_tensor.sizes)
        return (*outer[1:], height * self.scale_size.height, width * self.scale_size.width)

    def is_moved(self) -> bool:
        return self.interpolation_mode is InterpolationMode.NEAREST_NEIGHBOR

    def source(self, *at: Coordinate) -> SourceCoordinates:
        *outer, y, x = at
        return (*outer, y // self.scale_size.height, x // self.scale_size.width)

    def numpy(self, x: NumpyArray) -> Any:
        width, height = self.scale_size
        if self.is_moved():
            return x.repeat(height, -2).repeat(width, -1)
        wide = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
        magnitudes = np.abs(wide)
        for axis, factor in ((-2, height), (-1, width)):
            wide, magnitudes = _enlarged(wide, axis, factor), _enlarged(magnitudes, axis, factor)
        return within_sum(wide, x.dtype, 10, magnitudes)

    def computation(self, each: T.Each, shared: Shared = ()) -> T.PrimFunc:
        """With weights, that of a resampling."""
        return super().computation(each, shared) if self.is_moved() else self.resampling().computation(each, shared)

    def resampling(self) -> Resampled:
        """With weights: centres are in the middles of elements."""
        rank = self.input_tensor.rank
        return Enlarged(
            input_tensor=self.input_tensor,
            output_tensor=self.output_tensor,
            interpolation_mode=self.interpolation_mode,
            scales=(*(1.0,) * (rank - 2), float(self.scale_size.height), float(self.scale_size.width)),
        )


def _enlarged(x: NumpyArray, axis: int, factor: int) -> NumpyArray:
    """The same with NumPy."""
    place = (np.arange(x.shape[axis] * factor).astype(np.longdouble) + 0.5) / factor - 0.5
    low = np.floor(place)
    share = (place - low).reshape(-1, *(1 for _ in range(-axis - 1)))
    first, second = (x.take(np.clip(one, 0, x.shape[axis] - 1).astype(np.int64), axis) for one in (low, low + 1))
    with np.errstate(all="ignore"):
        found: NumpyArray = np.where(share == 0, first, first * (1 - share) + second * share)
    return found
