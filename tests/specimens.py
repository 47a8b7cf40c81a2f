"""Operators defined by the tests, each difficult in a way that no operator of the package is (yet)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmdml import tensorir as T
from tvmdml.operators import Operator
from tvmdml.operators._contract import Array, Float, Floats, Input, Output
from tvmdml.operators._support import support

__all__ = ["Pairs", "ScaleBias"]


class ScaleBias(NamedTuple):
    """Floats that stand inside a field."""

    scale: float
    bias: float


class Pairs(Operator):
    """The elements of the input beside a table of floats: ``output[i, j] = factors[i]``, and the input's element in the last row.

    Its attributes are floats in a sequence, whose bits (-0.0, NaN payloads) decide the kernel.
    """

    NAME = "SPECIMEN_PAIRS"
    SUPPORT = support("1.0 all r8")

    input_tensor: Input
    output_tensor: Output
    alpha: Float
    factors: Floats

    def computation(self, each: T.Each, in_place: bool = False) -> Any:
        source, result = self.input_tensor, self.output_tensor
        with T.function() as f:
            tensors = f.tensors(self, in_place)
            with each(result.element_count) as element:
                at = T.unravel(element, result.sizes)
                offset = T.dot(at, result.layout)
                own = tensors["input_tensor"][T.dot(at[-source.rank :], source.layout)]
                T.store(tensors["output_tensor"], offset, own)
                row = at[-source.rank - 1]
                for i, factor in enumerate((self.alpha, *self.factors)):
                    with T.when(row == T.i64(i)):
                        T.store(tensors["output_tensor"], offset, T.const(factor, result.data_type.tvm))
        return f.result()

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        out = np.broadcast_to(x, self.output_tensor.sizes).copy()
        for i, factor in enumerate((self.alpha, *self.factors)):
            out[..., i, :] = factor
        return (out,)
