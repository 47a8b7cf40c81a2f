"""DML_OPERATOR_VALUE_SCALE_2D: an image times a number, plus a number for each channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmdml.kernels import tensorir_values as T
from tvmdml.operators._contract import Float, Floats, NumpyArray
from tvmdml.operators._pointwise import Unary
from tvmdml.operators._support import support

_CHANNELS = (1, 3)


class ValueScale2d(Unary):
    """An image times a number, plus a number for each channel (``DML_VALUE_SCALE_2D_OPERATOR_DESC``).

    Args:
        scale: the factor.
        bias: what is added to each channel: 1 or 3 numbers, as many as the second dimension has.
    """

    SUPPORT = support("1.0 F r4 · ext +D")
    SHARES = ()
    COUNTED = True
    CONSTANT_SHAPES = "the channel is a part of the element's number"

    scale: Float
    bias: Floats

    def check(self) -> None:
        """A number for each of one or three channels."""
        super().check()
        channels = self.input_tensor.sizes[1]
        self.require(channels in _CHANNELS, "input_tensor.sizes[1]", channels, "1 or 3 channels")
        self.require(len(self.bias) == channels, "bias", f"{len(self.bias)} numbers", f"{channels}, one for each channel")

    def counts(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """``value`` gets the channel."""
        return (0, 1, 0, 0)

    def value(self, x: Any, channel: Any) -> Any:
        own = T.like(x, self.bias[-1])
        for i, bias in enumerate(self.bias[:-1]):
            own = T.select(channel == T.like(channel, i), T.like(x, bias), own)
        return T.rounded(x * T.like(x, self.scale)) + own

    def numpy(self, x: NumpyArray, channel: NumpyArray) -> NumpyArray:
        bias = np.array(self.bias).astype(x.dtype)
        return x * x.dtype.type(self.scale) + bias[channel]
