"""DML_OPERATOR_UPSAMPLE_2D: an image enlarged by whole factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmdml.enums import InterpolationMode
from tvmdml.kernels import tensorir as T
from tvmdml.kernels import tensorir_values as V
from tvmdml.operators._accuracy import within_sum
from tvmdml.operators._contract import Array, Input, Output, Shared, Size
from tvmdml.operators._movement import Coordinate, Movement, Source
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = ["Upsample2d"]


class Upsample2d(Movement):
    """An image enlarged by whole factors (``DML_UPSAMPLE_2D_OPERATOR_DESC``). The last two dimensions are its height and width.

    Args:
        input_tensor: float16, float32, float64; four or five dimensions.
        scale_size: the factors of the width and of the height; at least 1.
        interpolation_mode: ``"nearest_neighbor"`` repeats elements; ``"linear"`` weighs neighbours, and repeats those at the edges.
    """

    NAME = "UPSAMPLE_2D"
    FUNCTION = "upsample_2d"
    SUPPORT = support("1.0 F r45 · ext +D")
    TAKES_BOOL = False

    input_tensor: Input
    output_tensor: Output
    scale_size: Size
    interpolation_mode: InterpolationMode

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

    def source(self, *at: Coordinate) -> Source:
        *outer, y, x = at
        return (*outer, y // self.scale_size.height, x // self.scale_size.width)

    def numpy(self, x: Array) -> Any:
        width, height = self.scale_size
        if self.is_moved():
            return x.repeat(height, -2).repeat(width, -1)
        wide = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
        magnitudes = np.abs(wide)
        for axis, factor in ((-2, height), (-1, width)):
            wide, magnitudes = _enlarged(wide, axis, factor), _enlarged(magnitudes, axis, factor)
        return within_sum(wide, x.dtype, 10, magnitudes)

    def computation(self, each: T.Each, shared: Shared = ()) -> PrimFunc:
        """With weights, one item for each element."""
        if self.is_moved():
            return super().computation(each, shared)
        source, result = self.input_tensor, self.output_tensor
        with T.function() as f:
            tensors = f.tensors(self)
            with T.elements(each, result.sizes, result.layout) as at:
                *outer, y, x = at

                def row(place: Any) -> Any:
                    def element(column: Any) -> Any:
                        offset = T.dot([*outer, place, column], source.layout)
                        return T.let(V.wide(tensors["input_tensor"][offset]))

                    return _between(x, self.scale_size.width, source.sizes[-1], element)

                found = _between(y, self.scale_size.height, source.sizes[-2], row)
                T.store(tensors["output_tensor"], T.dot(at, result.layout), V.to(found, result.data_type.tvm))
        return f.result()


def _between(at: Any, factor: int, size: int, element: Callable[[Any], Any]) -> Any:
    """What is between the two neighbours of a coordinate of the result; if it meets one exactly, that one alone."""
    quotient = T.let(T.truncdiv(at, T.index(factor)))
    past = T.let((at - quotient * T.index(factor)) * T.index(2) + T.index(1 - factor))  # in parts of twice the factor
    before = T.let(T.Select(past < T.index(0), quotient - T.index(1), quotient))
    low, high = T.max(before, T.index(0)), T.min(before + T.index(1), T.index(size - 1))
    first, second = element(T.let(low)), element(T.let(high))
    weight = T.let(T.Select(past < T.index(0), past + T.index(2 * factor), past))
    share = T.let(T.cast(weight, T.type_of(first)) / T.const(2 * factor, T.type_of(first)))
    mixed = V.rounded(first * (T.const(1, T.type_of(first)) - share)) + V.rounded(second * share)
    return T.let(T.Select(weight > T.index(0), mixed, first))


def _enlarged(x: Array, axis: int, factor: int) -> Array:
    """The same with NumPy."""
    place = (np.arange(x.shape[axis] * factor).astype(np.longdouble) + 0.5) / factor - 0.5
    low = np.floor(place)
    share = (place - low).reshape(-1, *(1 for _ in range(-axis - 1)))
    first, second = (x.take(np.clip(one, 0, x.shape[axis] - 1).astype(np.int64), axis) for one in (low, low + 1))
    with np.errstate(all="ignore"):
        found: Array = np.where(share == 0, first, first * (1 - share) + second * share)
    return found
