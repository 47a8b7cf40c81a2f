"""Nodes of ONNX models, as the operators' files read them.

A descriptor class names ONNX's operators in ``ONNX``. ``Operator.from_onnx`` makes a descriptor of a node; a class overrides it
where a node's attributes or constants are not the descriptor's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tvmdml.operators._onnx_messages import attribute_value, numpy_type
from tvmdml.tensors import ArrayTensorDesc, TensorDataType
from tvmdml.tensors.sizes import is_open


class OnnxTensor(NamedTuple):
    """What is known about a tensor of a model."""

    dtype: Any
    """The NumPy type; ``None`` if NumPy has no such type, or the type is unknown."""
    shape: tuple[int | str, ...] | None
    """The sizes; a string is the name of a symbolic size."""


class NotConvertible(Exception):
    """A node cannot be converted; the text is the reason."""


def transposed(tensor: ArrayTensorDesc, order: Any) -> ArrayTensorDesc:
    """A tensor with its dimensions in another order; ``None`` reverses them."""
    order = list(range(tensor.rank))[::-1] if order is None else order
    if sorted(order) != list(range(tensor.rank)):
        raise NotConvertible(f"its perm is {order}, for {tensor.rank} dimensions")
    return ArrayTensorDesc(tensor.data_type, [tensor.sizes[i] for i in order], [tensor.layout[i] for i in order])


class OnnxNode:
    """A node's operator, inputs and attributes."""

    def __init__(self, node: Any, tensors: Mapping[str, OnnxTensor], constants: Mapping[str, list[int]]) -> None:
        self.kind = str(node.op_type)
        """ONNX's name of the operator, without its domain."""
        self.results = sum(map(bool, node.output))
        """The number of outputs that are used."""
        self.outputs = tuple(map(bool, node.output))
        """Whether each output is used."""
        self._inputs, self._tensors, self._constants = list(node.input), tensors, constants
        self.attributes: dict[str, Any] = {a.name: attribute_value(a) for a in node.attribute}

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise NotConvertible(f"its {name} is not an integer")
        return value

    def tensors(self, *, boolean: bool = False) -> list[ArrayTensorDesc | None]:
        """All inputs; ``None`` for one that is absent."""
        return [self.tensor(i, boolean=boolean) if name else None for i, name in enumerate(self._inputs)]

    def tensor(self, position: int = 0, *, boolean: bool = False) -> ArrayTensorDesc:
        """An input's description.

        Args:
            position: which input.
            boolean: whether it may be BOOL, which counts as UINT8.
        """
        dtype, shape = self._known(position)
        data_type = TensorDataType.of("uint8" if boolean and np.dtype(dtype).kind == "b" else dtype, "input")
        return ArrayTensorDesc(data_type, shape or (1,), zero_dimensional=not shape)

    def constants(self, name: str, position: int) -> list[int]:
        """The elements of an input that is known before the model runs."""
        found = self._constants.get(self._inputs[position])
        if found is None:
            raise NotConvertible(f"its {name} is not a constant")
        return found

    def constant(self, name: str, position: int = 1) -> int:
        """An input with one element: the second, unless another one is asked for."""
        values = self._constants.get(self._inputs[position], [])
        if len(values) != 1:
            raise NotConvertible(f"its {name} is not a constant")
        return values[0]

    def has(self, position: int) -> bool:
        """Whether the node has an input at this position."""
        return len(self._inputs) > position and bool(self._inputs[position])

    def result_type(self, attribute: str = "dtype") -> TensorDataType | None:
        """The type that an attribute names; ``None`` if the node has no such attribute."""
        wanted = self.integer(attribute, 0)
        if not wanted:
            return None
        found = numpy_type(wanted)
        if found is None:
            raise NotConvertible("the type of its output is not one of DirectML's")
        return TensorDataType.of(found, attribute)

    def _known(self, position: int) -> tuple[Any, tuple[int, ...]]:
        name = self._inputs[position] if len(self._inputs) > position else ""
        found = self._tensors.get(name, OnnxTensor(None, None))
        if found.dtype is None:
            raise NotConvertible("the type of its input is unknown, or is not one of DirectML's")
        if found.shape is None:
            raise NotConvertible("the shape of its input is unknown")
        if any(isinstance(size, str) for size in found.shape):
            raise NotConvertible(f"its input is {found.dtype.name}[{', '.join(map(str, found.shape))}]: sizes are symbolic")
        sizes: tuple[Any, ...] = found.shape
        return found.dtype, tuple(size if is_open(size) else int(size) for size in sizes)
