"""ONNX's operators, said in DirectML's: one table, for whoever has a node and wants the descriptor that does its work."""

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

# -- What functions compile -----------------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """What is known of a tensor of a model."""

    dtype: Any
    """NumPy's; ``None`` for one that NumPy lacks, or that is not known."""
    shape: tuple[int | str, ...] | None
    """A size that is open is its name."""


def _compiled(function: Callable[..., Any], *inputs: Any, **attributes: Any) -> Operator:
    """The descriptor that a function of an operator's file compiles for tensors such as these."""
    described: list[Operator] = []

    def call(describe: functions.Describe, tensors: Any, values: Any, *more: Any, boolean: bool = False, **rest: Any) -> Any:
        desc = functions.described(
            describe, (None if tensor is None else _described(tensor, boolean) for tensor in tensors), values
        ).desc
        described.append(desc)
        return desc.outputs()

    # The function's own code, for which ``call`` means the one above.
    assert isinstance(function, FunctionType)
    among = {name: call if value is functions.call else value for name, value in function.__globals__.items()}
    same = FunctionType(function.__code__, among, function.__name__, function.__defaults__, function.__closure__)
    same.__kwdefaults__ = function.__kwdefaults__
    same(*inputs, **attributes)
    return described[0]


def _described(tensor: Tensor, boolean: bool) -> ArrayTensorDesc:
    data_type = TensorDataType.of("uint8" if boolean and tensor.dtype == bool else tensor.dtype, "input")
    return ArrayTensorDesc(data_type, tensor.shape or (1,), zero_dimensional=not tensor.shape)  # type: ignore[arg-type]


# -- ONNX's operators, said in DirectML's ---------------------------------------------------------------------------


class Refused(Exception):
    """A node that cannot be taken; says why."""


class Arguments:
    """A node's inputs and attributes."""

    def __init__(self, node: Any, tensors: Mapping[str, Tensor], constants: Mapping[str, list[int]]) -> None:
        import onnx

        self._inputs, self._tensors, self._constants = list(node.input), tensors, constants
        self.attributes: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def integer(self, name: str, default: int) -> int:
        """An attribute."""
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
        """Whether there is such an input."""
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
        tensor = tensor._replace(dtype="uint8")  # the same bytes, which are moved and not computed with
    return _compiled(diagonal_matrix, tensor, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)


def _diagonal(k: int) -> int:
    """The diagonal as DirectML's INT, which k (an INT64) may exceed: no matrix has diagonals out there."""
    return min(max(k, -(2**31)), 2**31 - 1)


OPERATORS: Mapping[str, Callable[[Arguments], Operator]] = {
    "Round": _round,
    "TopK": _top_k,
    "NonZero": _nonzero,
    "EyeLike": _eye_like,
    "Trilu": _trilu,
}
"""How each of ONNX's operators is said in DirectML's."""


def numpy_type(onnx: Any, element: int) -> Any:
    """NumPy's type for a tensor's elements; ``None`` where it has none."""
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        return None
