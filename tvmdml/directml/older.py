"""The classes of ``tvmdml.pydirectml``: a device that computes, a builder of graphs, and arrays bound to inputs by position."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmdml import directml
from tvmdml.directml.compiled import CompiledOperator
from tvmdml.directml.enums import TensorFlags
from tvmdml.directml.tensors import TensorPolicy
from tvmdml.tensors.arrays import NumpyArray


class Size2D(NamedTuple):
    """A width and a height."""

    width: int
    height: int


_PARAMETERS = ("data_type", "flags", "sizes", "strides", "total_tensor_size_in_bytes", "guaranteed_base_offset_alignment")


class TensorDesc(directml.TensorDesc):
    """A tensor's type, flags, sizes and strides.

    Args:
        data_type: a ``TensorDataType``.
        flags: a ``TensorFlags``; it may be left out, and then the sizes are the second argument.
        sizes: the sizes.
        strides: the strides in elements, or a ``TensorPolicy``.
        total_tensor_size_in_bytes: the size of the memory.
        guaranteed_base_offset_alignment: 0 or a power of two.
        tensor_policy: a ``TensorPolicy``.
    """

    __slots__ = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        with_flags = "flags" in named or (len(given) > 1 and isinstance(given[1], TensorFlags))
        names = _PARAMETERS if with_flags else tuple(name for name in _PARAMETERS if name != "flags")
        if len(given) > len(names):
            raise TypeError(f"TensorDesc: given {len(given)} arguments; allowed: {', '.join(names)}")
        found = dict(zip(names, given, strict=False))
        if twice := found.keys() & named.keys():
            raise TypeError(f"TensorDesc: {', '.join(sorted(twice))} is given twice")
        found |= named
        if isinstance(found.get("strides"), TensorPolicy):
            found["tensor_policy"] = found.pop("strides")
        if found.get("tensor_policy") is TensorPolicy.default:
            del found["tensor_policy"]
        super().__init__(**found)


class Expression(directml.Expression):
    """A tensor of a graph."""

    __slots__ = ()

    def __mod__(self, other: Any) -> Any:
        """The remainder with the sign of the dividend, as in C; the newer interface's has that of the divisor."""
        if not isinstance(other, directml.Expression):
            return NotImplemented
        return directml.modulus_truncate(self, other)  # type: ignore[attr-defined]

    def get_output_desc(self) -> directml.TensorDesc:
        """The tensor."""
        return self.desc


class TensorData(np.ndarray[Any, Any]):
    """An array of results."""

    def __new__(cls, data: Any) -> TensorData:
        """An array of float32."""
        return np.ascontiguousarray(data, np.float32).view(cls)


class Binding:
    """Numbers for an input, converted to its type.

    Args:
        expr: the input.
        data: the numbers: all that ``numpy.asarray`` takes.
    """

    def __init__(self, expr: Expression, data: Any) -> None:
        if not isinstance(expr, Expression):
            raise TypeError(f"Binding expr: given {type(expr).__name__}; allowed: an Expression")
        self.expression = expr
        self.data: NumpyArray = np.ascontiguousarray(data, expr.dtype)


class GraphBuilder(directml.Graph):
    """A graph of operators, for a device."""

    EXPRESSION = Expression

    def build(self, flags: Any, outputs: Sequence[Expression]) -> Model:
        """Compile what some expressions depend on. Flags change no result."""
        wanted = list(outputs)
        return Model(self.compile(wanted, flags=flags), wanted, [slot.owned for slot in self._slots])

    def add_input(self, index: int, desc: TensorDesc) -> Expression:
        """The input of a number; inputs are made in the order of their numbers."""
        if index != len(self._slots):
            raise RuntimeError(f"input_tensor() input_index: given {index}; allowed: {len(self._slots)}, the next. (0x80070057)")
        found = self.input(desc=desc)
        assert isinstance(found, Expression)
        return found


class Model:
    """A compiled graph. ``GraphBuilder.build`` makes it."""

    def __init__(self, operator: CompiledOperator, outputs: Sequence[Expression], owned: Sequence[bool]) -> None:
        self.operator, self.outputs, self.owned = operator, list(outputs), list(owned)


class Device(directml.Device):
    """A device: the best GPU of this machine, or its processor.

    Args:
        use_gpu: whether to use a GPU, if there is one.
        use_debug_layer: accepted; it has no effect.
    """

    def __init__(self, use_gpu: bool = True, use_debug_layer: bool = False) -> None:
        super().__init__(use_gpu=use_gpu, use_debug_layer=use_debug_layer)

    def compute(self, model: Model, inputs: Sequence[Binding], outputs: Sequence[Expression]) -> list[TensorData]:
        """Run a model.

        Args:
            model: the model.
            inputs: a binding for each input, in the order of their numbers.
            outputs: which of the model's outputs to return.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: inputs are missing, or do not fit; an output is none of the model's.
        """
        if not isinstance(model, Model) or not all(isinstance(one, Binding) for one in inputs):
            raise TypeError(f"compute(): the arguments are {inspect.signature(self.compute)}")
        if len(inputs) != len(model.owned):
            raise ValueError(f"compute() inputs: given {len(inputs)}; allowed: {len(model.owned)}, one for each input")
        bound = list(zip(inputs, model.owned, strict=True))
        self.initialize(model, [one for one, owned in bound if owned])
        return self.dispatch(model, [one for one, owned in bound if not owned], outputs)

    def initialize(self, model: Model, inputs: Sequence[Binding]) -> None:
        """Give a model the inputs that it owns; ``dispatch`` may follow any number of times.

        Raises:
            ValueError: inputs are missing, or do not fit.
        """
        model.operator.initialize({one.expression: one.data for one in inputs})

    def dispatch(self, model: Model, inputs: Sequence[Binding], outputs: Sequence[Expression]) -> list[TensorData]:
        """Run a model that was initialized, on the inputs that it does not own.

        Raises:
            ValueError: inputs are missing, or do not fit; an output is none of the model's.
        """
        found = model.operator.dispatch({one.expression: one.data for one in inputs})
        places = {id(one): i for i, one in enumerate(model.outputs)}
        if unknown := [one for one in outputs if id(one) not in places]:
            raise ValueError(f"dispatch() outputs: given {unknown[0]!r}; allowed: outputs that the model was built with")
        return [found[places[id(one)]].view(TensorData) for one in outputs]
