"""Products and convolutions whose factors are rounded to bfloat16, with sums in float32: an internal form of those of float32.

They are no operators of DirectML, and have no functions: ``graph/passes/precision.py`` makes them where a program asks for it.

A sum has one order on all processors, that of matrix tiles (AMX): of each 32 places of the contraction, the first 16 products are
added in order, each by one rounding, and so are the last 16; their sum is added to the sum before. Subnormals count as 0. Places of
a convolution are the channels of one tap after those of another; of several taps, those of each begin with a new step of 32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmdml.kernels.contraction import CHAIN, Contraction, Operand
from tvmdml.kernels.movement import INSIDE, CoordinateRule, Linear
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._contract import NumpyArray
from tvmdml.operators._matrix import Matrix
from tvmdml.operators.convolution import Convolution
from tvmdml.operators.gemm import Gemm


class Rounded(Matrix):
    """Base class: the first two inputs are the factors."""

    BFLOAT16 = True

    def modules(self) -> tuple[str, ...]:
        """The files of the operator that is rounded."""
        return (self.SCHEDULE, *super().modules()[1:])

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """That of the operator, for rounded factors."""
        factors = [None if one is None else rounded(one) for one in inputs[:2]]
        return super().reference(*factors, *inputs[2:])


class Bfloat16Gemm(Rounded, Gemm):
    """A product of matrices."""

    NAME = "FUSED_BFLOAT16_GEMM"
    SCHEDULE = "gemm"
    FUNCTION = ""


class Bfloat16Convolution(Rounded, Convolution):
    """A convolution."""

    NAME = "FUSED_BFLOAT16_CONVOLUTION"
    SCHEDULE = "convolution"
    FUNCTION = ""

    def contraction(self) -> Contraction:
        """Channels are the last of the inner coordinates."""
        own = super().contraction()
        first = len(own.outer)

        def turned(one: Linear) -> Linear:
            taps = one.steps[first + 1 :] + one.steps[first : first + 1]
            return Linear(one.base, (*one.steps[:first], *taps))

        found = own.with_operands(lambda operand: operand.with_linears(map(turned, operand.linears())))
        found = found._replace(inner=(*own.inner[1:], own.inner[0]))
        channels, whole = own.inner[0], padded(own.inner[0])
        if channels == whole or math.prod(own.inner[1:]) == 1:
            return found

        def within(operand: Operand) -> Operand:
            """Channels behind the last one contribute nothing."""
            *steps, step = operand.place.steps
            at = Linear(0, (*[0] * len(steps), 1))
            return Operand(
                operand.name, Linear(operand.place.base, (*steps, 0)), (*operand.rules, CoordinateRule(INSIDE, channels, step, at))
            )

        return found._replace(inner=(*found.inner[:-1], whole), a=within(found.a), b=within(found.b))


def padded(channels: Any) -> Any:
    """Channels with those that fill up the last step."""
    return -(-channels // (2 * CHAIN)) * (2 * CHAIN)


def rounded(array: NumpyArray) -> NumpyArray:
    """float32 as the nearest bfloat16, the even one of two; subnormals are 0."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    near = np.where(bits & np.uint32(0x7F800000), near, bits & np.uint32(0x80000000))
    return np.where(np.isnan(array), np.float32(np.nan), near.view(np.float32))
