"""Products and convolutions with pointwise operators behind them, as one operator each; ``follow`` makes them.

They are no operators of DirectML, and have no functions. An element is finished and rounded to the head's type first, and then
passed through what follows before it is stored: the bits are those of separate kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from tvmdml.enums import FeatureLevel
from tvmdml.errors import InvalidArgument, counted, message
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._chain_reference import Step, expected
from tvmdml.operators._contract import Array, Inputs, Operator, OptionalOperator
from tvmdml.operators._matrix import Matrix
from tvmdml.operators._pointwise_fused import FusedPointwise, Result, fuse
from tvmdml.operators._pointwise_fused import Value as Wire
from tvmdml.operators._support import support
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


class Followed(Matrix):
    """Base class of an operator with a ``FusedPointwise`` behind it, whose first input is the operator's result."""

    HEAD: ClassVar[type[Any]]
    """The operator's own class, of which this one has all fields."""

    epilogue: OptionalOperator = None
    epilogue_tensors: Inputs = ()
    """The other inputs of what follows, each with the output's sizes."""

    # -- Rules

    def validate(self, level: FeatureLevel, extensions: bool = False) -> None:
        """The head's contract, that of what follows, and that both fit."""
        self._check_epilogue()
        self.head().validate(level, extensions)
        super().validate(level, extensions)

    def check_part(self, name: str, fused: Operator, level: FeatureLevel, extensions: bool) -> None:
        """What follows has its own contract, and the head checks its own parts."""
        if name == "epilogue":
            fused.validate(level, extensions)

    def check_attributes(self, level: FeatureLevel) -> None:
        """The head checks them."""

    def check_level(self, level: FeatureLevel) -> None:
        """The head checks it."""

    def check(self) -> None:
        """What follows takes the result, and gives the output."""
        self._check_epilogue()
        chain, y = self._chain, self.output_tensor
        self.require(not chain.formula().counted, "epilogue", "operators that count elements", "others")
        self.require(self.of_rows() is None, "fused_activation", "an operator on whole rows", "one on elements")
        given, wanted = counted(len(self.epilogue_tensors), "tensor"), len(chain.input_tensors) - 1
        allowed = f"{wanted}: the epilogue's inputs but for the first"
        self.require(len(self.epilogue_tensors) == wanted, "epilogue_tensors", given, allowed)
        pairs = [(f"epilogue_tensors[{i}]", one, f"input {i + 1}") for i, one in enumerate(self.epilogue_tensors)]
        others = (*chain.input_tensors[1:], *chain.output_tensors)
        for (name, one, place), tensor in zip([*pairs, ("output_tensor", y, "output")], others, strict=True):
            fits = (one.data_type, one.sizes) == (tensor.data_type, tensor.sizes)
            self.require(fits, name, one, f"{tensor.data_type.tvm}{list(tensor.sizes)}, as the epilogue's {place}")
        self.head().check()

    def _check_epilogue(self) -> None:
        chain, allowed = self.epilogue, "a FUSED_POINTWISE with inputs, the first of which is the result, and one output"
        self.require(isinstance(chain, FusedPointwise), "epilogue", chain and chain.NAME, allowed)
        assert isinstance(chain, FusedPointwise)
        inputs, outputs = (len(some or ()) for some in (chain.input_tensors, chain.output_tensors))
        given = f"{counted(inputs, 'input')} and {counted(outputs, 'output')}"
        self.require(inputs > 0 and outputs == 1, "epilogue", given, allowed)
        self.require(self.output_tensor is not None, "output_tensor", "None", "a TensorDesc")

    # -- What is computed

    def modules(self) -> tuple[str, ...]:
        """The files of the head and of what follows."""
        return tuple(dict.fromkeys((*self.head().modules(), *self._chain.modules())))

    def head(self) -> Matrix:
        """The operator without what follows; its result, which is not stored, lies as the output."""
        fields = {field.name: getattr(self, field.name) for field in self.HEAD.fields()}
        y = self.output_tensor
        found: Matrix = self.HEAD(
            **{**fields, "output_tensor": TensorDesc(self._chain.input_tensors[0].data_type, y.sizes, y.strides)}
        )
        return found

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
        head = self.head()
        own = T.to(head.finish(total, *values[:count]), head.output_tensor.data_type.tvm)
        pairs = zip(values[count:], self.epilogue_tensors, strict=True)
        return self.after(own, *(T.to(value, tensor.data_type.tvm) for value, tensor in pairs))

    def after(self, value: Any, *values: Any) -> Any:
        """The result of what follows."""
        formula = self._formula
        given = (T.hold(T.settled(value)), *values)
        kinds = (tensor.data_type.tvm for tensor in formula.inputs)
        (found,) = formula.value(*(T.reinterpret(one, kind) for one, kind in zip(given, kinds, strict=True)))
        return T.reinterpret(found, self.output_tensor.data_type.tvm)

    @property
    def _formula(self) -> Formula:
        return self._chain._formula(self._chain.operands(), ())

    @property
    def _chain(self) -> FusedPointwise:
        assert isinstance(self.epilogue, FusedPointwise)
        return self.epilogue

    def is_brief(self) -> bool:
        """Only if what follows is little, and exact."""
        return super().is_brief() and not self._chain.steps() and len(self._chain.operators) <= _BRIEF

    def finished_by(self) -> tuple[tuple[str, str], ...]:
        """What the head depends on, and what follows, without its sizes."""
        own = tuple(pair for pair in super().finished_by() if pair[0] != "epilogue")
        return (*own, *((f"after {name}", repr(value)) for name, value in self._formula.key))

    def reference(self, *inputs: Array | None) -> tuple[Expected, ...]:
        """The head's reference, and those of what follows."""
        head, present = self.head(), [x for x in inputs if x is not None]
        own = len(present) - len(self.epilogue_tensors)
        # The chain's numbers: of the head's result, of its other inputs, and of what it computes.
        numbers = [len(present), *range(own, len(present))]
        numbers += range(len(present) + 1, len(present) + 1 + sum(len(part.outputs()) for part in self._chain.operators))
        steps = [Step(head, tuple(range(own)))]
        steps += [Step(part, tuple(numbers[i] for i in some)) for part, some in self._chain.steps_of()]
        return expected(steps, present, [numbers[i] for i in self._chain.results])


_ANY = support("1.0 all r8")
"""The head and what follows have their own tables."""


class FusedConvolution(Followed, Convolution):
    """A convolution, and pointwise operators behind it."""

    NAME = "FUSED_CONVOLUTION"
    SCHEDULE = "convolution"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = Convolution


class FusedConvolutionInteger(Followed, ConvolutionInteger):
    """A convolution of integers, and pointwise operators behind it."""

    NAME = "FUSED_CONVOLUTION_INTEGER"
    SCHEDULE = "convolution"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = ConvolutionInteger


class FusedQuantizedLinearConvolution(Followed, QuantizedLinearConvolution):
    """A convolution of quantized numbers, and pointwise operators behind it."""

    NAME = "FUSED_QUANTIZED_LINEAR_CONVOLUTION"
    SCHEDULE = "convolution"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = QuantizedLinearConvolution


class FusedGemm(Followed, Gemm):
    """A product of matrices, and pointwise operators behind it."""

    NAME = "FUSED_GEMM"
    SCHEDULE = "gemm"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = Gemm


class FusedMatrixMultiplyInteger(Followed, MatrixMultiplyInteger):
    """A product of integers, and pointwise operators behind it."""

    NAME = "FUSED_MATRIX_MULTIPLY_INTEGER"
    SCHEDULE = "matrix_multiply_integer"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = MatrixMultiplyInteger


class FusedMatrixMultiplyIntegerToFloat(Followed, MatrixMultiplyIntegerToFloat):
    """A product of integers as floats, and pointwise operators behind it."""

    NAME = "FUSED_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    SCHEDULE = "matrix_multiply_integer"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = MatrixMultiplyIntegerToFloat


class FusedQuantizedLinearMatrixMultiply(Followed, QuantizedLinearMatrixMultiply):
    """A product of quantized numbers, and pointwise operators behind it."""

    NAME = "FUSED_QUANTIZED_LINEAR_MATRIX_MULTIPLY"
    SCHEDULE = "matrix_multiply_integer"
    SUPPORT = _ANY
    FUNCTION = ""
    HEAD = QuantizedLinearMatrixMultiply


FOLLOWED: dict[type[Operator], type[Any]] = {
    one.HEAD: one
    for one in (
        *(FusedConvolution, FusedConvolutionInteger, FusedQuantizedLinearConvolution, FusedGemm),
        *(FusedMatrixMultiplyInteger, FusedMatrixMultiplyIntegerToFloat, FusedQuantizedLinearMatrixMultiply),
    )
}
"""The classes with what follows, by those without."""


def follow(head: Operator, nodes: Sequence[Operator], wiring: Sequence[Sequence[Wire]], result: Result | None = None) -> Any:
    """An operator with pointwise operators behind it, as one descriptor.

    Args:
        head: a descriptor of one of the classes in ``FOLLOWED``.
        nodes: what follows, as for ``fuse``.
        wiring: as for ``fuse``; input 0 is the head's result, and the others are numbered from 1 on.
        result: what is stored; by default the result of the last node.

    Returns:
        A descriptor whose tensors are the head's, and ``epilogue_tensors``, which are the inputs from number 1 on. The output is
        that of ``result``.

    Raises:
        InvalidArgument: these operators cannot be one.
    """
    last = Result(len(nodes) - 1) if result is None else result
    return follow_by(head, fuse(nodes, wiring, [last]))


def follow_by(head: Operator, chain: FusedPointwise) -> Any:
    """``follow`` by a group whose first input is the head's result.

    Raises:
        InvalidArgument: these operators cannot be one.
    """
    cls = FOLLOWED.get(type(head))
    if cls is None:
        raise InvalidArgument(message("follow: head", head.NAME, ", ".join(one.NAME for one in FOLLOWED)))
    result: TensorDesc = getattr(head, "output_tensor")  # noqa: B009 - a field of all of them
    if not chain.input_tensors or not chain.input_tensors[0].is_like(result):
        given = str(chain.input_tensors[0]) if chain.input_tensors else "none"
        raise InvalidArgument(message("follow: input 0", given, f"{result}, the head's result"))
    fields = {field.name: getattr(head, field.name) for field in type(head).fields()}
    fields["output_tensor"] = chain.output_tensors[0]
    found = cls(**fields, epilogue=chain, epilogue_tensors=chain.input_tensors[1:])
    found.check()
    return found


def lies_simply(desc: Followed) -> bool:
    """Whether what follows reads tensors that lie as the output, or have an element for each channel or one for all."""
    return all(place_of(tensor, desc.output_tensor) for tensor in desc.epilogue_tensors)


def place_of(tensor: TensorDesc, output: TensorDesc) -> str:
    """How a tensor with the output's sizes lies: ``output`` as that, ``channel`` with an element each; empty if otherwise."""
    steps = [(n, one, other) for n, one, other in zip(tensor.sizes, tensor.layout, output.layout, strict=True)]
    if all(n == 1 or one == other for n, one, other in steps):
        return "output"
    return "channel" if all(n == 1 or one == 0 for n, one, _ in itertools.chain(steps[:1], steps[2:])) else ""
