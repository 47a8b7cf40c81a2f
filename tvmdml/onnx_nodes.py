"""Conversion of ONNX nodes to DirectML descriptors: one table, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from tvmdml import functions
from tvmdml.operators import Operator
from tvmdml.operators.diagonal_matrix import diagonal_matrix
from tvmdml.operators.element_wise_round import round as round_to_integral
from tvmdml.operators.nonzero_coordinates import nonzero_coordinates
from tvmdml.operators.top_k import top_k
from tvmdml.tensors import ArrayTensorDesc, TensorDataType

# -- The descriptors of functions -----------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """What is known about a tensor of a model."""

    dtype: Any
    """The NumPy type; ``None`` if NumPy has no such type, or the type is unknown."""
    shape: tuple[int | str, ...] | None
    """The sizes; a string is the name of a symbolic size."""


def _compiled(function: Callable[..., Any], *inputs: Any, **attributes: Any) -> Operator:
    """The descriptor that a function in an operator's file compiles for such tensors."""
    described: list[Operator] = []

    def call(describe: functions.Describe, tensors: Any, values: Any, *more: Any, boolean: bool = False, **rest: Any) -> Any:
        desc = functions.described(
            describe, (None if tensor is None else _described(tensor, boolean) for tensor in tensors), values
        ).desc
        described.append(desc)
        return desc.outputs()

    # The function's own code, with ``call`` replaced by the one above.
    assert isinstance(function, FunctionType)
    among = {name: call if value is functions.call else value for name, value in function.__globals__.items()}
    same = FunctionType(function.__code__, among, function.__name__, function.__defaults__, function.__closure__)
    same.__kwdefaults__ = function.__kwdefaults__
    same(*inputs, **attributes)
    return described[0]


def _described(tensor: Tensor, boolean: bool) -> ArrayTensorDesc:
    data_type = TensorDataType.of("uint8" if boolean and tensor.dtype == bool else tensor.dtype, "input")
    return ArrayTensorDesc(data_type, tensor.shape or (1,), zero_dimensional=not tensor.shape)  # type: ignore[arg-type]


# -- ONNX's operators -----------------------------------------------------------------------------------------------


class Refused(Exception):
    """A node cannot be converted; the text is the reason."""


class Arguments:
    """A node's inputs and attributes."""

    def __init__(self, node: Any, tensors: Mapping[str, Tensor], constants: Mapping[str, list[int]]) -> None:
        import onnx

        self._inputs, self._tensors, self._constants = list(node.input), tensors, constants
        self.attributes: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise Refused(f"its {name} is no integer")
        return value

    def tensor(self) -> Tensor:
        """The first input."""
        name = self._inputs[0] if self._inputs else ""
        found = self._tensors.get(name, Tensor(None, None))
        if found.dtype is None:
            raise Refused("the type of its input is not known, or is none of DirectML's")
        if found.shape is None:
            raise Refused("the shape of its input is not known")
        open_sizes = [size for size in found.shape if isinstance(size, str)]
        if open_sizes:
            raise Refused(f"its input is {found.dtype.name}[{', '.join(map(str, found.shape))}]: sizes are open")
        return found

    def constant(self, name: str) -> int:
        """The second input, which has one element."""
        values = self._constants.get(self._inputs[1], [])
        if len(values) != 1:
            raise Refused(f"its {name} is no constant")
        return values[0]

    def has(self, position: int) -> bool:
        """Whether the node has an input at this position."""
        return len(self._inputs) > position and bool(self._inputs[position])


def _round(node: Arguments) -> Operator:
    return _compiled(round_to_integral, node.tensor())


def _top_k(node: Arguments) -> Operator:
    k = node.constant("k") if node.has(1) else node.integer("k", 0)  # an attribute in the first version
    direction = "decreasing" if node.integer("largest", 1) else "increasing"
    return _compiled(top_k, node.tensor(), k, axis=node.integer("axis", -1), axis_direction=direction, index_dtype="int64")


def _nonzero(node: Arguments) -> Operator:
    return _compiled(nonzero_coordinates, node.tensor(), index_dtype="int64")


def _eye_like(node: Arguments) -> Operator:
    import onnx

    tensor, k = node.tensor(), node.integer("k", 0)
    wanted = node.integer("dtype", 0)
    dtype = numpy_type(onnx, wanted) if wanted else tensor.dtype
    if dtype is None:
        raise Refused("the type of its output is none of DirectML's")
    return _compiled(
        diagonal_matrix, sizes=tensor.shape, dtype=dtype, diagonal_fill_begin=_diagonal(k), diagonal_fill_end=_diagonal(k + 1)
    )


def _trilu(node: Arguments) -> Operator:
    k = node.constant("k") if node.has(1) else 0
    begin, end = (None, _diagonal(k)) if node.integer("upper", 1) else (_diagonal(k + 1), None)
    tensor = node.tensor()
    if tensor.dtype == bool:
        tensor = tensor._replace(dtype="uint8")  # the same bytes; they are only copied
    return _compiled(diagonal_matrix, tensor, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)


def _diagonal(k: int) -> int:
    """The diagonal as DirectML's INT. k is an INT64 and may exceed it, but no matrix has diagonals beyond that range."""
    return min(max(k, -(2**31)), 2**31 - 1)


OPERATORS: Mapping[str, Callable[[Arguments], Operator]] = {
    "Round": _round,
    "TopK": _top_k,
    "NonZero": _nonzero,
    "EyeLike": _eye_like,
    "Trilu": _trilu,
}
"""The function that converts a node, for each ONNX operator."""


def numpy_type(onnx: Any, element: int) -> Any:
    """The NumPy type of an ONNX element type; ``None`` if there is none."""
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        return None
