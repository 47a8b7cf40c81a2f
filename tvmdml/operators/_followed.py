"""An operator with pointwise operators behind it, as one operator: what all such classes share.

They are no operators of DirectML, and have no functions. An element is finished and rounded to the head's type first, and then
passed through what follows before it is stored: the bits are those of separate kernels. ``_following.py`` makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tvmdml.enums import FeatureLevel
from tvmdml.errors import counted
from tvmdml.kernels import tensorir_values as T
from tvmdml.kernels.formula import Formula
from tvmdml.operators._accuracy import Expected
from tvmdml.operators._chain_reference import ChainStep, expected
from tvmdml.operators._contract import Inputs, NumpyArray, Operator, OptionalOperator
from tvmdml.operators._frozen import derived
from tvmdml.operators._pointwise_fused import FusedPointwise
from tvmdml.operators._support import support
from tvmdml.tensors import TensorDesc

_ANY = support("1.0 all r8")


def followed_classes(base: type[Followed], *heads: type[Any], scheduled_as_head: bool = False) -> tuple[type[Any], ...]:
    """A class for each of a family's operators with others behind it.

    Args:
        base: the family's base class of them.
        heads: the operators.
        scheduled_as_head: whether the schedule is that of the operator's file, and not of the family's.
    """
    module, made = sys.modules[base.__module__], []
    for head in heads:
        name = f"{head.NAME}_CHAIN" if head.NAME.startswith("FUSED_") else f"FUSED_{head.NAME}"
        doc = f"{head.NAME}, and pointwise operators behind it."
        names = {"NAME": name, "HEAD": head, "__doc__": doc, "__module__": base.__module__}
        if scheduled_as_head:
            names["SCHEDULE"] = head.SCHEDULE or head.__module__.rpartition(".")[2]
        made.append(type(f"Fused{head.__name__}", (base, head), names))
        setattr(module, made[-1].__name__, made[-1])  # pickle finds classes by their names
    return tuple(made)


class Followed(Operator):
    """Base class of an operator with a ``FusedPointwise`` behind it, whose first input is the operator's result."""

    HEAD: ClassVar[type[Any]]
    """The operator's own class, of which this one has all fields."""
    FUNCTION = ""

    epilogue: OptionalOperator = None
    epilogue_tensors: Inputs = ()
    """The other inputs of what follows, each with the output's sizes."""

    if TYPE_CHECKING:  # each operator's own field
        output_tensor: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """The head and what follows have their own support tables."""
        cls.SUPPORT = _ANY
        super().__init_subclass__(**kwargs)

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

    @derived
    def head(self) -> Any:
        """The operator without what follows; its result, which is not stored, lies as the output."""
        fields = {field.name: getattr(self, field.name) for field in self.HEAD.fields()}
        y = self.output_tensor
        result = TensorDesc(self._chain.input_tensors[0].data_type, y.sizes, y.strides)
        return self.HEAD(**{**fields, "output_tensor": result})

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

    def passed_on(self, own: Any, *others: Any) -> Any:
        """An element of the head, not yet rounded, through what follows; the others' elements may be wider than their tensors."""
        value = T.to(own, self._chain.input_tensors[0].data_type.tvm)
        pairs = zip(others, self.epilogue_tensors, strict=True)
        return self.after(value, *(T.to(one, tensor.data_type.tvm) for one, tensor in pairs))

    def attributes_exactly(self, left_out: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
        """Without what follows: that is in ``key_behind``."""
        return super().attributes_exactly((*left_out, "epilogue"))

    def key_behind(self) -> tuple[tuple[str, str], ...]:
        """What a kernel depends on of what follows: its sizes are no part. Operators that differ in tensors have one epilogue."""
        return self._chain.key_behind()

    def reference(self, *inputs: NumpyArray | None) -> tuple[Expected, ...]:
        """The head's reference, and those of what follows."""
        head, present = self.head(), [x for x in inputs if x is not None]
        own = len(present) - len(self.epilogue_tensors)
        # The chain's numbers: of the head's result, of its other inputs, and of what it computes.
        numbers = [len(present), *range(own, len(present))]
        numbers += range(len(present) + 1, len(present) + 1 + sum(len(part.outputs()) for part in self._chain.operators))
        steps = [ChainStep(head, tuple(range(own)))]
        steps += [ChainStep(part, tuple(numbers[i] for i in some)) for part, some in self._chain.steps_of()]
        return expected(steps, present, [numbers[i] for i in self._chain.results])
