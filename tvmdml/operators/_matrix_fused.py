"""Products and convolutions with pointwise operators behind them, as one operator each."""

from __future__ import annotations

import itertools
from typing import Any

from tvmdml.operators._followed import Followed, followed_classes
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._matrix_bfloat16_fused import Bfloat16Convolution, Bfloat16Gemm
from tvmdml.operators._matrix_blocks_fused import BlockwiseGemm
from tvmdml.operators.convolution import Convolution, ConvolutionInteger, QuantizedLinearConvolution
from tvmdml.operators.gemm import Gemm
from tvmdml.operators.matrix_multiply_integer import (
    MatrixMultiplyInteger,
    MatrixMultiplyIntegerToFloat,
    QuantizedLinearMatrixMultiply,
)
from tvmdml.tensors import TensorDesc

_BRIEF = 3
"""With so many operators behind it, a sum may be finished in many places of a kernel."""


class FollowedMatrix(Followed, Matrix):
    """Base class of those of the matrix family."""

    def check(self) -> None:
        """What follows takes elements."""
        super().check()
        self.require(self.of_rows() is None, "fused_activation", "an operator on whole rows", "one on elements")

    @property
    def computed(self) -> str:
        """That of the head."""
        return self.head().computed

    def later(self) -> tuple[tuple[str, TensorDesc], ...]:
        """The other inputs of what follows."""
        return tuple((f"epilogue_tensors[{i}]", tensor) for i, tensor in enumerate(self.epilogue_tensors))

    def addends(self) -> tuple[tuple[str, TensorDesc], ...]:
        """Those of the head, and what follows needs."""
        return (*super().addends(), *self.later())

    def finish(self, total: Any, *values: Any) -> Any:
        """The head's element, rounded, and passed on."""
        count = len(values) - len(self.epilogue_tensors)
        return self.passed_on(self.head().finish(total, *values[:count]), *values[count:])

    def is_brief(self) -> bool:
        """Only if what follows is little, and exact."""
        return super().is_brief() and not self._chain.steps() and len(self._chain.operators) <= _BRIEF

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        """What the head depends on, and what follows, without its sizes."""
        return (*super().finished_by(), *self.key_behind())


CLASSES = followed_classes(
    FollowedMatrix,
    *(Convolution, ConvolutionInteger, QuantizedLinearConvolution, Gemm, Bfloat16Convolution, Bfloat16Gemm, BlockwiseGemm),
    *(MatrixMultiplyInteger, MatrixMultiplyIntegerToFloat, QuantizedLinearMatrixMultiply),
    scheduled_as_head=True,
)


def place_of(tensor: TensorDesc, output: TensorDesc) -> str:
    """How a tensor with the output's sizes lies: ``output`` as that, ``channel`` with an element each; empty if otherwise."""
    steps = [(n, one, other) for n, one, other in zip(tensor.sizes, tensor.layout, output.layout, strict=True)]
    if all(n == 1 or one == other for n, one, other in steps):
        return "output"
    return "channel" if all(n == 1 or one == 0 for n, one, _ in itertools.chain(steps[:1], steps[2:])) else ""
